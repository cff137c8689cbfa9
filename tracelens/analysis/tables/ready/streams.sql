-- What runs on each stream.
SELECT device, stream, count(*) AS kernels, sum(duration_us) / 1e3 AS ms,
       sum(duration_us) FILTER (WHERE is_communication) / 1e3 AS communication_ms, min(start_us) AS first_us, max(start_us + duration_us) AS last_us
FROM kernels GROUP BY device, stream ORDER BY ms DESC, device, stream
