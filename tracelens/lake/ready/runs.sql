-- Every run: ranks, steps, the median step and its busy share.
SELECT run, min(date) AS date, min(git_revision) AS git_revision, min(trace_device) AS device, count(DISTINCT trace) AS traces,
       count(*) AS steps, median(duration_us) / 1e3 AS step_ms, 100 * sum(busy_us) / sum(duration_us) AS percent_busy
FROM steps WHERE step IS NOT NULL AND complete GROUP BY run ORDER BY date, run
