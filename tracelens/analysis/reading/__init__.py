"""What was recorded, made complete: perf models of calls, ops inside ops, graph replays, groups of ranks."""
