-- Device time of each category, step by step.
SELECT step, category, count(*) AS kernels, sum(duration_us) / 1e3 AS ms
FROM kernels WHERE step IS NOT NULL GROUP BY step, category ORDER BY step, ms DESC, category
