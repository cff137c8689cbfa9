"""Measured calls and steps out of what users have: tables of microbenchmarks, traces, and ``report.json``."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.calls import COPY
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.sheets.coll_analysis import collective_models, collective_rows
from tracelens.backends.base import ColumnBatch, Floats, System
from tracelens.backends.measured import MeasuredCall, MeasuredStep
from tracelens.backends.origami import Origami, calibrated_family, slowdowns
from tracelens.backends.roofline_and_tile import Tile
from tracelens.backends.tiles import memory_bound, pricer_of
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.errors import InputError, UsageError
from tracelens.extensions import load_extension
from tracelens.files.data_table import COUNT, TIME, is_file_name, measured_rows, numbers, texts
from tracelens.files.documents import REPORT, expected, json_of, report_ops
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import PerfModel, WorkColumns
from tracelens.predict.calibration.device import Mask, Measured, MeasuredPart
from tracelens.predict.estimation.estimate import ESTIMATED
from tracelens.predict.estimation.table_kinds import KINDS, size_faults, with_sizes
from tracelens.trace.table import signature_of_lists
from tracelens.types.records import pd
from tracelens.types.signature import OpSignature, freeze
from tracelens.types.units import NS_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.analyze import Analysis

#: What a column of times is called, and how many us its unit has.
TIMES = {"latency_ms": 1e3, "latency": 1e3, "time_ms": 1e3, "latency_us": 1.0, "measured_us": 1.0, "time_us": 1.0}
_HEADS = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
#: Kind of table -> the family of its calls, and what those of one shape group have in common.
_TABLES = {
    "gemm": ("gemm", ("n", "k")),
    "context-attention": ("prefill", _HEADS),
    "generation-attention": ("decode", _HEADS),
    "context-mla": ("prefill", ("num_heads",)),
    "generation-mla": ("latent", ("num_heads",)),
    "moe": ("moe", ("hidden_size", "inter_size", "num_experts", "topk")),
    "sdpa": ("prefill", ("q_heads", "kv_heads", "d_qk", "window", "causal")),
}
#: Family -> what calls of one shape group have in common, by name.
_GROUPED_BY = {
    "gemm": ("n", "k"), "grouped-gemm": ("n", "k"), "sdpa": ("q_heads", "kv_heads", "d_qk", "window"),
    "moe": ("hidden", "ffn", "experts", "top_k"),
}  # fmt: skip


def table_kind(table: pd.DataFrame, name: str) -> str:
    """Which of ``estimation.KINDS`` a table of measured times is, by its columns. InputError when none."""
    known = {name: KINDS[name] for name in _TABLES}
    found = next((kind for kind, of in known.items() if all(column in table for column in of.needed)), None)
    if found is None or not any(column in table for column in TIMES):
        raise InputError(
            f"{name}: a calibration table needs the columns of estimate --batch and a time: "
            f"{', '.join(TIMES)}; it has {', '.join(map(str, table))}"
        )
    decodes = found.startswith("context") and bool((table["isl"] == 1).all())
    return found.replace("context", "generation") if decodes else found


def table_measured(table: pd.DataFrame, device: HardwareSpec, name: str) -> list[Measured]:
    """The rows of ``device`` (all, where there is no column of that name), by precision. InputError for other tables.

    Rows are layers of an inference engine, as ``estimate --batch`` prices them.
    """
    what = table_kind(table, name)
    kind, column = KINDS[what], next(column for column in TIMES if column in table)
    family, grouped_by = _TABLES[what]
    measured = measured_rows(table, column, size_faults(table, kind, name), name)
    table = with_sizes(table, kind).assign(**{column: numbers(table, column, TIME)})[measured]
    times, good = table[column].to_numpy(np.float64) * TIMES[column], of_device(table, device)
    types = texts(table, kind.dtype, "bf16") if kind.dtype in table else ["bf16"] * len(table)
    precisions = np.array([ESTIMATED.get(text.lower(), "") for text in types], dtype=object)
    passes = np.array(texts(table, "pass") if "pass" in kind.apart and "pass" in table else [""] * len(table), object)
    found: list[Measured] = []
    for each, which in sorted(set(zip(precisions[good].tolist(), passes[good].tolist(), strict=True))):
        rows = good & (precisions == each) & (passes == which)
        if not each:
            continue
        part = table[rows].reset_index(drop=True)
        columns = kind.columns(part, each)
        keys = part[[key for key in grouped_by if key in part]].fillna(0).to_numpy(float)
        gradient = isinstance(columns, AttentionColumns) and columns.gradient
        family_run = "backward" if gradient else family
        measured_calls = Measured(
            family=family_run,
            precision=each,
            parts=(MeasuredPart(rows=len(part), price=batch_price(columns)),),
            time_us=times[rows],
            groups=np.array(["/".join(f"{value:g}" for value in row) for row in keys]),
            use=_to_fit(columns, each, device, family_run),
        )
        found += [measured_calls, *by_origami(measured_calls, columns, device)]
    return found


def of_device(table: pd.DataFrame, device: HardwareSpec) -> Mask:
    if "device" not in table:
        return np.ones(len(table), bool)
    names = texts(table, "device")
    mine = set[str]()
    for text in {*names}:
        with contextlib.suppress(UsageError, InputError):
            if not is_file_name(text) and HardwareSpec.load(text).name in (device.name, device.based_on):
                mine.add(text)
    return np.array([text in mine for text in names], dtype=bool)


def by_origami(measured: Measured, batch: ColumnBatch, device: HardwareSpec) -> list[Measured]:
    """The same calls as Origami answers them, where it is installed and does."""
    family = calibrated_family(batch)
    answers = Origami().uncalibrated_us(batch, device) if family is not None else np.full(len(batch), np.nan)
    known = np.isfinite(answers)
    if family is None or not known.any():
        return []

    def priced(trial: HardwareSpec, rows: Mask) -> Floats:
        found: Floats = answers[rows] * slowdowns(batch.take(rows), trial)
        return found

    part = MeasuredPart(rows=len(answers), price=priced)
    return [replace(measured, family=family, parts=(part,), use=known)]


def batch_price(batch: ColumnBatch) -> Any:
    """The price of a column batch's rows, as the tile model answers."""

    def priced(device: HardwareSpec, rows: Mask) -> Floats | None:
        found = batch.take(rows).price(device)
        return None if found is None else found.time_us

    return priced


