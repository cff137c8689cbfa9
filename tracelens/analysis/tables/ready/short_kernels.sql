-- Ops by kernels shorter than 10 µs.
SELECT op, count(*) AS kernels, sum(duration_us) AS us FROM kernels
WHERE duration_us < 10 GROUP BY op ORDER BY kernels DESC, op LIMIT 20
