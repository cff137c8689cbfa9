"""Steps of a serving engine: which step every op ran in, what its annotation says of the requests, and which attention
calls see a sliding window where the engine records none.

vLLM's attention op records neither its layer nor its window. A step calls attention once per layer, in order: where
the calls' number, heads and head width are those of a model with windows, that model says which layers have one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.steps import RecordedStep, StepTimes
from tracelens.analysis.grouping import Codes
from tracelens.analysis.intervals import Bools, Floats, Ints, union_by_group
from tracelens.analysis.reading.catalog import Catalog
from tracelens.perf_models import inference_attention
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from tracelens.predict.workload import ModelConfig


#: The stem of steps that an engine's annotations give.
STEM = "inference step"
#: Steps of a steady window have this share of its first one's requests, or up to as much more.
_ALIKE = 0.9
#: How an engine's annotations begin; those of vLLM come last, which are also put round other engines' steps.
_ENGINES = {"step[": "SGLang", "prefill[": "ATOM", "decode[": "ATOM", "execute_": "vLLM"}
PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"


class InferenceSteps(Record, frozen=True, kw_only=True, eq=False):
    """The engine steps of a trace in order of time, numbered from 0, and what the annotation of each says.

    ``engine``: its name, by how annotations begin; empty where that is not known.
    """

    steps: list[RecordedStep]
    said: list[inference_attention.InferenceStep]
    engine: str = ""

    @property
    def name(self) -> str:
        """What a sentence calls them: ``decode iterations of SGLang``."""
        phases = {phase(step) for step in self.said}
        kind = "" if len(phases) != 1 else f"{phases.pop()} "
        return f"{kind}iterations of {self.engine or 'an inference engine'}"

    def __len__(self) -> int:
        return len(self.steps)


def inference_steps(table: TraceTable, catalog: Catalog) -> InferenceSteps:
    """The annotations that an extension reads as an engine's step with requests; of nested ones the outer."""
    windows, engines = [], set()
    for row, step in annotations_of_steps(table, catalog):
        if phase(step) is not None:
            start = int(table.start_ns[row])
            windows.append((start, -start - int(table.duration_ns[row]), step))
            engines |= {prefix for prefix in _ENGINES if table.name_of(row).startswith(prefix)}
    steps: list[RecordedStep] = []
    found: list[inference_attention.InferenceStep] = []
    for start, end, step in sorted(windows, key=lambda window: window[:2]):
        if not steps or -end > steps[-1].end_ns:
            steps.append(RecordedStep(number=len(steps), start_ns=start, end_ns=-end))
            found.append(step)
    return InferenceSteps(steps=steps, said=found, engine=next((_ENGINES[p] for p in _ENGINES if p in engines), ""))


def annotations_of_steps(table: TraceTable, catalog: Catalog) -> list[tuple[int, inference_attention.InferenceStep]]:
    """The row of every annotation of an inference step, and what it says."""
    rows = np.flatnonzero(table.kind == Kind.USER_ANNOTATION)
    said = {code: catalog.inference_step(table.names[code]) for code in np.unique(table.name[rows]).tolist()}
    every = zip(rows.tolist(), table.name[rows].tolist(), strict=True)
    return [(row, step) for row, code in every if (step := said[code]) is not None]


def phase(step: inference_attention.InferenceStep) -> str | None:
    """``prefill``, ``decode`` or ``mixed``, by the requests; None where none are recorded."""
    if step.context_requests is None and step.generation_requests is None:
        return None
    if step.context_requests and step.generation_requests:
        return MIXED
    return PREFILL if step.context_requests else DECODE


def steady_steps(steps: InferenceSteps, times: StepTimes) -> list[int]:
    """Positions of the run of complete steps, of one phase and alike in requests, that takes the most time.

    Alike: within 10 % of the run's first step. Its first step is left out where others remain: it still waits for what
    came before.
    """
    runs: list[list[int]] = []
    for i, (step, complete) in enumerate(zip(steps.said, times.complete.tolist(), strict=True)):
        if not complete:
            continue
        first = steps.said[runs[-1][0]] if runs else None
        if first is None or runs[-1][-1] != i - 1 or not _alike(first, step):
            runs.append([])
        runs[-1].append(i)
    duration = times.duration_ns
    best = max(runs, key=lambda run: int(duration[run].sum()), default=[])
    return best[1:] or best


def _alike(first: inference_attention.InferenceStep, step: inference_attention.InferenceStep) -> bool:
    before, now = ((each.context_requests or 0) + (each.generation_requests or 0) for each in (first, step))
    return phase(first) == phase(step) and before * _ALIKE <= now <= before / _ALIKE


_OF_ANNOTATION = ("context_requests", "context_tokens", "generation_requests", "generation_tokens", "padded_requests")


