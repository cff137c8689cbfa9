-- The steps: duration, busy and idle time.
SELECT step, duration_us / 1e3 AS ms, busy_us / 1e3 AS busy_ms, 100 * idle_us / duration_us AS percent_idle, device_events, complete
FROM steps WHERE step IS NOT NULL ORDER BY step
