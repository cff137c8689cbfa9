"""A routing result as JSON, as a workbook, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import pandas as pd

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.json_bytes import encoded
from tracelens.report.charts.route_picture import MOST_CELLS, picture
from tracelens.report.export import tables_xlsx
from tracelens.routing.route_result import RouteResult

#: Of a larger traffic matrix as many pairs are written.
_MOST_PAIRS = 10_000


def route_json(result: RouteResult) -> str:
    """All figures and frames; the traffic matrix in bytes."""
    return encoded(result.to_dict(), orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2).decode()


def write_route(result: RouteResult, path: Path) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending. UsageError for another ending."""
    write_whole(path, _WRITERS[refuse_unknown([path])[0]](result))


def refuse_unknown(paths: Sequence[Path]) -> list[str]:
    """The endings of ``paths``; UsageError for one that nothing writes."""
    for path in paths:
        if path.suffix not in _WRITERS:
            raise UsageError(f"{path}: the name of a routing result must end in {', '.join(_WRITERS)}")
    return [path.suffix for path in paths]


def _json(result: RouteResult) -> bytes:
    return route_json(result).encode() + b"\n"


def _xlsx(result: RouteResult) -> bytes:
    """One sheet per frame, the summary first, the traffic last."""
    rows = [(key, value, MEANINGS.get(key, "")) for key, value in result.summary.items()]
    summary = pd.DataFrame(rows, columns=["figure", "value", "meaning"], dtype=object)
    return tables_xlsx({"summary": summary, **result.frames, "traffic_bytes": _traffic_frame(result)}, MEANINGS)


def _traffic_frame(result: RouteResult) -> pd.DataFrame:
    """The matrix; of more than ``MOST_CELLS`` ranks the pairs with most bytes."""
    matrix = result.traffic.wire_bytes
    if len(matrix) <= MOST_CELLS:
        traffic = pd.DataFrame(matrix, columns=[f"to {rank}" for rank in range(len(matrix))])
        traffic.insert(0, "from", [f"rank {rank}" for rank in range(len(matrix))])
        return traffic
    source, target = np.nonzero(matrix >= np.partition(matrix.ravel(), -_MOST_PAIRS)[-_MOST_PAIRS])
    return pd.DataFrame({"from": source, "to": target, "bytes": matrix[source, target]})


def _html(result: RouteResult) -> bytes:
    from tracelens.report.pages.route_page import route_page

    return route_page(result)


def _svg(result: RouteResult) -> bytes:
    return picture(result).encode()


#: Figures and columns of a routing result. Times in the unit of their key, rates per rank in GB/s (1e9 bytes).
MEANINGS = {
    "tokens": "Tokens of all ranks.",
    "topk": "Experts that each token goes to.",
    "dropped_share": "Share of the routings that full experts refused (--capacity).",
    "expert_imbalance": "Routings of the busiest expert over the mean.",
    "busiest_tenth_share": "Share of all routings that the busiest tenth of the experts gets.",
    "mean_ranks": "Distinct ranks that a token goes to, its own included.",
    "mean_nodes": "Distinct nodes that a token goes to, its own included.",
    "remote_share": "Share of the dispatched bytes that leaves its rank.",
    "rank_imbalance": "Routings of the busiest rank over the mean: what its experts multiply.",
    "received_imbalance": "Copies (mesh: bytes) that arrive at the busiest rank over the mean: what its links carry.",
    "dispatch_us": "Time until the last packet of the dispatch has arrived.",
    "combine_us": "Time until the last packet of the combine has arrived.",
    "even_us": "Bottleneck of both phases if the same copies were spread evenly.",
    "imbalance_us": "Bottleneck of both phases less that of an even load.",
    "expected_error_percent": "How far measured exchanges were from such times; empty: none was measured.",
    "hottest": "The port that has most to do: its kind, and the number of its rank or card.",
    "hottest_us": "How long that port is busy at its full rate.",
    "eplb_slots": "Physical experts after EPLB's replication.",
    "eplb_rank_imbalance": "Routings of the busiest rank over the mean with EPLB's placement.",
    "eplb_us": "Bottleneck of both phases with EPLB's placement.",
    "eplb_gain_us": "Bottleneck of both phases less eplb_us; below 0 EPLB costs time.",
    "way": "Copies: hierarchical one per destination node, forwarded there; direct one per rank; per-expert one each.",
    "layers_us": "Bottlenecks of all layers and steps, both phases.",
    "layers_ms": "Time of all layers, both phases.",
    "time_ms": "Time until the last packet has arrived.",
    "time_us": "Time until the last packet has arrived.",
    "even_ms": "Time of an even load of as many bytes.",
    "imbalance_ms": "time_ms less even_ms.",
    "formula_ms": "The same load by the closed form: initial delay + formula_round_ms x formula_rounds.",
    "formula_rounds": "Rounds of an even load: bytes per rank x ranks / (links x pairs x rate).",
    "formula_round_ms": "Base delay + packets that fill a link x (preparation + packet / rate).",
    "formula_is_exact": "Whether the closed form's conditions hold; else it is a lower bound.",
    "printed_round_ms": "Round time by the other formula of the original's text, which its simulation contradicts.",
    "printed_ms": "printed_round_ms x formula_rounds; the initial delay is in every round.",
    "combine_ms": "Time of the combine.",
    "rounds": "Rounds of the mesh.",
    "packets": "Packets sent.",
    "packet_bytes": "Largest packet.",
    "moved_bytes": "Bytes that left their rank.",
    "local_bytes": "Bytes that stayed on their rank.",
    "dtype": "Type of a token's elements on the wire.",
    "copy_bytes": "Bytes of one copy of a token: elements, scales, metadata.",
    "bottleneck_us": "The busiest port at its full rate, and one hop: a lower bound of the time.",
    "logical_effective_gb_s": "All copies, local ones included, over the time.",
    "remote_effective_gb_s": "Copies that left their rank, over the time.",
    "logical_true_gb_s": "All copies, local ones included, over the busiest port's own time.",
    "remote_true_gb_s": "Copies that left their rank, over the busiest port's own time.",
    "collective_us": "An even all-to-all of the busiest sender's bytes by the cluster's collective algorithms.",
    "routings": "Choices of tokens that fall on it.",
    "routings_eplb": "The same with EPLB's placement.",
    "tokens_received": "Tokens that arrive, each counted once.",
    "sent_bytes": "Bytes to other ranks.",
    "received_bytes": "Bytes from other ranks.",
    "replicas_eplb": "Slots that EPLB gives the expert.",
    "calls": "Calls of the op in the trace.",
    "wire_mb": "Rows that the op was given, 1e6 bytes.",
    "measured_us": "Mean time of the op's kernels, waiting for the slowest rank included.",
    "predicted_us": "The phase's time, scaled by the op's bytes over those of a rank in the phase.",
}

_WRITERS: dict[str, Callable[[RouteResult], bytes]] = {".json": _json, ".xlsx": _xlsx, ".svg": _svg, ".html": _html}
