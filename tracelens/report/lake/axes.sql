-- Where each trace stands on what a lake is followed along: by when recording began, or, where that is the same or unknown, by the traces' names in natural order.
WITH placed AS (
    SELECT trace, trace_device, began, unnest(['day', 'week', 'git_revision', 'tag', 'run']) AS axis,
           unnest([date, strftime(date_trunc('week', TRY_CAST(date AS DATE)), '%Y-%m-%d'), git_revision, tag, run]) AS position,
           regexp_replace(regexp_replace(trace, '(\d+)', '0000000000\1', 'g'), '\d*(\d{10})', '\1', 'g') AS named
    FROM traces),
     firsts AS (
    SELECT *, min(began) OVER at_place AS first_began, min(named) OVER at_place AS first_named
    FROM placed WHERE position IS NOT NULL WINDOW at_place AS (PARTITION BY axis, trace_device, position))
SELECT axis, position, trace,
       dense_rank() OVER (PARTITION BY axis, trace_device ORDER BY first_began NULLS LAST, first_named, position) AS place
FROM firsts
