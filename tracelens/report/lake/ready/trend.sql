-- The step's time from day to day, per device.
SELECT date, trace_device, count(DISTINCT run) AS runs, median(duration_us) AS step_us_median
FROM steps WHERE step IS NOT NULL AND complete GROUP BY date, trace_device ORDER BY date, trace_device
