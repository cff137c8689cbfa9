"""The pages of other answers than a report: the same frame, style and promises."""
