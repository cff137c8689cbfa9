-- The steps: duration, busy and idle time.
SELECT step, duration_us, busy_us, 100 * idle_us / duration_us AS idle_percent, device_events, complete
FROM steps WHERE step IS NOT NULL ORDER BY step
