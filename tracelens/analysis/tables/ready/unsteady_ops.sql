-- Op calls whose time varies most from call to call.
SELECT name, input_dims, operation_count, kernel_us_mean, kernel_us_std, kernel_us_std / kernel_us_mean AS variation
FROM ops WHERE operation_count > 2 AND kernel_us_std > 0 ORDER BY variation DESC, name, input_dims LIMIT 20
