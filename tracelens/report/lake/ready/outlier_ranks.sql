-- Ranks whose computation in a step takes longest beside the median of their run.
WITH own AS (SELECT run, rank, sum(duration_us) / greatest(count(DISTINCT step), 1) AS us
             FROM kernels WHERE NOT is_communication GROUP BY run, rank)
SELECT run, rank, us AS computation_us, us / median(us) OVER (PARTITION BY run) AS times_median
FROM own QUALIFY count(*) OVER (PARTITION BY run) > 1 ORDER BY times_median DESC, run, rank LIMIT 20
