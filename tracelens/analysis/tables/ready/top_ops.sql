-- Ops by device time, with what they reach of the roofline.
SELECT name, category, sum(operation_count) AS operation_count, sum(kernel_us_sum) AS kernel_us_sum,
       sum(ops.percent_of_roofline_mean * ops.kernel_us_sum) / sum(ops.kernel_us_sum) FILTER (WHERE ops.percent_of_roofline_mean IS NOT NULL) AS percent_of_roofline_mean
FROM ops GROUP BY name, category ORDER BY sum(ops.kernel_us_sum) DESC, name LIMIT 20
