"""A routing's answer as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelens.routing.route_result import RouteResult


#: What a reader should know of times that no measurement stands behind.
UNMEASURED = (
    "expected error unknown: links at their rates, without a library's kernels; "
    "`tracelens estimate ep` has DeepEP's, measured"
)
#: The same of a mesh, whose links and delays are the original simulator's.
MESH = (
    "packets on a full mesh with the parameters of the original simulator, not a network of today: "
    "give --cluster, e.g. dgx-h100"
)


def route_text(result: RouteResult) -> str:
    """Loads, the time of each phase, what an uneven load costs, and what EPLB would gain."""
    s = result.summary
    reach = f"a token goes to {s['mean_ranks']:.2f} ranks on {s['mean_nodes']:.2f} nodes on average"
    busiest = f"busiest expert {s['expert_imbalance']:.2f} x, busiest rank {s['rank_imbalance']:.2f} x the mean"
    lines = [
        f"{s['tokens']:,} tokens, top {s['topk']} of {s['experts']} experts on {s['ranks']} ranks: {reach}",
        f"{busiest}; {100 * s['remote_share']:.1f} % of the traffic leaves its rank",
    ]
    if s["dropped_share"]:
        lines.append(f"{100 * s['dropped_share']:.1f} % of the routings are dropped")
    if "time_ms" in s:
        lines.append(
            f"dispatch {s['time_ms']:.2f} ms, {s['rounds']} rounds, {s['packets']:,} packets, "
            f"{s['moved_bytes']:,.0f} bytes moved, {s['local_bytes']:,.0f} local ({s['rules']} rules)"
        )
        lines.append(f"an even load would take {s['even_ms']:.2f} ms{_by_formula(s)}")
        if "combine_ms" in s:
            lines.append(f"combine {s['combine_ms']:.2f} ms")
        if s["layers"] > 1:
            lines.append(f"{s['layers']} layers {s['layers_ms']:.2f} ms")
        lines.append(MESH)
        return "\n".join(lines)
    for row in result.frames["phases"].to_dict(orient="records"):
        lines.append(
            f"{row['phase']:8} {row['time_us']:,.1f} µs in {row['dtype']}; GB/s per rank: effective "
            f"{row['logical_effective_gb_s']:.1f} logical "
            f"and {row['remote_effective_gb_s']:.1f} remote-only; true {row['logical_true_gb_s']:.1f} and "
            f"{row['remote_true_gb_s']:.1f}; bottleneck {row['hottest']}"
        )
        if row.get("collective_us"):
            lines.append(f"         all-to-all ({row['collective']}): {row['collective_us']:,.1f} µs")
    lines.append(f"imbalance costs {s['imbalance_us']:,.1f} µs of dispatch and combine")
    gain = s["eplb_gain_us"]
    lines.append(
        f"EPLB with {s['eplb_slots']} slots: busiest rank {s['eplb_rank_imbalance']:.2f} x, "
        f"{'gains' if gain >= 0 else 'costs'} {abs(gain):,.1f} µs"
    )
    lines.append(UNMEASURED)
    if "layers_us" in s:
        lines.append(f"all layers and steps {s['layers_us']:,.1f} µs")
    if "comparison" in result.frames:
        lines += _compared_lines(result)
    return "\n".join(lines)


def _by_formula(s: dict[str, Any]) -> str:
    """The closed form beside the simulation, and under the original's rules the one that its text prints as well."""
    if "formula_ms" not in s:
        return ""
    at_least = "" if s["formula_is_exact"] else " at least, its conditions do not hold:"
    rounds = f"{s['formula_rounds']:.4g} rounds of {s['formula_round_ms']:.4g} ms"
    text = f"; by the closed form{at_least} {s['formula_ms']:.2f} ms ({rounds})"
    if "printed_ms" in s:
        text += (
            f"; the original's text also prints rounds of {s['printed_round_ms']:.4g} ms, "
            f"in all {s['printed_ms']:.2f} ms, which its simulation contradicts"
        )
    return text


def _compared_lines(result: RouteResult) -> list[str]:
    """One line per op: the mean over its calls in all traces; a call without sizes has no prediction."""
    from tracelens.files.safe_text import terminal_text

    lines = []
    for op, rows in result.frames["comparison"].groupby("op", sort=True):
        sized = rows[rows.predicted_us.notna()]
        shown = rows if sized.empty else sized
        calls = shown.calls.sum()
        measured, predicted = ((shown[f"{name}_us"] * shown.calls).sum() / calls for name in ("measured", "predicted"))
        lines.append(
            f"{terminal_text(str(op))}: {calls} calls in {shown.trace.nunique()} traces, measured {measured:,.1f} µs "
            f"(waiting included), "
            + (
                "not predicted: no sizes"
                if sized.empty
                else f"predicted {predicted:,.1f} µs, {measured / predicted:.2f} x"
            )
        )
    return lines
