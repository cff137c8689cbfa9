-- Kernels that no op is known to have launched.
SELECT kernel_name, count(*) AS kernels, sum(duration_us) AS duration_us_sum FROM kernels WHERE parent_op IS NULL GROUP BY kernel_name ORDER BY duration_us_sum DESC, kernel_name
