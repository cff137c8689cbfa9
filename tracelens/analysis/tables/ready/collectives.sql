-- Collectives: time, sizes and bus bandwidth.
SELECT collective, group_name, group_size, dtype, operation_count, duration_us_mean, in_mb, out_mb, effective_bus_gb_s
FROM collectives ORDER BY duration_us_sum DESC, collective, group_name, in_nelems
