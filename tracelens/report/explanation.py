"""How the figures of one row were computed: formula, inputs, the device's rates and their sources."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from tracelens.analysis.reading.process_groups import EVERY_ROW
from tracelens.analysis.verdict.summary import DeviceSummary, SummaryFigure
from tracelens.files.cells import plain_value
from tracelens.perf_models.base import PerfModel
from tracelens.types.dtypes import DType
from tracelens.types.records import Record, pd


class Explanation(Record, frozen=True, kw_only=True):
    """Lines of text; shown as they are in a terminal and in a notebook."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def explain(row: Mapping[str, Any], device: DeviceSummary) -> Explanation:
    """``row``: one of ``unified_perf_summary``, by keys."""
    return explain_plain({key: plain_value(row[key]) for key in row}, device)


def explain_plain(values: Mapping[str, Any], device: DeviceSummary) -> Explanation:
    """The same of plain values (``files.cells``)."""
    model = values.get("model")
    lines = [f"{values.get('name')}  {values.get('input_dims') or ''}".rstrip()]
    if model is None:
        lines.append(f"no perf model: {values.get('note') or 'the op is not known'}")
        return Explanation(lines=(*lines, *_measured(values)))
    known = _model_class(PerfModel, str(model))
    lines += [f"perf model {model}: {values.get('perf_params')}", *(_documented(known) if known else ())]
    lines += [
        f"{label} = {_number(values[key])} {unit}"
        for key, label, unit in _WORK
        if isinstance(values.get(key), int | float)
    ]
    lines += _measured(values)
    lines += [text.format(_number(values[key])) for key, text in _RATES if values.get(key) is not None]
    lines += [f"of {values['remote_from']}"] if values.get("remote_from") == EVERY_ROW else []
    lines += _estimate(values, device)
    return Explanation(lines=tuple(lines))


_WORK = (
    ("gflops", "work of one call", "GFLOP"),
    ("hbm_mb", "HBM traffic of one call, at least", "MB"),
    ("copies_per_token", "copies of a token", "rows"),
    ("wire_mb", "wire bytes of one call, including copies to its own rank", "MB"),
    ("expected_remote_mb", "expected to leave the rank", "MB"),
)
_RATES = (
    ("tflops_s_mean", "achieved {} TFLOPS/s"),
    ("hbm_tb_s_mean", "achieved {} TB/s of HBM"),
    ("effective_interconnect_tb_s_mean", "effective {} TB/s of interconnect, waiting included"),
)


@cache
def _documented(model: type) -> list[str]:
    return [f"    {line}".rstrip() for line in (inspect.getdoc(model) or "").splitlines()]


def _model_class(base: type, name: str) -> type | None:
    found: type
    for found in base.__subclasses__():
        if found.__name__ == name:
            return found
        if (below := _model_class(found, name)) is not None:
            return below
    return None


def _measured(values: Mapping[str, Any]) -> list[str]:
    if values.get("kernel_us_mean") is None:
        return []
    spread = f" ± {_number(values['kernel_us_std'])}" if values.get("kernel_us_std") is not None else ""
    mean, calls = _number(values["kernel_us_mean"]), values.get("operation_count")
    return [f"measured: the kernels of a call take {mean}{spread} µs, over {calls} calls"]


def _estimate(values: Mapping[str, Any], device: DeviceSummary) -> list[str]:
    if values.get("roofline_us") is None:
        if not device.figures:
            return [f"no estimate: {device.note or 'the device is not known'}"]
        unknown = values.get("hbm_mb") is None and not values.get("wire_mb")
        why = "the recorded arguments do not determine its bytes" if unknown else "the device file has no rate for it"
        return [f"no estimate: {why}"]
    time, reached = _number(values["roofline_us"]), _number(values.get("percent_of_roofline_mean"))
    bound, backend = values.get("roofline_bound"), values.get("backend")
    lines = [f"estimate: {time} µs by {backend}, bound by {bound}; the call reaches {reached} %"]
    # The figures of the engine and type in ``compute_spec`` (``matrix_bf16``), of HBM and of the link
    engine, _, dtype_name = str(values.get("compute_spec") or "").partition("_")
    dtype = DType.parse(dtype_name)
    rate = dtype.rate if dtype is not None else None
    for figure in device.figures:
        words = set(figure.what.lower().replace(",", " ").split())
        if {engine, rate} <= words or words & {"hbm", "link"}:
            lines.append(f"    {figure.what}: {_number(figure.value)} {figure.unit} ({figure.source})")
    return lines


def ceilings(rows: pd.DataFrame, device: DeviceSummary) -> list[str]:
    """The rates that shares of the roofline are of, as far as they bound one of ``rows`` (``unified_perf_summary``).

    Of each engine and type, HBM and links, by kernel time; the best measured rate of such a device where there is one.
    None where nothing was estimated.
    """
    if not {"roofline_bound", "compute_spec"} <= set(rows):
        return []
    bounds = rows["roofline_bound"]
    specs = rows["compute_spec"].where(bounds == "compute", bounds).dropna()
    time_us = rows["kernel_us_sum"].groupby(specs).sum().sort_values(ascending=False, kind="stable")
    return [text for spec in time_us.index if (text := _ceiling(str(spec), device.figures)) is not None]


def _ceiling(spec: str, figures: Sequence[SummaryFigure]) -> str | None:
    """``spec``: ``matrix_bf16``, ``memory`` or ``wire``."""
    engine, _, dtype = spec.partition("_")
    begins = f"{engine} {dtype}" if dtype else {"memory": "hbm", "wire": "link"}.get(engine, "")
    known = [figure for figure in figures if begins and figure.what.startswith(f"{begins} ") and figure.value]
    best = next((figure for figure in known if "achievable" in figure.what), known[0] if known else None)
    if best is None:
        return None
    name = f"{dtype} {engine}" if dtype else {"hbm": "HBM"}.get(begins, begins)
    basis = "best measured" if "achievable" in best.what else "data sheet"
    return f"{name} {_number(best.value)} {best.unit} ({basis})"


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else "unknown"
