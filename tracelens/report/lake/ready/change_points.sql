-- Where along the git revisions, tags, weeks and runs (six or more) the time of an op's kernels changed its level, up or down, by far more than it differs on either side; the threshold is passed by chance once in a thousand series.
WITH calls AS (
    SELECT trace, axis, place, position, trace_device, rank, name, input_dims, sum(kernel_us_sum) AS total_us,
           sum(kernel_us_sum) / sum(operation_count) AS us
    FROM ops JOIN axes USING (trace) WHERE axis <> 'day' GROUP BY ALL),
     ratios AS (
    SELECT *, us / avg(us) OVER (PARTITION BY axis, trace_device, rank, name, input_dims) AS ratio FROM calls WHERE us > 0),
     levels AS (
    SELECT axis, place, position, trace_device, name, input_dims, avg(ratio) AS ratio, avg(us) AS us, sum(total_us) AS total_us
    FROM ratios GROUP BY ALL),
     splits AS (
    SELECT *, lead(position) OVER series AS next, count(*) OVER series AS n,
           count(*) OVER of_all AS places, avg(ratio) OVER series AS low, sum(ratio) OVER of_all AS whole, avg(us) OVER of_all AS mean_us,
           sum(ratio ** 2) OVER of_all AS squares, sum(total_us) OVER of_all AS all_us
    FROM levels WINDOW series AS (PARTITION BY axis, trace_device, name, input_dims ORDER BY place),
                       of_all AS (PARTITION BY axis, trace_device, name, input_dims)),
     levelled AS (
    SELECT *, (whole - n * low) / (places - n) AS high FROM splits WHERE n < places AND places >= 6),
     tested AS (
    SELECT *, abs(high - low) / sqrt(greatest(squares - n * low ** 2 - (places - n) * high ** 2, 1e-9) / (places - 2)
                                     * (1 / n + 1 / (places - n))) AS times_spread FROM levelled)
SELECT axis, next AS position, position AS before, 100 * (high / low - 1) AS percent, times_spread, places, low * mean_us AS before_us,
       high * mean_us AS us, trace_device, name, input_dims
FROM tested WHERE abs(high / low - 1) > 0.001
QUALIFY row_number() OVER (PARTITION BY axis, trace_device, name, input_dims ORDER BY times_spread DESC, place) = 1
        AND times_spread >= 4.5 + 300 / places ** 2
ORDER BY list_position(['git_revision', 'tag', 'week', 'run'], axis), abs(high - low) * all_us DESC, trace_device, name, input_dims LIMIT 100
