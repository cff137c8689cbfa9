-- The longest idle spans of a stream, and the kernel after each.
SELECT device, stream, gap_before_us, start_us, kernel_name AS kernel_after, parent_op AS op_after
FROM kernels WHERE gap_before_us > 0 ORDER BY gap_before_us DESC, start_us, kernel LIMIT 20
