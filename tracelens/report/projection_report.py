"""A projected step and a search's answer: lines of a terminal, and pages with charts of a pipeline and of a sweep."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracelens.files.say import aligned, terminal_width
from tracelens.hardware.power import Facility
from tracelens.predict.projection.frameworks import POOLED, unmeasured
from tracelens.predict.workload.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES
from tracelens.predict.workload.model_config import unread_weights
from tracelens.report import charts
from tracelens.report.charts import bars, legend, stacked_bars
from tracelens.report.document import Document, picture, section, table
from tracelens.report.markup import Markup, round_ticks, tag
from tracelens.types.records import pd
from tracelens.types.units import BYTES_PER_GB, US_PER_MS, counted, shown_change, shown_figure, shown_percent

if TYPE_CHECKING:
    from tracelens.predict.projection.job import Run
    from tracelens.predict.projection.project import Result
    from tracelens.predict.projection.search.request import Answer, Reason
    from tracelens.predict.projection.step import Projection

_PARTS_OF_STEP = {
    "gemm": "GEMM", "memory": "memory-bound ops", "routing": "routing of tokens", "experts": "GEMM of experts",
    "vocabulary": "embedding, logits, loss", "host": "waiting for the host", "scale_loss": "loss with scale",
    "tp": "tensor parallelism (tp)", "cp": "context parallelism (cp)", "ep": "expert parallelism (ep)",
    "dp": "data parallelism (dp)", "fsdp": "sharded weights (fsdp)", "pp": "stage to stage (pp)",
}  # fmt: skip


def part_words(name: str) -> str:
    return _PARTS_OF_STEP.get(name, name)


def step_text(result: Result) -> str:
    """Time, where it goes, communication, experts, memory per stage, the largest levers, notes."""
    found = result.projection
    p = found.parallel
    mfu = "" if found.mfu is None else f", MFU {shown_percent(found.mfu)} of the {p.computed_in.label} data sheet rate"
    backends = ", ".join(f"{name} {count}" for name, count in found.answered_by.items())
    routed = "" if found.model.experts is None else f", routing {p.skew}"
    kept = f", {p.gradients} gradients" * (p.gradients != "fp32") + f", {p.moments} moments" * (p.moments != "fp32")
    kept += ", fp8 inputs of activations" * (p.activation_inputs != "bf16")
    lines = [] if result.split is None else [result.split.sentence]
    lines += [f"does not fit: {found.infeasible}"] if found.infeasible else []
    lines += [
        f"{found.model.label} on {p.ranks} x {found.system.device.label}: {found.step_us / 1e6:,.3f} s per step",
        (
            f"  tp {p.tp} pp {p.pp} vpp {p.vpp} cp {p.cp} dp {p.dp} ep {p.ep} etp {p.etp}, ZeRO {p.zero}, "
            f"{_batches(p.micro_batches)} of {p.micro_batch} x {found.sequence:,} tokens, {p.precision}"
            f"{kept}, recompute {p.recompute}, schedule {found.schedule if p.pp > 1 else 'none'}{routed}"
        ),
        f"  {found.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, {found.tflops_gpu:,.0f} TFLOPS/GPU{mfu}",
        *(f"  {line}" for line in expected_of_step(result)),
        *(f"  {line}" for line in energy_of_step(result)),
        f"  cost models: {backends}",
        "",
        "where the time goes (busiest pipeline rank; exposed communication only)",
    ]
    for part, time_us in sorted(found.breakdown_us.items(), key=lambda item: -item[1]):
        lines.append(f"  {part_words(part):26} {time_us / 1e3:10,.1f} ms {100 * time_us / found.step_us:6.1f} %")
    communication = result.communication_rows()
    if communication:
        lines += ["", "communication, ms                runs    exposed"]
        for stream, time_us, _, exposed_us in communication:
            lines.append(f"  {part_words(stream):26} {time_us / 1e3:9,.1f} {exposed_us / 1e3:10,.1f}")
    work = result.experts
    if work is not None:
        rows = f"{work.local_experts} per rank, {work.rows_per_expert:.0f} rows each, h {work.hidden}, f {work.ffn}"
        sent = f"{work.tokens} tokens per rank, {work.copies:.0f} copies leave it"
        lines += ["", f"experts: {rows}, {work.mode}; {sent}"]
    lines += ["", *_memory(result)]
    lines += ["", *_levers(result)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _batches(count: int) -> str:
    return counted(count, "micro-batch", "micro-batches")


def _levers(result: Result) -> list[str]:
    fits = result.projection.infeasible is None
    found = [f"  {lever.change:52} {shown_change(-lever.gain)}" for lever in result.levers]
    if fits:
        return ["largest levers, each alone", *(found or ["  no change that was tried helps"])]
    none = "  no combination of up to three changes fits; tracelens search tries every split"
    return ["changes that make it fit, and the step time they cost", *(found or [none])]


def energy_of_step(result: Result) -> list[str]:
    found, around = result.energy, result.with_facility
    if found is None:
        asked = result.facility != Facility()
        return [f"energy unknown: nobody measured what {result.projection.system.device.label} draws"] if asked else []
    whose = (
        ""
        if found.energies_of == result.projection.system.device.label
        else f", energies measured on {found.energies_of}"
    )
    joules = f"{shown_figure(found.step_j / 1e3, 4)} kJ per step, {found.token_j:,.3g} J per token"
    drawn = f"{found.power_w:.0f} W per GPU, {joules} (without hosts and fans{whose})"
    ranks = result.projection.parallel.ranks
    return [drawn, *([] if around is None else [around.words(ranks, "token")])]


def expected_of_step(result: Result) -> list[str]:
    """How far such steps were from their projections, and between which times they were."""
    expected, framework = result.expected, result.framework
    if expected is None or framework is None:
        return []
    step_s = result.projection.step_us / 1e6
    half, most = (f"{low * step_s:,.3f} to {high * step_s:,.3f} s" for low, high in (expected.half, expected.most))
    median, p90 = 100 * expected.median, 100 * expected.p90
    whose = f"{framework.name} constants, {expected.left_out} left out"
    said = f"expected error {median:.0f} %, 9 of 10 below {p90:.0f} % ({whose})"
    if expected.beyond:
        said = f"no fitted step has {', '.join(expected.beyond)}: the interval is wider ({whose})"
    return [said, f"expected within {half} in half of all cases, {most} in 9 of 10"]


def _memory(result: Result) -> list[str]:
    found = result.projection
    room = "" if found.peak_memory.capacity is None else f" of {found.peak_memory.capacity / 1e9:.1f}"
    lines = [f"memory, GB       weights  grads  optim  activ  logits  other   peak{room}"]
    stages = found.stages if len(found.stages) <= 8 else (*found.stages[:3], *found.stages[-3:])
    for stage in stages:
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.logits, stage.outside)
        figures = " ".join(f"{value / 1e9:6.1f}" for value in (*parts, stage.peak))
        lines.append(f"  stage {stage.stage:<5}    {figures}")
    return lines


_BEST = {"time": "fastest", "cost": "cheapest", "energy": "least energy"}
#: Columns that a narrow terminal does without, the first one first; the page and the table file have them.
_NARROW = ("W/GPU", "J/token", "J/token at the limit", "TFLOPS/GPU", "GB", "recompute")
#: Rows shown of each device count where there are several.
_OF_SEVERAL = 3
#: Share by which the best of many is likely to exceed its estimate, from which on that is said.
_CURSED = 0.001
#: Share of a device's memory above which fragmentation alone may not fit.
_NEARLY_ALL = 0.95
_PARTS = {
    "t_comp": "computing", "t_mem": "memory-bound operations", "t_tp_comm": "tensor and context communication",
    "t_ep_comm": "expert exchanges", "t_recompute": "recomputation", "t_host": "the host",
    "t_pp_comm": "transfers between stages", "t_bubble": "the pipeline bubble", "t_dp_comm": "weights and gradients",
    "t_optimizer": "the optimizer", "t_scale_loss": "loss with scale",
}  # fmt: skip
#: Shown only where some row differs from this.
_USUAL = {"cp": "1", "vpp": "1", "ep": "1", "recompute": "none", "schedule": "1f1b", "precision": "bf16"}
_WORDS = frozenset({"recompute", "schedule", "precision", "SUMMA", "in a node"})
_NAMES = {
    "tp1": "tp", "tp2": "cp", "mbs": "micro-batch", "zero": "ZeRO", "nb": "SUMMA blocks",
    "nv_tp1": "tp in a node", "nv_dp": "dp in a node",
}  # fmt: skip
#: Parts of a step named in an alternative's line, and the share of the largest change below which none is.
_CHANGES, _MINOR_CHANGE = 3, 0.2
_NEAR = {"nv_tp1": "tp", "nv_tp2": "cp", "nv_dp": "dp", "nv_pp": "pp"}


def search_text(found: Answer, *, pareto: bool = False, explain: int | None = None) -> str:
    """The best and why, the best few per device count, and on request the front and every operation of one row."""
    request = found.request
    rules = "" if request.rules == "corrected" else f", rules {request.rules}"
    batch = f"{request.global_batch:,} sequences of {found.rule_sets[0].tokens_per_sample:,} tokens"
    lines = [f"{request.model} on {request.cluster}, {batch} per step{rules}"]
    if len(found.fits):
        lines += [*_winner(found), "", _best_few(found)]
    elif len(found.table):
        need, have = found.best["mem"].iloc[0], found.rule_sets[0].capacity_gb
        lines += [f"does not fit: needs {need:.1f} GB per device, the device has {have:.1f}", ""]
        lines.append(_table(found, found.best))
    absent = [n for n in sorted(set(found.request.gpus)) if n not in set(found.fits["n_gpus"])]
    if absent:
        on = f"{', '.join(map(str, absent))} device{'s' * (absent != [1])}"
        lines.append(f"no feasible configuration on {on}{_too_few(found, absent)}")
    if pareto and len(found.fits):
        of = "time, devices and memory" if found.found[0].step_j is None else "time and energy"
        lines += ["", f"Pareto front of {of}", _table(found, found.front())]
    if explain is not None:
        rows = found.explained(explain).to_string(
            index=False, float_format=lambda value: "" if value == 0 else f"{value:.4g}"
        )
        lines += ["", f"operations of row {explain}, seconds per step", rows]
    return "\n".join([*lines, *_notes(found)])


def _too_few(found: Answer, gpus: Sequence[int]) -> str:
    """How many devices hold the model at least, however it is divided; empty where all of these would."""
    from tracelens.predict.projection.search.whole_step import CorrectedRules

    rules = found.rule_sets[0]
    if not isinstance(rules, CorrectedRules):
        return ""
    counted = rules.model.parameters()
    held_gb = (counted.total + counted.further) * (WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES) / BYTES_PER_GB
    if held_gb <= min(gpus) * rules.capacity_gb:
        return ""
    least = math.ceil(held_gb / rules.capacity_gb)
    return f": weights, gradients and optimizer alone are {held_gb:,.0f} GB, the memory of {least:,} devices"


def _notes(found: Answer) -> list[str]:
    from tracelens.predict.projection.search.whole_step import CorrectedRules

    rules = found.rule_sets[0]
    if not isinstance(rules, CorrectedRules):
        return []
    lines = [
        f"note: {text}"
        for text in (
            rules.system.note,
            unmeasured(rules.system, found.request.backends),
            *rules.model.notes,
            unread_weights(found.request.model),
        )
        if text
    ]
    if len(found.fits) and found.best["mem"].iloc[0] > _NEARLY_ALL * rules.capacity_gb:
        lines.append("note: this leaves little memory for fragmentation; without --memory-headroom 6 % stay free")
    if not rules.model.vocab:
        lines.append("note: the model's vocabulary is unknown; embedding and logits are left out")
    return lines


def expected_of_best(found: Answer, step_s: float) -> list[str]:
    """Between which times steps were that were projected to take ``step_s``."""
    if found.expected is None:
        return []
    curse = found.winners_curse
    low, high = (share * step_s * (1 + curse) for share in found.expected.most)
    whose = "pooled" if found.request.framework in (None, POOLED) else found.request.framework
    said = f"{whose} constants, {found.expected.left_out} left out; docs/accuracy.md"
    if found.expected.beyond:
        said = f"wider, as no fitted step has {', '.join(found.expected.beyond)}; {said}"
    if curse >= _CURSED:
        said = f"around {shown_change(curse)}: the best of many estimates is likely too low; {said}"
    return [f"expected within {low:.3f} to {high:.3f} s in 9 of 10 cases ({said})"]


def _winner(found: Answer) -> list[str]:
    """The best step, how sure it is, what it consists of, and what the best alternatives cost."""
    best, capacity = found.best.iloc[0], found.rule_sets[0].capacity_gb
    t, again = float(best["t"]), found.rechecked()
    mfu = "" if again is None or again.mfu is None else f", MFU {shown_percent(again.mfu * again.step_us / 1e6 / t)}"
    rate = f"{tokens_per_s(found, best):,.0f} tokens/s/GPU{mfu}, {best['mem']:.1f} of {capacity:.1f} GB"
    lines = [
        f"{_BEST[found.request.objective]}: {t:,.3f} s per step on {counted(best['n_gpus'], 'GPU')}, {rate}",
        f"  {_configuration(best, found.request.global_batch)}",
    ]
    lines += [f"  {line}" for line in expected_of_best(found, t)]
    if again is not None:
        step_s = again.step_us / 1e6
        lines.append(f"  the event graph (tracelens project) gives {step_s:.3f} s, {shown_change(step_s / t - 1)}")
        lines += _command(found)
        lines += _refined(found, step_s)
    parts = sorted(((float(best[name]), word) for name, word in _PARTS.items() if name in best), reverse=True)
    lines.append("  " + ", ".join(f"{shown_percent(value / t)} {word}" for value, word in parts if value / t >= 0.005))
    reasons = found.reasons()
    if reasons:
        lines += ["", "what the best alternatives cost on the same number of GPUs"]
    names = [change_of(reason) for reason in reasons]
    width = max(map(len, names), default=0)
    for name, reason in zip(names, reasons, strict=True):
        energy = "" if reason.more_energy is None else f"energy {shown_change(reason.more_energy)}, time "
        # The parts of the step that change most; with those that shrink, as they may nearly outweigh the others
        most = sorted(reason.parts_s.items(), key=lambda part: -abs(part[1]))[:_CHANGES]
        changed = (f"{_PARTS[part]} {s:+.3f} s" for part, s in most if abs(s) >= abs(most[0][1]) * _MINOR_CHANGE)
        lines.append(f"  {name:<{width}}  {energy}{shown_change(reason.slower)}: {', '.join(changed)}")
    return lines


def _refined(found: Answer, step_s: float) -> list[str]:
    """What options that the table does not vary would save."""
    better = found.refined()
    if better is None or not better.changes:
        return []
    took = better.found.step_us / 1e6
    options = " ".join(f"--{name} {value}".rstrip() for name, value in better.changes)
    saved = f"{took:.3f} s, {shown_change(took / step_s - 1)}"
    return [f"  options outside the table: {options} takes {saved} (best of {better.tried} that were tried one by one)"]


def change_of(reason: Reason) -> str:
    """What an alternative has where the winner has something else; its places in a node if nothing else differs."""
    degrees = {name: value for name, value in reason.differs.items() if name not in _NEAR}
    return ", ".join(f"{_NAMES.get(name, name)} {value}" for name, value in (degrees or reason.differs).items())


def _command(found: Answer) -> list[str]:
    """The projection of the best row as a command; where no options ask for its places in a node, of the best for which
    they do.
    """
    from tracelens.predict.projection.project import options_of_row

    request, best = found.request, found.best.head(len(found.fits))
    for number in range(len(best)):
        row = best.iloc[number]
        split = options_of_row(found, row)
        if split is not None:
            break
    else:
        return []
    slower = shown_change(float(row["t"] / best["t"].iloc[0]) - 1)
    lines = [f"  no option sets these places in a node; the best with the usual ones, {slower}:"] * (number > 0)
    given: dict[str, Any] = {"model": request.model, "cluster": request.cluster, "gpus": row["n_gpus"]}
    given |= {name: split[name] for name in ("tp", "cp", "pp", "vpp", "ep", "zero")}
    given |= {"micro-batch": split["micro_batch"], "global-batch": request.global_batch}
    given |= {"sequence": found.rule_sets[0].tokens_per_sample, "precision": row["precision"]}
    given |= {"recompute": split["recompute"], "recompute-modules": ",".join(split.get("recompute_modules", ())) or 1}
    given |= {"schedule": split.get("schedule", 1), "framework": request.framework or POOLED}
    words = (f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if name == "tp" or value != 1)
    return [*lines, f"  tracelens project {' '.join(words)}"]


def _configuration(row: pd.Series, global_batch: int) -> str:
    shown = _cells(row)
    degrees = " ".join(f"{name} {shown[name]}" for name in ("tp", "cp", "pp", "vpp", "dp", "ep") if name in shown)
    count = global_batch // (int(row["dp"]) * int(row["mbs"]))
    words = [degrees, *([f"SUMMA {shown['SUMMA']}"] if shown["SUMMA"] else [])]
    words += [f"ZeRO {shown['ZeRO']}"] if "ZeRO" in shown else []
    words.append(f"{_batches(count)} of {row['mbs']}")
    words += [shown["precision"]] if "precision" in shown else []
    words += [f"recompute {shown['recompute']}"] if "recompute" in shown else []
    words += (
        [f"schedule {shown['schedule']}"] if shown.get("schedule", _USUAL["schedule"]) != _USUAL["schedule"] else []
    )
    return ", ".join(words + ([f"in a node: {shown['in a node']}"] if shown["in a node"] else []))


def best_of_each(found: Answer) -> tuple[pd.DataFrame, int]:
    """The best of each device count, placements and strategies that come to the same split once; how many at most."""
    most = min(found.request.top, _OF_SEVERAL) if found.fits["n_gpus"].nunique() > 1 else found.request.top
    rows = found.best[found.best["mem"] <= found.fits["mem"].max()]
    split = [tuple(cell for name, cell in _cells(row).items() if name != "in a node") for _, row in rows.iterrows()]
    rows = rows.assign(split=split).drop_duplicates(["n_gpus", "split"]).groupby("n_gpus", sort=True).head(most)
    return rows.sort_values("n_gpus", kind="stable"), most


def _best_few(found: Answer) -> str:
    counts = found.fits["n_gpus"].nunique()
    rows, most = best_of_each(found)
    steps = [step for each in found.ranking().values() for step in each]
    slowest = max(steps) / min(steps)
    times = f"the slowest takes {slowest:.1f} times as long as the fastest"
    title = f"best {most} of each" if counts > 1 else f"best {len(rows)}"
    return f"{title} of {len(steps):,} configurations that fit; {times}\n{_table(found, rows)}"


def shown_rows(found: Answer, rows: pd.DataFrame) -> list[list[str]]:
    """Rows of a table of the search as people read them, below their titles; without columns that say the usual."""
    asked = found.request.objective
    cells = [{**_figures(found, row), **_cells(row), **_costs(row, asked)} for _, row in rows.iterrows()]
    names = [
        name
        for name in dict.fromkeys(name for row in cells for name in row)
        if any(row.get(name, "") not in ("", _USUAL.get(name, "")) for row in cells)
    ]
    return [names, *([row.get(name, "") for name in names] for row in cells)]


def _table(found: Answer, rows: pd.DataFrame) -> str:
    table = shown_rows(found, rows)
    width = terminal_width(sys.stdout)
    for title in _NARROW:
        if width is not None and title in table[0] and len(_side_by_side(table).splitlines()[0]) > width:
            table = [[cell for name, cell in zip(table[0], row, strict=True) if name != title] for row in table]
    return _side_by_side(table)


def _side_by_side(table: list[list[str]]) -> str:
    return aligned(table, words=[place for place, name in enumerate(table[0]) if name in _WORDS])


def _figures(found: Answer, row: pd.Series) -> dict[str, str]:
    return {
        "GPUs": str(row["n_gpus"]),
        "step s": f"{row['t']:.3f}",
        "tokens/s/GPU": f"{tokens_per_s(found, row):,.0f}",
        "TFLOPS/GPU": f"{row['flops_per_gpu'] / row['t']:.0f}",
        "GB": f"{row['mem']:.1f}",
    }


def _cells(row: pd.Series) -> dict[str, str]:
    """How the step is split: what a table shows of a row."""
    second, is_grid = int(row["tp2"]), row["strategy"] == "2d"
    shown = {"tp": str(row["tp"]) if is_grid else str(row["tp1"]), "cp": "1" if is_grid else str(second)}
    shown |= {name: str(row[name]) for name in ("pp", "vpp", "dp", "ep") if name in row}
    shown["micro-batch"] = str(row["mbs"])
    titles = {"zero": "ZeRO", "recompute": "recompute", "schedule": "schedule", "precision": "precision"}
    shown |= {title: str(row[name]) for name, title in titles.items() if name in row}
    shown["SUMMA"] = f"{row['tp1']}x{second} in {row['nb']:.0f} blocks" if is_grid and int(row["tp"]) > 1 else ""
    near = {("tp2" if is_grid and name == "nv_tp2" else word): int(row[name]) for name, word in _NEAR.items()}
    return {**shown, "in a node": " ".join(f"{word} {count}" for word, count in near.items() if count > 1)}


def _costs(row: pd.Series, asked: str) -> dict[str, str]:
    titles: dict[str, Any] = {"usd_per_mtoken": "USD/M tokens", "j_per_token": "J/token at the limit"}
    costs = {title: f"{row[name]:.3f}" for name, title in titles.items() if name in row and row[name] == row[name]}
    if "power_w_gpu" in row:
        costs["J/token"] = costs.pop("J/token at the limit")
        costs |= {"W/GPU": f"{row['power_w_gpu']:.0f}"} if asked == "energy" else {}
    return costs


def tokens_per_s(found: Answer, row: pd.Series) -> float:
    return float(row["throughput"]) * found.rule_sets[0].tokens_per_sample / int(row["n_gpus"])


def compared(table: pd.DataFrame) -> list[str]:
    """Of a sweep over several clusters: each one's fastest step per device count, and beside the first cluster's."""
    if not len(table) or table["cluster"].nunique() < 2:
        return []
    best = table.groupby(["model", "n_gpus", "cluster"], sort=False)["t"].min().reset_index()
    rows = [["model", "GPUs", "cluster", "step s", "vs the first"]]
    firsts: dict[tuple[object, object], float] = {}
    for model, count, cluster, step_s in zip(*(best[name] for name in best), strict=True):
        first = firsts.setdefault((model, count), float(step_s))
        rows.append([str(model), str(count), str(cluster), f"{step_s:.3f}", f"{shown_change(step_s / first - 1)}"])
    return aligned(rows, words=[0, 2]).splitlines()


#: By kind of task: what it is, its color.
_KINDS = {
    "F": ("forward", "c0"),
    "B": ("backward", "c2"),
    "D": ("input gradient", "c2"),
    "W": ("weight gradient", "c4"),
}
_FINISH = ("gradients and optimizer", "c5")
#: Ranks and tasks that are drawn.
MAX_RANKS, MAX_TASKS = 32, 3000
_PIPELINE_WIDTH, _LEFT, _PIPELINE_ROW, _BELOW = 1180.0, 74.0, 26.0, 34.0


def pipeline_chart(ran: Run) -> Markup:
    """A box per task, none where a rank waits: the bubble."""
    ranks = min(len(ran.tasks), MAX_RANKS)
    height = ranks * _PIPELINE_ROW + _BELOW
    scale = (_PIPELINE_WIDTH - _LEFT) / ran.step_us
    drawn, step_ms, bottom = [], ran.step_us / US_PER_MS, ranks * _PIPELINE_ROW
    for value in round_ticks(step_ms):
        if value <= step_ms:
            x = _LEFT + value / step_ms * (_PIPELINE_WIDTH - _LEFT)
            anchor = "middle" if 0 < value < 0.97 * step_ms else "end" if value else "start"
            drawn.append(tag("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid"))
            drawn.append(tag("text", f"{value:,.6g} ms", x=x, y=bottom + 18, class_="tick", text_anchor=anchor))
    for rank in range(ranks):
        y = rank * _PIPELINE_ROW
        drawn.append(
            tag("text", f"rank {rank}", x=_LEFT - 8, y=y + _PIPELINE_ROW / 2 + 4, class_="tick", text_anchor="end")
        )
        for begin, end, color, text in _boxes(ran, rank, MAX_TASKS // ranks):
            tip = tag("title", f"{text}: {begin / US_PER_MS:,.3f} to {end / US_PER_MS:,.3f} ms")
            x, width = _LEFT + begin * scale, max((end - begin) * scale, 0.3)
            drawn.append(tag("rect", tip, x=x, y=y + 2, width=width, height=_PIPELINE_ROW - 4, class_=color))
    used = {task.kind for tasks in ran.tasks[:ranks] for task in tasks}
    entries = [pair for kind, pair in _KINDS.items() if kind in used]
    shape = f"0 0 {_PIPELINE_WIDTH:g} {height:g}"
    chart = tag("svg", drawn, class_="roofline", role="img", aria_label="Tasks of the pipeline's ranks", viewBox=shape)
    return tag("figure", tag("div", chart, class_="wide", tabindex="0"), legend([*entries, _FINISH]))


def _boxes(ran: Run, rank: int, most: int) -> Iterator[tuple[float, float, str, str]]:
    """(begin, end, color, what) of a rank's first tasks, its gradient norm, and its optimizer; it waits in between."""
    starts, ends = ran.pipeline.starts_us[rank], ran.pipeline.ends_us[rank]
    for task, begin, end, _ in zip(ran.tasks[rank], starts, ends, range(most), strict=False):
        word, color = _KINDS[task.kind]
        yield begin, end, color, f"{word} of micro-batch {task.micro_batch}, chunk {task.chunk}"
    finish = ran.finish[rank]
    (_, norm_us), (_, sum_us), _ = finish.ops
    for begin, end in ((ends[-1], finish.reduced_us + norm_us), (finish.summed_us - sum_us, finish.end_us)):
        yield begin, end, _FINISH[1], _FINISH[0]


