-- Device time of ops without a perf model.
SELECT name, category, sum(operation_count) AS calls, sum(kernel_us_sum) / 1e3 AS kernel_ms
FROM ops WHERE NOT has_perf_model GROUP BY name, category ORDER BY kernel_ms DESC, name
