-- Device time of ops without a perf model.
SELECT name, category, sum(operation_count) AS operation_count, sum(kernel_us_sum) AS kernel_us_sum
FROM ops WHERE NOT has_perf_model GROUP BY name, category ORDER BY sum(ops.kernel_us_sum) DESC, name