_SWEEP_WIDTH, _LABELS, _FIGURES, _SWEEP_ROW, _TOP = 980.0, 300.0, 150.0, 22.0, 46.0
_FITS, _DOES_NOT = "#4F81BD", "#C9C9C9"
_FONT = "font: 12px sans-serif; fill: #222"


def sweep_chart(table: pd.DataFrame, names: Sequence[str], title: str) -> str:
    """A bar of tokens/s/GPU per row, labelled with its ``names``; gray where it does not fit, else the reason."""
    most = float(table["tokens_s_gpu"].max(skipna=True)) if len(table) else 0.0
    height = _TOP + _SWEEP_ROW * len(table) + 14
    rows = [_row(row, names, at, most) for at, row in enumerate(table.to_dict("records"))]
    heading = tag("text", f"{title}: tokens/s/GPU (gray: does not fit)", x=10, y=24, style="font: bold 14px sans-serif")
    return tag(
        "svg", heading, rows, xmlns="http://www.w3.org/2000/svg", width=_SWEEP_WIDTH, height=height,
        viewBox=f"0 0 {_SWEEP_WIDTH:g} {height:g}", role="img", aria_label=title,
    )  # fmt: skip


def _row(row: Mapping[Any, Any], names: Sequence[str], at: int, most: float) -> Markup:
    words = {True: "on", False: "off"}
    shown = (words[value] if isinstance(value := row[name], bool) else value for name in names)
    label = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in zip(names, shown, strict=True))
    y = _TOP + _SWEEP_ROW * at
    value = row["tokens_s_gpu"]
    pieces = [tag("text", label, x=_LABELS - 8, y=y + 14, text_anchor="end", style=_FONT)]
    if isinstance(value, float) and value == value:
        width = max((_SWEEP_WIDTH - _LABELS - _FIGURES) * value / most, 1.0) if most else 1.0
        fits = not isinstance(row["does_not_fit"], str)
        pieces.append(
            tag("rect", x=_LABELS, y=y + 3, width=width, height=_SWEEP_ROW - 6, fill=_FITS if fits else _DOES_NOT)
        )
        figures = f"{value:,.0f}  ({row['memory_gb']:,.0f} GB)"
        pieces.append(tag("text", figures, x=_LABELS + width + 6, y=y + 14, style=_FONT))
    else:
        pieces.append(tag("text", str(row["reason"])[:90], x=_LABELS, y=y + 14, style=_FONT))
    return tag("g", pieces)


