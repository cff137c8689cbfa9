-- Share of device time in communication and copies, step by step.
SELECT step, sum(duration_us) AS duration_us_sum, 100 * coalesce(sum(duration_us) FILTER (WHERE is_communication), 0) / sum(duration_us) AS communication_percent,
       100 * coalesce(sum(duration_us) FILTER (WHERE is_memcpy), 0) / sum(duration_us) AS memcpy_percent
FROM kernels GROUP BY step ORDER BY step
