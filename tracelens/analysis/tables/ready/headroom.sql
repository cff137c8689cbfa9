-- Op calls with most time above their roofline.
SELECT name, input_dims, operation_count, kernel_us_mean, roofline_us, roofline_bound,
       operation_count * (kernel_us_mean - roofline_us) AS above_roofline_us
FROM ops WHERE kernel_us_mean > roofline_us ORDER BY above_roofline_us DESC, name, input_dims LIMIT 20
