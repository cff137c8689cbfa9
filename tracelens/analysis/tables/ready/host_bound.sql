-- Outermost calls whose host code ran longer than the kernels it launched.
SELECT name, count(*) AS operation_count, sum(host_us) AS host_us_sum, sum(kernel_us) AS kernel_us_sum
FROM calls WHERE parent IS NULL AND host_us > kernel_us GROUP BY name ORDER BY host_us_sum - kernel_us_sum DESC, name LIMIT 20
