"""What changed between two recordings of a workload, and why."""
