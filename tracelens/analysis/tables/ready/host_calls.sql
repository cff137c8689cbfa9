-- Ops by the time of their host code, calls within them included.
SELECT name, count(*) AS calls, sum(duration_us) / 1e3 AS host_ms, sum(kernel_us) / 1e3 AS kernel_ms
FROM calls GROUP BY name ORDER BY host_ms DESC, name LIMIT 20
