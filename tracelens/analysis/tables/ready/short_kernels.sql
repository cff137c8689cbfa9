-- Ops by kernels shorter than 10 µs.
SELECT parent_op, count(*) AS kernels, sum(duration_us) AS duration_us_sum FROM kernels
WHERE duration_us < 10 GROUP BY parent_op ORDER BY kernels DESC, parent_op LIMIT 20
