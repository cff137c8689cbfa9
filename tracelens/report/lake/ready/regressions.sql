-- Of each git revision, tag, week and run, the five ops whose kernels took most longer than in the one before it, per call of the same shapes on the same ranks; beyond four times what traces of one revision differ by, where that is known.
WITH calls AS (
    SELECT trace, axis, place, position, coalesce(git_revision, position) AS version, trace_device, rank, name, input_dims,
           sum(kernel_us_sum) / sum(operation_count) AS us, sum(operation_count) AS calls
    FROM ops JOIN axes USING (trace) WHERE axis <> 'day' GROUP BY ALL),
     repeats AS (
    SELECT *, (us - avg(us) OVER alike) ** 2 AS squares, 1 - 1 / count(*) OVER alike AS freedom
    FROM calls WINDOW alike AS (PARTITION BY axis, version, trace_device, rank, name, input_dims)),
     levels AS (
    SELECT axis, place, position, trace_device, rank, name, input_dims, sum(us * calls) / sum(calls) AS us, sum(calls) AS calls,
           count(*) AS traces, sum(squares) AS squares, sum(freedom) AS freedom
    FROM repeats GROUP BY ALL),
     neighbours AS (
    SELECT *, lag(us) OVER series AS before_us, lag(position) OVER series AS before, lag(traces) OVER series AS before_traces,
           sum(squares) OVER of_all / nullif(sum(freedom) OVER of_all, 0) AS variance
    FROM levels WINDOW series AS (PARTITION BY axis, trace_device, rank, name, input_dims ORDER BY place),
                       of_all AS (PARTITION BY axis, trace_device, name, input_dims)),
     changes AS (
    SELECT axis, place, position, max(before) AS before, trace_device, name, input_dims, sum(before_us * calls) / sum(calls) AS before_us,
           sum(us * calls) / sum(calls) AS us, sum(calls) AS calls,
           sqrt(any_value(variance) * (1 / sum(traces) + 1 / sum(before_traces))) AS chance_us
    FROM neighbours WHERE before_us > 0 GROUP BY axis, place, position, trace_device, name, input_dims)
SELECT axis, position, before, 100 * (us / before_us - 1) AS percent, CASE WHEN chance_us > 1e-9 * us THEN (us - before_us) / chance_us END AS times_chance, before_us, us,
       trace_device, name, input_dims
FROM changes WHERE us > 1.001 * before_us AND (chance_us IS NULL OR us - before_us >= 4 * chance_us)
QUALIFY row_number() OVER (PARTITION BY axis, position ORDER BY calls * (us - before_us) DESC, trace_device, name, input_dims) <= 5
ORDER BY list_position(['git_revision', 'tag', 'week', 'run'], axis), place DESC, calls * (us - before_us) DESC, trace_device, name,
         input_dims LIMIT 200
