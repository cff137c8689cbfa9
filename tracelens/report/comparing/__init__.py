"""A comparison as files: document, table, workbook, page, and what build servers read of its gates."""
