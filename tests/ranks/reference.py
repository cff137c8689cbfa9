"""The multi-rank tables, slow and obvious: plain dictionaries and loops over the JSON. Imports nothing of tracelens."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

WIDTHS = {"Float": 4, "BFloat16": 2, "Half": 2, "Float8_e4m3fn": 1, "Long": 8, "Char": 1}


def calls_of(path: Path) -> tuple[int, list[dict]]:
    """(rank, its collective kernels in order of start, in ns)."""
    trace = json.loads(path.read_text())
    found = []
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        if event["ph"] == "X" and event.get("cat") == "kernel" and "Collective name" in args:
            start = round(event["ts"] * 1000)
            found.append({"start": start, "end": start + round(event["dur"] * 1000), **args})
    return trace["distributedInfo"]["rank"], sorted(found, key=lambda call: call["start"])


def compare(paths: list[Path]) -> tuple[list[dict], dict[int, dict]]:
    """(one dictionary per collective, one per rank)."""
    together: dict[tuple, dict[int, dict]] = defaultdict(dict)
    for path in paths:
        rank, calls = calls_of(path)
        order: dict[tuple, int] = defaultdict(int)
        for call in calls:
            group = (call["Process Group Name"], call["Process Group Ranks"])
            together[(*group, order[group])][rank] = call
            order[group] += 1
    collectives = []
    per_rank: dict[int, dict] = defaultdict(
        lambda: {"wait": 0, "last": 0, "first": 0, "cost": 0, "count": 0, "time": 0}
    )
    for (group, members, number), by_rank in together.items():
        arrivals = sorted((call["start"], rank) for rank, call in by_rank.items())
        latest, last = arrivals[-1]
        shortest = min(call["end"] - call["start"] for call in by_rank.values())
        example = by_rank[min(by_rank)]
        name, n = example["Collective name"], example["Group size"]
        width = WIDTHS[example["dtype"]]
        if name == "all_to_allv":
            full = sum(call["In msg nelems"] for call in by_rank.values()) / len(by_rank) * width
        elif "gather" in name:
            full = example["Out msg nelems"] * width
        else:
            full = example["In msg nelems"] * width
        factor = (
            2 * (n - 1) / n if name.startswith("allreduce") else 1.0 if name in ("broadcast", "reduce") else (n - 1) / n
        )
        collectives.append(
            {
                "group": group, "members": members, "number": number, "name": name, "latency_us": shortest / 1000,
                "skew_us": (latest - arrivals[0][0]) / 1000,
                "end_skew_us": (max(c["end"] for c in by_rank.values()) - min(c["end"] for c in by_rank.values())) / 1000,
                "wait_us": sum(min(latest - c["start"], c["end"] - c["start"]) for c in by_rank.values()) / len(by_rank) / 1000,
                "bus_gb_s": full / (shortest / 1000) / 1000 * factor, "last": last, "first": arrivals[0][1],
            }
        )  # fmt: skip
        for rank, call in by_rank.items():
            mine = per_rank[rank]
            mine["wait"] += min(latest - call["start"], call["end"] - call["start"])
            mine["count"] += 1
            mine["time"] += call["end"] - call["start"]
        if latest > arrivals[0][0]:
            per_rank[last]["last"] += 1
            per_rank[last]["cost"] += latest - arrivals[-2][0]
            per_rank[arrivals[0][1]]["first"] += 1
    return collectives, dict(per_rank)
