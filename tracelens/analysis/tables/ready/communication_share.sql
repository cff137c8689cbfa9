-- Share of device time in communication and copies, step by step.
SELECT step, sum(duration_us) / 1e3 AS ms, 100 * coalesce(sum(duration_us) FILTER (WHERE is_communication), 0) / sum(duration_us) AS percent_communication,
       100 * coalesce(sum(duration_us) FILTER (WHERE is_memcpy), 0) / sum(duration_us) AS percent_memcpy
FROM kernels GROUP BY step ORDER BY step
