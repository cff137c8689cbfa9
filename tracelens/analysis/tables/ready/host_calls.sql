-- Ops by the time of their host code, calls within them included.
SELECT name, count(*) AS operation_count, sum(host_us) AS host_us_sum, sum(kernel_us) AS kernel_us_sum
FROM calls GROUP BY name ORDER BY host_us_sum DESC, name LIMIT 20