_MEMORY = ("weights", "gradients", "optimizer", "activations", "logits", "outside", "peak")


def step_page(result: Result) -> bytes:
    """Time and where it goes, memory of every stage beside what the device has, levers, operations."""
    found = result.projection
    warnings = [f"does not fit: {found.infeasible}"] if found.infeasible else []
    parts = sorted(found.breakdown_us.items(), key=lambda item: -item[1])
    time = [
        (part_words(name), us, f"{us / US_PER_MS:,.1f} ms · {shown_percent(us / found.step_us)}") for name, us in parts
    ]
    stages = [
        {"stage": stage.stage, **{f"{name}_gb": getattr(stage, name) / BYTES_PER_GB for name in _MEMORY}}
        for stage in found.stages
    ]
    fits = found.infeasible is None
    levers = [
        (lever.change, lever.gain if fits else 1 - lever.gain, shown_change(-lever.gain)) for lever in result.levers
    ]
    many = sum(map(len, result.run.tasks)) > MAX_TASKS or len(result.run.tasks) > MAX_RANKS
    said = f"A box is a micro-batch on a rank of the pipeline; a gap is waiting.{' The first ones are drawn.' * many}"
    sections = [
        section("time", "Where the time goes", bars(time, "Busiest pipeline rank; exposed communication only")),
        section("pipeline", "Timeline of the pipeline", tag("p", said), pipeline_chart(result.run)),
        section("memory", "Memory", _memory_bars(found), _frame_table(stages, "Memory by stage")),
    ]
    if levers:
        saved = "Time of the step that each saves alone"
        needed = "Changes that make it fit: step time relative to this one"
        sections.append(section("levers", "Levers", bars(levers, saved if fits else needed)))
    ops = result.ops(result.run.busiest)
    ops = ops.assign(time_ms=ops["time_us"] / US_PER_MS).drop(columns="time_us")
    sections.append(section("ops", "Operations of the busiest rank", table(ops, "Operations")))
    notes = [*expected_of_step(result), *found.notes]
    p = found.parallel
    degrees = (f"{name} {value}" for name in ("tp", "pp", "cp", "dp", "ep") if (value := getattr(p, name)) > 1)
    batches = f"{_batches(p.micro_batches)} of {p.micro_batch} x {found.sequence:,} tokens"
    facts = [] if result.split is None else [result.split.sentence]
    facts += [f"{p.ranks} x {found.system.device.label}", *degrees, batches, p.precision]
    return Document(title=found.model.label, kind="projected step", facts=facts, tiles=_tiles(found), notes=notes,
                    warnings=warnings, sections=sections).page()  # fmt: skip


