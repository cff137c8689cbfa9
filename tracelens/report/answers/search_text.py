"""A search's answer as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.projection.search.request import Answer

_SHOWN = (
    "strategy", "n_gpus", "throughput", "t", "mem", "tp1", "tp2", "pp", "vpp", "dp", "ep", "mbs", "zero", "recompute",
    "precision", "nb", "nv_tp1", "nv_tp2", "nv_dp", "nv_pp", "usd_per_mtoken", "j_per_token",
)  # fmt: skip
#: Shown only where some row differs from this.
_USUAL: dict[str, Any] = {"tp2": 1, "vpp": 1, "ep": 1, "precision": "bf16", "nv_tp2": 1, "recompute": "none"}
_PARTS = {
    "t_comp": "computing", "t_mem": "memory-bound operations", "t_tp_comm": "tensor and context communication",
    "t_ep_comm": "expert exchanges", "t_recompute": "recomputation", "t_host": "the host",
    "t_pp_comm": "transfers between stages", "t_bubble": "the pipeline bubble", "t_dp_comm": "weights and gradients",
    "t_optimizer": "the optimizer",
}  # fmt: skip


def search_text(found: Answer, *, pareto: bool = False, explain: int | None = None) -> str:
    """The best per device count, why the winner wins, and on request the front and every operation of one row."""
    lines = [*_asked(found), ""]
    if len(found.table):
        lines += [_table(found.best.sort_values("n_gpus", kind="stable")), ""]
        lines += _spread(found.fits)
    absent = [str(n) for n in sorted(set(found.request.gpus)) if n not in set(found.fits["n_gpus"])]
    if absent:
        lines.append(f"no feasible configuration on {', '.join(absent)} devices")
    if len(found.fits):
        lines += ["", *_winner(found)]
    elif len(found.table):
        need, have = found.best["mem"].iloc[0], found.rule_sets[0].capacity_gb
        lines.append(f"does not fit: needs {need:.1f} GB per device, the device has {have:.1f}")
    if pareto and len(found.fits):
        lines += ["", "Pareto front of time, devices and memory", _table(found.front())]
    if explain is not None:
        rows = found.explained(explain)
        lines += [
            "",
            f"operations of row {explain}, seconds per step",
            rows.to_string(index=False, float_format=_short),
        ]
    return "\n".join(lines)


def _asked(found: Answer) -> list[str]:
    """What was searched, and what was taken for granted."""
    from tracelens.projection.search.whole_step import CorrectedRules

    request, rules = found.request, found.rule_sets[0]
    batch = f"{request.global_batch} sequences of {rules.tokens_per_sample} tokens"
    lines = [f"{request.model} on {request.cluster}, {batch} per step, rules {request.rules}"]
    if isinstance(rules, CorrectedRules):
        lines += [f"note: {rules.system.note}"] if rules.system.note else []
        if not rules.model.vocab:
            lines.append("note: the model's vocabulary is unknown; embedding and logits are left out")
    return lines


def _table(rows: pd.DataFrame) -> str:
    shown = [name for name in _SHOWN if name in rows and not rows[name].isna().all()]
    shown = [name for name in shown if name not in _USUAL or (rows[name] != _USUAL[name]).any()]
    units = {"throughput": "samples/s", "t": "t_s", "mem": "mem_gb"}
    return (
        rows[shown].rename(columns=units).to_string(index=False, float_format=lambda value: f"{value:.3f}", na_rep="")
    )


def _short(value: float) -> str:
    return "" if value == 0 else f"{value:.4g}"


def _spread(rows: pd.DataFrame) -> list[str]:
    lines = ["throughput of all, samples/s    highest     lowest"]
    for n, each in rows.groupby("n_gpus")["throughput"]:
        lines.append(f"  {n:>8} devices          {each.max():10.3f} {each.min():10.3f}")
    return lines


def _winner(found: Answer) -> list[str]:
    best = found.best.iloc[0]
    t = float(best["t"])
    lines = [f"why the winner wins: {t:.3f} s per step on {best['n_gpus']} devices, {best['mem']:.1f} GB per device"]
    parts = sorted(((float(best[name]), word) for name, word in _PARTS.items() if name in best), reverse=True)
    lines.append("  " + ", ".join(f"{value / t:.1%} {word}" for value, word in parts if value / t >= 0.005))
    for reason in found.reasons():
        most = f", {_PARTS[reason.part]} +{reason.part_s:.3f} s" if reason.part_s > 0 else ""
        change = f"{reason.dimension}={reason.other} would be at least {reason.slower:.1%} slower"
        lines.append(f"  {change} than {reason.value}{most}")
    again = found.rechecked()
    if again is not None:
        step_s = again.step_us / 1e6
        lines.append(f"re-checked by the event graph (tracelens project): {step_s:.3f} s, {step_s / t - 1:+.1%}")
    return lines
