-- Ops whose kernels took most longer than in the run before, by week.
WITH weekly AS (SELECT trace_device, date_trunc('week', date::DATE) AS week, name, input_dims,
                sum(kernel_us_sum) / sum(operation_count) AS us, sum(operation_count) AS calls
         FROM ops WHERE date IS NOT NULL GROUP BY trace_device, week, name, input_dims),
     changes AS (SELECT *, lag(us) OVER (PARTITION BY trace_device, name, input_dims ORDER BY week) AS before_us FROM weekly)
SELECT week::VARCHAR AS week, trace_device, name, input_dims, before_us, us, 100 * (us / before_us - 1) AS percent
FROM changes WHERE us > before_us ORDER BY calls * (us - before_us) DESC, week, name, input_dims LIMIT 20
