-- Which kernels each op launches.
SELECT parent_op, kernel_name, count(*) AS kernels, sum(duration_us) AS duration_us_sum
FROM kernels GROUP BY parent_op, kernel_name ORDER BY duration_us_sum DESC, parent_op, kernel_name LIMIT 40
