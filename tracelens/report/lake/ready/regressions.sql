-- Of each week, the five ops whose kernels took most longer than in the week before, per call of the same shapes.
WITH weekly AS (SELECT trace_device, date_trunc('week', date::DATE)::DATE AS week, name, input_dims,
                sum(kernel_us_sum) / sum(operation_count) AS us, sum(operation_count) AS calls
         FROM ops WHERE date IS NOT NULL GROUP BY trace_device, week, name, input_dims),
     changes AS (SELECT *, lag(us) OVER (PARTITION BY trace_device, name, input_dims ORDER BY week) AS before_us FROM weekly)
SELECT week::VARCHAR AS week, trace_device, name, input_dims, before_us, us, 100 * (us / before_us - 1) AS percent
FROM changes WHERE us > before_us
QUALIFY row_number() OVER (PARTITION BY week ORDER BY calls * (us - before_us) DESC, trace_device, name, input_dims) <= 5
ORDER BY week DESC, calls * (us - before_us) DESC, trace_device, name, input_dims
