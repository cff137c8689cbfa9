-- Device time of each category, step by step.
SELECT step, category, count(*) AS kernels, sum(duration_us) AS duration_us_sum
FROM kernels WHERE step IS NOT NULL GROUP BY step, category ORDER BY step, duration_us_sum DESC, category
