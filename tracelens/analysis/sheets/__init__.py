"""The frames of a report, a file per subject."""
