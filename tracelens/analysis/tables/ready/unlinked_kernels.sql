-- Kernels that no op is known to have launched.
SELECT name, count(*) AS kernels, sum(duration_us) AS us FROM kernels WHERE op IS NULL GROUP BY name ORDER BY us DESC, name
