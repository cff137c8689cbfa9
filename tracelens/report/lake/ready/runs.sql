-- Every run: ranks, steps, the median step and its busy share.
SELECT run, min(date) AS date, min(git_revision) AS git_revision, min(tag) AS tag, min(trace_device) AS device,
       count(DISTINCT trace) AS traces, count(*) AS steps, median(duration_us) AS step_us_median,
       100 * sum(busy_us) / sum(duration_us) AS busy_percent
FROM steps WHERE step IS NOT NULL AND complete GROUP BY run ORDER BY date, run
