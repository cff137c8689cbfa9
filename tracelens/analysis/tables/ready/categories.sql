-- Device time by category and its share.
SELECT category, sum(kernel_us_sum) / 1e3 AS kernel_ms, 100 * sum(kernel_us_sum) / sum(sum(kernel_us_sum)) OVER () AS percent
FROM ops GROUP BY category ORDER BY kernel_ms DESC, category
