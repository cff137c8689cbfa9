-- Kernels by time.
SELECT name, count(*) AS kernels, sum(duration_us) / 1e3 AS ms, avg(duration_us) AS mean_us, max(duration_us) AS max_us
FROM kernels GROUP BY name ORDER BY ms DESC, name LIMIT 20
