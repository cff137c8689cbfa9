-- What runs on each stream.
SELECT device, stream, count(*) AS kernels, sum(duration_us) AS duration_us_sum,
       sum(duration_us) FILTER (WHERE is_communication) AS communication_us, min(start_us) AS start_us, max(start_us + duration_us) AS end_us
FROM kernels GROUP BY device, stream ORDER BY duration_us_sum DESC, device, stream
