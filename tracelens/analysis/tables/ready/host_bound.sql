-- Outermost calls whose host code ran longer than the kernels it launched.
SELECT name, count(*) AS calls, sum(duration_us) AS host_us, sum(kernel_us) AS kernel_us
FROM calls WHERE parent IS NULL AND duration_us > kernel_us GROUP BY name ORDER BY sum(calls.duration_us) - sum(calls.kernel_us) DESC, name LIMIT 20
