"""From the bytes of a trace file to the columns of a table, piece by piece."""
