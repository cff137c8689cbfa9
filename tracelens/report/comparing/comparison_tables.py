"""A comparison as tables and as a workbook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.report.export import tables_xlsx

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.comparison.compared import ComparedRow, Comparison, RankChange, RowSide

#: Kernels of a row that its cell names.
_MOST_KERNELS = 5
#: What a column of ``rows`` means; those of a side stand once for A and once for B.
MEANINGS = {
    "change_ms": "Part of the step in B minus that in A; the column adds up to the change of the step exactly.",
    "low_ms": "The change is at least this, with 99 % confidence, by the spread of the steps.",
    "high_ms": "The change is at most this, with 99 % confidence, by the spread of the steps.",
    "match": "How the calls were found to be the same: by what they are, or by where they stand.",
    "cause": "What changed, in one word.",
    "why": "What changed, in a few words.",
    "of_ranks_ms": "Mean change of the ranks that alone changed (sheet ranks), in rows that are theirs.",
    "alone": "Whether this rank, or few, changed while the others are as before.",
    "a_own_ms": "Of a step of A, outside of collectives: what the rank computes and copies, and its idle time.",
    "b_own_ms": "The same of B.",
    "a_exposed_ms": "Of a step of A, the time in which it did nothing but communicate or wait for others in that.",
    "b_exposed_ms": "The same of B.",
    "module": "Classes of the modules around the calls, outermost first.",
}
_OF_SIDE = {
    "ops": "Ops, or kernels that stand for themselves.",
    "calls": "Calls per step.",
    "ms": "Part of the step: every moment belongs to one op, or is idle.",
    "kernel_ms": "Summed time of the kernels per step, hidden ones included.",
    "kernels": "Kernels per step, the longest first.",
    "shapes": "Recorded shapes.",
    "dtypes": "Recorded types.",
    "tflops_s": "FLOPs over kernel time, of calls of known work.",
    "hbm_tb_s": "Least bytes of device memory over kernel time, of calls of known work.",
    "percent_of_roofline": "Roofline time over kernel time, of calls of known work.",
}


def comparison_tables(found: Comparison) -> dict[str, pd.DataFrame]:
    """``changes``, ``rows``, ``unchanged``, ``sides``, and ``ranks`` and ``gates`` where there are any."""
    import pandas as pd

    sides: list[tuple[Any, ...]] = [("step_ms", found.a.step_ms, found.b.step_ms), ("change_ms", None, found.change_ms)]
    sides += [(key, getattr(found.a, key), getattr(found.b, key)) for key in _SIDE_KEYS]
    sides += [("matched_share", *found.matched_share), *(("note", note, None) for note in found.notes)]
    changes = [
        {"change_ms": c.change_ms, "what": c.text, "cause": c.cause, "low_ms": c.low_ms, "high_ms": c.high_ms,
         "rows": ", ".join(str(at + 2) for at in c.rows)}
        for c in found.changes
    ]  # fmt: skip
    tables = {
        "changes": pd.DataFrame(changes, columns=["change_ms", "what", "cause", "low_ms", "high_ms", "rows"]),
        "rows": pd.DataFrame([_row(row) for row in found.rows], columns=_COLUMNS),
        "unchanged": pd.DataFrame([_row(row) for row in found.unchanged], columns=_COLUMNS),
        "sides": pd.DataFrame(sides, columns=["what", "A", "B"], dtype=object),
    }
    if found.ranks:
        tables["ranks"] = pd.DataFrame([_rank(rank) for rank in found.ranks])
    if found.gates:
        gates = [(g.gate, "passed" if g.passed else "failed", g.value, g.unit, g.text) for g in found.gates]
        tables["gates"] = pd.DataFrame(gates, columns=["gate", "result", "change", "unit", "text"])
    return tables


_SIDE_KEYS = ("name", "device", "torch", "files", "ranks", "runs", "steps", "kernel_ms", "busy_ms", "coverage")
_SHARED = ("change_ms", "low_ms", "high_ms", "name", "category", "match", "cause", "why", "module", "of_ranks_ms")
_COLUMNS = [*_SHARED, *(f"{side}_{key}" for key in _OF_SIDE for side in "ab")]


def _rank(rank: RankChange) -> dict[str, Any]:
    return {
        "rank": rank.rank, "change_ms": rank.change_ms, "low_ms": rank.low_ms, "high_ms": rank.high_ms,
        "a_own_ms": rank.a_own_ms, "b_own_ms": rank.b_own_ms, "a_exposed_ms": rank.a_exposed_ms,
        "b_exposed_ms": rank.b_exposed_ms, "alone": "yes" if rank.is_alone else "no",
    }  # fmt: skip


def _row(row: ComparedRow) -> dict[str, Any]:
    shared = {key: getattr(row, key) for key in _SHARED}
    return shared | {
        f"{name}_{key}": cell(side, key) for name, side in (("a", row.a), ("b", row.b)) for key in _OF_SIDE
    }


def cell(side: RowSide | None, key: str) -> Any:
    """A figure of a side as a table shows it; None where it has none."""
    if side is None:
        return None
    if key == "kernels":
        return "; ".join(f"{k.name} x{k.count:g} {1e3 * k.ms:.2f} µs" for k in side.kernels[:_MOST_KERNELS])
    if key == "percent_of_roofline":
        return None if side.of_roofline is None else 100 * side.of_roofline
    value = getattr(side, key)
    return ", ".join(value) if isinstance(value, tuple) else value


def comparison_xlsx(found: Comparison) -> bytes:
    """The workbook; the same comparison gives the same bytes."""
    meanings = MEANINGS | {f"{side}_{key}": text for key, text in _OF_SIDE.items() for side in "ab"}
    return tables_xlsx(comparison_tables(found), meanings)
