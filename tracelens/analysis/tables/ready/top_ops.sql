-- Ops by device time, with what they reach of the roofline.
SELECT name, category, sum(operation_count) AS calls, sum(kernel_us_sum) / 1e3 AS kernel_ms,
       sum(percent_of_roofline_mean * kernel_us_sum) / sum(kernel_us_sum) FILTER (WHERE percent_of_roofline_mean IS NOT NULL) AS percent_of_roofline
FROM ops GROUP BY name, category ORDER BY kernel_ms DESC, name LIMIT 20
