-- When each device held most memory, and during which op.
SELECT device, max(allocated_mb) AS peak_mb, arg_max(time_us, allocated_mb) AS at_us, arg_max(op, allocated_mb) AS op
FROM memory GROUP BY device ORDER BY device
