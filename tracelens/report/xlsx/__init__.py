"""The workbook of a report."""