def iterations(
    steps: InferenceSteps, times: StepTimes, step_of: Codes, activity: DeviceActivity, category: Labels
) -> pd.DataFrame:
    """One row per engine step: its requests and tokens, and where its time went.

    ``step_of`` and ``category``: of each device event of ``activity`` the position of its step (-1: in none) and the
    category that it is counted in. ``duration_us`` is as in the sheet of steps.
    """
    inside = step_of >= 0
    part = activity.select(inside)
    attention = category[inside].are(inference_attention.InferenceAttention.category)
    n, of = len(steps), step_of[inside]
    duration = times.duration_ns / NS_PER_US
    of_phases = np.stack([_column(steps.said, key) for key in ("context_tokens", "generation_tokens")])
    tokens = np.where(np.isnan(of_phases).all(axis=0), np.nan, np.nansum(of_phases, axis=0))
    rate = np.divide(tokens, duration, out=np.full(n, np.nan), where=duration > 0)
    steady = set(steady_steps(steps, times))

    def busy_us(events: Bools) -> Floats:
        return union_by_group(of[events], part.start[events], part.end[events], n) / NS_PER_US

    return pd.DataFrame(
        {
            "step": [step.number for step in steps.steps],
            "phase": [phase(said) for said in steps.said],
            **{key: _column(steps.said, key) for key in _OF_ANNOTATION},
            # Keys that were cached before the step
            "past_tokens": [
                np.nan if (s := said.sums) is None else s.c_sk - s.c_sq + s.g_sk - s.g_sq for said in steps.said
            ],
            "duration_us": duration,
            "busy_us": times.busy_ns / NS_PER_US,
            "attention_us": busy_us(attention),
            "communication_us": busy_us(part.communication),
            "tokens_s": rate * (NS_PER_S / NS_PER_US),
            "device_events": times.device_events,
            "complete": times.complete,
            "steady": [i in steady for i in range(n)],
        }
    )


def by_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """The complete steps of ``iterations`` by phase, and those of the steady window as a row of its own."""
    whole = frame[frame["complete"]]
    parts = [(name, rows) for name in (PREFILL, DECODE, MIXED) if len(rows := whole[whole["phase"] == name])]
    steady = whole[whole["steady"]]
    if len(steady):
        parts.append((f"steady {steady['phase'].iloc[0]}", steady))
    return pd.DataFrame(
        [
            {
                "phase": name,
                "steps": len(rows),
                "first_step": rows["step"].iloc[0],
                "last_step": rows["step"].iloc[-1],
                "requests_mean": (rows["context_requests"].fillna(0) + rows["generation_requests"].fillna(0)).mean(),
                "tokens_mean": rows[["context_tokens", "generation_tokens"]].sum(axis=1, min_count=1).mean(),
                "duration_us_median": rows["duration_us"].median(),
                "duration_us_min": rows["duration_us"].min(),
                "duration_us_max": rows["duration_us"].max(),
                "busy_percent": 100 * rows["busy_us"].sum() / max(rows["duration_us"].sum(), 1e-9),
                "attention_percent": 100 * rows["attention_us"].sum() / max(rows["busy_us"].sum(), 1e-9),
                "tokens_s": _rate(rows),
            }
            for name, rows in parts
        ]
    )


def _rate(rows: pd.DataFrame) -> float:
    known = rows[rows["tokens_s"].notna()]
    time_us = float(known["duration_us"].sum())
    return float((known["tokens_s"] * known["duration_us"]).sum() / time_us) if time_us else float("nan")


def _column(said: Sequence[inference_attention.InferenceStep], key: str) -> npt.NDArray[np.float64]:
    return np.array([np.nan if (value := getattr(step, key)) is None else value for step in said], float)


def inference_sums(
    table: TraceTable, catalog: Catalog, rows: RowColumn
) -> tuple[Ints, list[inference_attention.AttentionSums]]:
    """(index into the sums for each row, or -1; the distinct sums) from the host annotations around the rows."""
    sums_of = _sums_of(table, catalog)
    distinct = {sums: index for index, sums in enumerate(dict.fromkeys(sums_of.values()))}
    if not distinct:
        return np.full(len(rows), -1, np.int64), []
    index_of = np.full(len(table.names) + 1, -1, np.int64)
    for code, sums in sums_of.items():
        index_of[code] = distinct[sums]
    around = _enclosing(table, sums_of, rows)
    return index_of[np.where(around >= 0, table.name[around], -1)], list(distinct)


def _sums_of(table: TraceTable, catalog: Catalog) -> dict[int, inference_attention.AttentionSums]:
    """Name code of the annotations that say an inference step's sums -> these."""
    said = {int(table.name[row]): step.sums for row, step in annotations_of_steps(table, catalog)}
    return {code: said_sums for code in sorted(said) if (said_sums := said[code]) is not None}