def _to_fit(columns: ColumnBatch, which: str, device: HardwareSpec, family: str) -> Mask:
    """All rows but those that another kernel runs than the one whose constants are fitted."""
    use = np.ones(len(columns), bool)
    if not isinstance(columns, AttentionColumns):
        return use
    if family == "prefill":
        # One new token is decoding, whatever the benchmark is called.
        use &= columns.s > 1
    if which == "fp8" and device.match is not None and device.match.compute_major != 9:
        # These heads take a fallback up to 27 times slower on Ada and Blackwell.
        use &= ~((columns.q_heads == 64) & (columns.kv_heads == 4) & (columns.d_qk == 192))
    return use


def analysis_measured(analysis: Analysis) -> list[Measured]:
    """The calls of a trace that have a perf model: kernels alone, one row per distinct call with its mean time.

    Without copies from host to device or between devices: links limit them, not the memory that is fitted here.
    """
    frame = analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    if frame is None or "example_row" not in frame:
        return []
    frame = frame[(frame["example_row"] >= 0) & (frame["category"] != COPY)]
    rows = frame["example_row"].to_numpy(np.int64)
    readings = OpReadings(analysis.trace.table, Catalog(analysis.extensions), np.unique(rows).astype(np.int32))
    models = [readings.readings[code].model for code in readings.code_of(rows).tolist()]
    return calls_measured(zip(models, frame["name"].astype(str), frame["kernel_us_mean"].tolist(), strict=True))


def report_measured(path: Path) -> tuple[list[Measured], str | None]:
    """The ops of a ``report.json`` like ``analysis_measured``, and the device that it names. InputError for others."""
    document = json_of(path, REPORT)
    with expected(path, REPORT):
        ops, catalog = report_ops(document), _catalog_of(document)
        device = (document.get("device") or {}).get("id")
        records = [
            (op, TIME.of(op["kernel_us_mean"], f"{path}: ops[{at}].kernel_us_mean"))
            for at, op in enumerate(ops)
            if op["kernel_us_mean"]
        ]
        calls = [(catalog.read(signature_of(recorded)).model, recorded["name"], time) for recorded, time in records]
    return calls_measured(calls), device


def _catalog_of(document: Mapping[str, Any]) -> Catalog:
    """Of the bundled extensions that a ``report.json`` was made with."""
    names = [name for name in document["extensions"] if isinstance(name, str) and name.isidentifier()]
    return Catalog([load_extension(name) for name in names])


