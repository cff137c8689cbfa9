"""What a report says first: coverage, single figures, findings."""