def _enclosing(table: TraceTable, sums_of: Mapping[int, inference_attention.AttentionSums], rows: RowColumn) -> Ints:
    """An op belongs to the innermost annotation of its process, on whatever thread, in whose time it started."""
    found = np.full(len(rows), -1, np.int64)
    annotations = np.flatnonzero(table.kind == Kind.USER_ANNOTATION)
    windows = [row for row in annotations.tolist() if int(table.name[row]) in sums_of]
    if not windows:
        return found
    windows.sort(key=lambda row: (int(table.start_ns[row]), -int(table.duration_ns[row])))
    pids = {pid: index for index, pid in enumerate(dict.fromkeys(pid for pid, _ in table.lanes))}
    process = np.array([pids[pid] for pid, _ in table.lanes], np.int64)
    start, process_of_row = table.start_ns[rows], process[table.lane[rows]]
    order = np.argsort(start, kind="stable")
    in_order = start[order]
    for row in windows:
        begin = int(table.start_ns[row])
        low, high = np.searchsorted(in_order, (begin, begin + int(table.duration_ns[row])))
        inside = order[low:high]
        inside = inside[process_of_row[inside] == process[table.lane[row]]]
        found[inside] = row
    return found


def layer_windows(
    table: TraceTable, catalog: Catalog, rows: RowColumn, model: ModelConfig | None
) -> dict[int, tuple[tuple[str, inference_attention.LayerWindow], ...]]:
    """Row of an attention call -> the attribute that its binding finds its window in; no rows without windows.

    ``model`` is the one that the caller named; else every model of the package with windows is tried.
    """
    codes = np.unique(table.name[rows])
    asking = [code for code in codes.tolist() if catalog.is_per_step(table.names[code])]
    calls = rows[np.isin(table.name[rows], asking)] if asking else rows[:0]
    if not len(calls):
        return {}
    calls = calls[np.argsort(table.start_ns[calls], kind="stable")]
    step = _enclosing(table, _sums_of(table, catalog), calls)
    kinds = list(zip(table.name[calls].tolist(), table.signature[calls].tolist(), strict=True))
    shape_of = {kind: _shape(table, catalog, row) for kind, row in zip(kinds, calls.tolist(), strict=True)}
    shapes = [shape_of[kind] for kind in kinds]
    known = np.flatnonzero((step >= 0) & np.array([shape is not None for shape in shapes], bool))
    order = known[np.argsort(step[known], kind="stable")]
    found: dict[int, tuple[tuple[str, inference_attention.LayerWindow], ...]] = {}
    for _, group in groupby(order.tolist(), key=lambda at: int(step[at])):
        inside = list(group)
        layers = _letters(len(inside), {shapes[at] for at in inside}, model)
        if layers is not None:
            letters, window = layers
            found |= {
                int(calls[at]): ((inference_attention.WINDOW, window),)
                for at, letter in zip(inside, letters, strict=True)
                if letter == _WINDOWED
            }
    return found


_WINDOWED = "w"


def _shape(table: TraceTable, catalog: Catalog, row: int) -> tuple[int, int, int] | None:
    """Query heads, key-value heads and head width of a call whose window was not recorded."""
    signature = table.signature_of(row)
    empty = replace(
        signature, attributes=(*signature.attributes, (inference_attention.SUMS, inference_attention.AttentionSums()))
    )
    model = catalog.read(empty).model
    if not isinstance(model, inference_attention.InferenceAttention) or model.window is not None:
        return None
    return model.q_heads, model.kv_heads, model.d_qk


def _letters(
    calls: int, shapes: set[tuple[int, int, int] | None], named: ModelConfig | None
) -> tuple[str, inference_attention.LayerWindow] | None:
    """A letter per layer, and the window of those with one; None where no model fits, or several that differ."""
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return None
    from tracelens.predict.workload import ModelConfig  # 20 modules, and most traces have no such call

    heads, kv_heads, width = shape
    fitting = {}
    for config in (named,) if named is not None else ModelConfig.with_windows():
        letters = "".join(letter for letter in config.blocks if letter in "*w")
        ranks = config.q_heads // heads if heads else 0
        fits = ranks >= 1 and (config.q_heads, config.kv_heads) == (ranks * heads, ranks * kv_heads)
        if config.window is not None and len(letters) == calls and config.head_dim == width and fits:
            fitting[letters, config.window] = inference_attention.LayerWindow(keys=config.window, model=config.label)
    if len(fitting) != 1:
        return None
    (letters, _), window = fitting.popitem()
    return letters, window
