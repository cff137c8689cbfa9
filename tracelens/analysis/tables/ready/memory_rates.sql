-- Ops that move data: HBM rate reached and share of the roofline.
SELECT name, input_dims, operation_count, hbm_mb, hbm_tb_s_mean, percent_of_roofline_mean
FROM ops WHERE roofline_bound = 'memory' ORDER BY kernel_us_sum DESC, name, input_dims LIMIT 30
