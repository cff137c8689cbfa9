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
    late: list[tuple] = []
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
            late.append((latest, last, (group, members), by_rank))
            per_rank[arrivals[0][1]]["first"] += 1
    for rank, cost in own_costs(together, late).items():
        per_rank[rank]["cost"] = cost
    return collectives, dict(per_rank)


def own_costs(together: dict[tuple, dict[int, dict]], late: list[tuple]) -> dict[int, int]:
    """What each rank cost by coming late, in ns, walking through the job in order of time."""
    history: dict[int, list[tuple]] = defaultdict(list)
    for (*channel, _), by_rank in together.items():
        latest = max(call["start"] for call in by_rank.values())
        for rank, call in by_rank.items():
            history[rank].append((call["start"], call["end"], min(latest, call["end"]), tuple(channel)))
    charged: list[tuple[int, int, int, frozenset]] = []
    for latest, last, channel, by_rank in sorted(late, key=lambda entry: entry[:2]):
        before = {
            rank: max(
                (end for start, end, _, own in history[rank] if own == channel and start < call["start"]), default=-1
            )
            for rank, call in by_rank.items()
        }

        def arrived(rank: int, before=before, by_rank=by_rank) -> int:
            """When it would have come without having waited for anyone since the last call of this group."""
            start = by_rank[rank]["start"]
            return start - sum(
                max(0, min(until, start) - max(begin, before[rank]))
                for begin, _, until, _ in history[rank]
                if begin < start
            )

        def blamed(rank: int, before=before, by_rank=by_rank, last=last) -> int:
            """What the last one made this rank wait since then, until it came."""
            until = by_rank[rank]["start"]
            return sum(
                ns for at, who, ns, ranks in charged if who == last and before[rank] < at <= until and rank in ranks
            )

        others = [rank for rank in by_rank if rank != last]
        own = arrived(last) - max(arrived(rank) for rank in others)
        saved = latest - max(by_rank[rank]["start"] - blamed(rank) for rank in others)
        cost = min(own, saved) - blamed(last)
        if cost > 0:
            charged.append((latest, last, cost, frozenset(by_rank)))
    total: dict[int, int] = defaultdict(int)
    for _, rank, cost, _ in charged:
        total[rank] += cost
    return total
