-- Device time by category and its share.
SELECT category, sum(kernel_us_sum) AS kernel_us_sum, 100 * sum(kernel_us_sum) / sum(sum(kernel_us_sum)) OVER () AS percent
FROM ops GROUP BY category ORDER BY sum(ops.kernel_us_sum) DESC, category
