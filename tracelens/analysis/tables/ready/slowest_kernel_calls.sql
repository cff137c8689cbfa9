-- Single kernels that took longest compared with the median of their name.
SELECT name, start_us, step, duration_us, median(duration_us) OVER (PARTITION BY name) AS median_us,
       duration_us / median(duration_us) OVER (PARTITION BY name) AS times_median
FROM kernels ORDER BY times_median DESC, start_us, kernel LIMIT 20
