-- Single kernels that took longest compared with the median of their name.
SELECT kernel_name, start_us, step, duration_us, median(duration_us) OVER (PARTITION BY kernel_name) AS duration_us_median,
       duration_us / median(duration_us) OVER (PARTITION BY kernel_name) AS times_median
FROM kernels ORDER BY times_median DESC, start_us, kernel LIMIT 20