def _memory_bars(found: Projection) -> Markup:
    """What each stage keeps at its peak, in front of a track as long as the device's memory where that is known."""
    capacity = found.peak_memory.capacity
    rows = [
        (f"stage {each.stage}", [(name, getattr(each, name) / BYTES_PER_GB) for name in _MEMORY[:-1]],
         f"{each.peak / BYTES_PER_GB:,.1f} GB")
        for each in found.stages
    ]  # fmt: skip
    of = "" if capacity is None else f"; the line is at the {capacity / BYTES_PER_GB:,.1f} GB of the device"
    return stacked_bars(rows, f"Peak by stage{of}", 0.0 if capacity is None else capacity / BYTES_PER_GB)


def _tiles(found: Projection) -> list[tuple[str, str, str]]:
    """What does not fit is said before how fast it would be."""
    worst = found.peak_memory
    capacity = "" if worst.capacity is None else f"of {worst.capacity / BYTES_PER_GB:,.1f} GB, "
    need = f"{worst.peak / BYTES_PER_GB:,.1f} GB"
    tiles = [("Step", f"{found.step_us / 1e6:,.3f} s", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU")]
    if found.mfu is not None:
        tiles.append(("Model FLOPs utilization", shown_percent(found.mfu), f"{found.tflops_gpu:,.0f} TFLOPS per GPU"))
    room = ("Memory" if worst.fits else "Does not fit", need, f"{capacity}fullest stage")
    return [*tiles, room] if worst.fits else [room, *tiles]


def search_page(found: Answer) -> bytes:
    """The best split, what its time and memory go to, how much a bad choice costs, and the front."""
    request, rules = found.request, found.rule_sets[0]
    title = f"{request.model} on {request.cluster}"
    batch = f"{request.global_batch:,} sequences of {rules.tokens_per_sample:,} tokens per step"
    facts = [batch, f"rules {request.rules}", f"{sum(map(len, found.ranking().values())):,} splits fit"]
    if not len(found.fits):
        return Document(title=title, kind="search", facts=facts, warnings=["no split that was tried fits"]).page()
    fits, front = found.fits, found.front()
    fastest = fits.sort_values("t").iloc[0]
    speed = tokens_per_s(found, fastest)
    tiles = [
        ("Fastest step", f"{fastest['t']:,.4g} s", f"on {counted(fastest['n_gpus'], 'GPU')}"),
        ("Throughput", f"{speed:,.0f} tokens/s", "per GPU"),
        ("10¹² tokens", f"{charts.days_of(speed * int(fastest['n_gpus'])):,.3g} days", "of training"),
        ("Memory", f"{fastest['mem']:,.1f} GB", f"of {rules.capacity_gb:,.1f} GB per GPU"),
    ]  # fmt: skip
    asked = sorted(set(request.gpus) - set(fits["n_gpus"]))
    warnings = [f"nothing fits on {', '.join(map(str, asked))} GPUs"] if asked else []
    sections = [section("best", "The best by number of GPUs", _shown(found, best_of_each(found)[0], "Best splits"))]
    if reasons := found.reasons():
        rows = [(change_of(each), each.slower, f"+{shown_percent(each.slower)}") for each in reasons]
        drawn = bars(rows, "Time of the step that each other choice adds")
        sections.append(section("reasons", "Why not otherwise", drawn))
    times = [picture(charts.components(fits, charts.TIMES, "seconds per step"))]
    if fits["n_gpus"].nunique() > 1:
        days = charts.training_days(fits, rules.tokens_per_sample)
        pictures = (charts.scaling(fits), days, charts.degrees(fits))
        sections.append(section("scaling", "Scaling", *map(picture, pictures)))
        times.append(picture(charts.components(fits, charts.TIMES, "percent of the step", of_whole=True)))
    sections.append(section("time", "Where the time goes", *times))
    sections.append(section("memory", "Memory", picture(charts.components(fits, charts.MEMORY, "GB per device"))))
    if ranking := found.ranking():
        sections.append(section("landscape", "What a bad choice costs", picture(charts.landscape(ranking))))
    sections.append(section("front", "Pareto front of time, devices and memory", _shown(found, front, "Pareto front")))
    notes = expected_of_best(found, float(fastest["t"]))
    return Document(title=title, kind="search", facts=facts, tiles=tiles, notes=notes, warnings=warnings,
                    sections=sections).page()  # fmt: skip


def _shown(found: Answer, rows: pd.DataFrame, label: str) -> Markup:
    titles, *cells = shown_rows(found, rows)
    return _frame_table(cells, label, titles)


def _frame_table(rows: Sequence[Any], label: str, titles: Sequence[str] | None = None) -> Markup:
    import pandas as pd  # takes longer to import than a step to project, and the terminal needs no frame

    return table(pd.DataFrame(rows, columns=None if titles is None else list(titles)), label)
