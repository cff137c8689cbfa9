"""What users give and get: tables and documents read, each refusal with its place; safe text; files written whole."""