def signature_of(recorded: Mapping[str, Any]) -> OpSignature:
    """The signature of one of a ``report.json``'s ops."""
    lists = (recorded[key] for key in ("input_dims", "input_types", "input_strides", "concrete_inputs"))
    return signature_of_lists(str(recorded["name"]), *(freeze(v) if isinstance(v, list) else None for v in lists))


def calls_measured(calls: Iterable[tuple[PerfModel | None, str, float]]) -> list[Measured]:
    """(perf model, op name, mean time in us) of distinct calls."""
    rows: dict[tuple[str, str], list[tuple[PerfModel, str, float]]] = defaultdict(list)
    for model, name, time_us in calls:
        kind: Any = type(model)
        claim = None if model is None or not time_us > 0 else pricer_of(kind)
        key = None if claim is None else claim.options["row"](model)
        if model is not None and key is not None:
            # calls of one shape group are alike in everything but their rows
            names = _GROUPED_BY.get(model.price_family() or "", ("",))
            alike = all(hasattr(model, each) for each in names)
            group = "/".join(str(getattr(model, each)) for each in names) if alike else name
            rows[key].append((model, group, time_us))
    return [_models(family, which, some) for (family, which), some in sorted(rows.items())]


def _models(family: str, which: str, rows: Sequence[tuple[PerfModel, str, float]]) -> Measured:
    columns = WorkColumns.of(model for model, _, _ in rows)
    time_us = np.array([time for _, _, time in rows])

    def streamed(device: HardwareSpec, part: Mask) -> Floats | None:
        constants = memory_bound.calibration(device, which)
        found = None if constants is None else memory_bound.price(columns.hbm_bytes[part], device, constants)
        return None if found is None else found.time_us

    def priced(device: HardwareSpec, part: Mask) -> Floats:
        return Tile().estimate_many(columns.take(np.flatnonzero(part).tolist()), System(device=device)).time_us

    return Measured(
        family=family,
        precision=which,
        parts=(MeasuredPart(rows=len(rows), price=streamed if family == "memory_bound" else priced),),
        time_us=time_us,
        groups=np.array([group for _, group, _ in rows]),
        use=np.ones(len(rows), bool),
    )


def report_step(path: Path) -> MeasuredStep:
    """The mean step of a ``report.json``; the whole window where no steps were marked. NCCL's collectives are not in
    it. InputError for other files.
    """
    document = json_of(path, REPORT)
    with expected(path, REPORT):
        marked, busy = document["step"] or {}, document["busy"]
        steps = COUNT.count(marked.get("count") or 1, f"{path}: step.count")
        step_us = TIME.of(marked.get("time_us") or busy["total_us"], f"{path}: step.time_us")
        catalog, calls = _catalog_of(document), []
        for op in report_ops(document):
            inside = op.get("per_step", {"count": op["operation_count"] / steps})
            if op["kernel_us_mean"] and op.get("name") and inside["count"]:
                time_us = inside["us"] / inside["count"] if "us" in inside else op["kernel_us_mean"]
                name, model = op["name"], catalog.read(signature_of(op)).model
                calls.append(
                    MeasuredCall(name=str(name), model=model, count=float(inside["count"]), time_us=float(time_us))
                )
        return MeasuredStep(step_us=step_us, idle_us=float(busy["idle"]) * step_us, calls=tuple(calls))


def trace_step(analysis: Analysis) -> MeasuredStep:
    """The mean step of an analyzed trace; the whole window where no steps were marked."""
    steps = len(analysis.complete_steps) or 1
    catalog, calls = Catalog(analysis.extensions), []
    ops = analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    if ops is not None and "example_row" in ops:
        columns = (ops[name] for name in ("example_row", "name", "operation_count", "kernel_us_mean"))
        for row, name, count, mean in zip(*columns, strict=True):
            if row == row and row >= 0 and mean > 0:
                model = catalog.read(analysis.trace.table.signature_of(int(row))).model
                calls.append(MeasuredCall(name=str(name), model=model, count=count / steps, time_us=float(mean)))
    collectives = collective_rows(analysis.trace.table, analysis.trace.tree, analysis.activity)
    if len(collectives):
        columns = (collectives[name] for name in ("collective", "operation_count", "duration_us_mean"))
        for model, name, count, mean in zip(collective_models(collectives, stride=1), *columns, strict=True):
            calls.append(MeasuredCall(name=str(name), model=model, count=count / steps, time_us=float(mean)))
    timeline = analysis.timeline
    return MeasuredStep(
        step_us=timeline.total_ns / NS_PER_US / steps, idle_us=timeline.idle_ns / NS_PER_US / steps, calls=tuple(calls)
    )
