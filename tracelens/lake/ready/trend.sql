-- The step's time from day to day, per device.
SELECT date, trace_device, count(DISTINCT run) AS runs, median(duration_us) / 1e3 AS step_ms
FROM steps WHERE step IS NOT NULL AND complete GROUP BY date, trace_device ORDER BY date, trace_device
