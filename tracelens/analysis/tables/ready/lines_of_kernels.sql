-- The longest kernels with the op, module and line of Python (outside of PyTorch) that launched them; record stacks for the last two.
WITH launched AS (SELECT name, parent_module, call_stack, kernel_us_sum, kernel_details_short,
                  [frame FOR frame IN string_split(call_stack, ' <- ') IF NOT regexp_matches(frame, '^(torch/|<)')][1] AS line FROM ops)
SELECT arg_max(kernel_details_short, kernel_us_sum) AS kernels, name AS op, parent_module AS module, line, sum(kernel_us_sum) AS kernel_us_sum
FROM launched GROUP BY name, parent_module, line ORDER BY sum(kernel_us_sum) DESC, name, parent_module, line LIMIT 15
