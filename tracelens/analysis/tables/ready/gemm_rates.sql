-- GEMMs by shape and type: rate reached, and what limits them.
SELECT input_dims, input_types, operation_count, tflops_s_mean, percent_of_roofline_mean, roofline_bound
FROM ops WHERE model LIKE '%GEMM%' ORDER BY kernel_us_sum DESC, input_dims LIMIT 30
