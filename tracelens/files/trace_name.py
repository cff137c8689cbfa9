"""What a trace is called: its file's name without what only says the format."""

from __future__ import annotations


def trace_name(file: str) -> str:
    """
    >>> trace_name("Qwen1.5__2.pt.trace.json.gz"), trace_name(".json")
    ('Qwen1.5__2', '.json')
    """
    name = file
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or file
