-- Ops by device time over all traces.
SELECT name, category, count(DISTINCT trace) AS traces, sum(operation_count) AS calls, sum(kernel_us_sum) / 1e3 AS kernel_ms
FROM ops GROUP BY name, category ORDER BY kernel_ms DESC, name LIMIT 20
