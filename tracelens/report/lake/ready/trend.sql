-- The step's time from day to day, and from git revision, tag and run to the next, per device.
SELECT axis, position, trace_device, count(DISTINCT run) AS runs, median(duration_us) AS step_us_median
FROM steps JOIN axes USING (trace) WHERE axis <> 'week' AND step IS NOT NULL AND complete
GROUP BY axis, place, position, trace_device
ORDER BY list_position(['day', 'git_revision', 'tag', 'run'], axis), place, position, trace_device
