-- Kernels by time.
SELECT kernel_name, count(*) AS kernels, sum(duration_us) AS duration_us_sum, avg(duration_us) AS duration_us_mean, max(duration_us) AS duration_us_max
FROM kernels GROUP BY kernel_name ORDER BY duration_us_sum DESC, kernel_name LIMIT 20
