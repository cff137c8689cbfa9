-- Which kernels each op launches.
SELECT op, name, count(*) AS kernels, sum(duration_us) AS us
FROM kernels GROUP BY op, name ORDER BY us DESC, op, name LIMIT 40
