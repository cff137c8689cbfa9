-- When each device held most memory, and during which op.
SELECT device, max(allocated_mb) AS peak_mb, arg_max(at_us, allocated_mb) AS peak_at_us, arg_max(parent_op, allocated_mb) AS peak_op
FROM memory GROUP BY device ORDER BY device
