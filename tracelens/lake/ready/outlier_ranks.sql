-- Ranks whose computation in a step takes longer than the median of their run.
WITH own AS (SELECT run, rank, sum(duration_us) AS us FROM kernels WHERE NOT is_communication GROUP BY run, rank)
SELECT run, rank, us / 1e3 AS compute_ms, us / median(us) OVER (PARTITION BY run) AS times_median
FROM own ORDER BY times_median DESC, run, rank LIMIT 20
