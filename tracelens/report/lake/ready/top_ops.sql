-- Ops by device time over all traces.
SELECT name, category, count(DISTINCT trace) AS traces, sum(operation_count) AS operation_count, sum(kernel_us_sum) AS kernel_us_sum
FROM ops GROUP BY name, category ORDER BY sum(ops.kernel_us_sum) DESC, name LIMIT 20
