"""Constants of the tile model from measured times: of a user's traces, reports and tables, or of published ones.

Whatever writes constants of a device file goes through ``device_file``. ``docs/estimation.md`` says how well it does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracelens.files.documents import toml_of
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import CONSTANTS, Calibration
from tracelens.predict.calibration.fitting import Bounds, Fit, fitted, undetermined
from tracelens.types.records import Record

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: Fewer shape groups than this determine nothing.
LEAST_GROUPS = 3
#: As many groups give two halves, of which each is estimated by the constants of the other.
LEAST_GROUPS_TO_SPLIT = 6
# A constant moved by a factor e costs as much as an error of 5 % in one row: what the data leave open stays put.
_INERTIA = 0.05
#: Family -> constant -> bounds.
BOUNDS: Mapping[str, Mapping[str, Bounds]] = {
    family: {name: (start, least, most) for name, (start, least, most) in constants.items()}
    for family, constants in toml_of(Path(__file__).with_name("bounds.toml")).items()
}
_ATTENTION_KERNELS = {(9, 0): "flash-attention-3", (8, 9): "ada"}
#: Hopper's per-tensor kernel streams weights at a sixth of the peak: start there.
_HOPPER_FP8_EXPERTS = {
    "matrix_efficiency": 0.17, "hbm_efficiency": 0.15, "k_overhead": 8.0, "launch_us": 16.0, "active_us": 100.0,
}  # fmt: skip


class MeasuredPart(Record, frozen=True, kw_only=True, eq=False):
    """Measured calls of one kind: ``price(device, rows)`` gives their estimates in us, None where there are none."""

    rows: int
    price: Callable[[HardwareSpec, Mask], Floats | None]


class Measured(Record, frozen=True, kw_only=True, eq=False):
    """Measured calls of one family and precision: times in us, and the shape group of each.

    ``use`` marks the rows to fit on; the others only count in errors.
    """

    family: str
    precision: str
    parts: tuple[MeasuredPart, ...]
    time_us: Floats
    groups: npt.NDArray[np.str_]
    use: Mask

    def estimate(self, device: HardwareSpec, constants: Calibration | None, rows: Mask) -> Floats:
        """Estimates of some rows with these constants, or with the device's own; NaN where there are none."""
        key = (self.family, self.precision)
        trial = device if constants is None else replace(device, calibrated={**device.calibrated, key: constants})
        found, first = np.full(int(rows.sum()), np.nan), 0
        placed = np.cumsum(rows) - 1
        for part in self.parts:
            mine = rows[first : first + part.rows]
            if mine.any():
                times = part.price(trial, mine)
                if times is not None:
                    found[placed[first : first + part.rows][mine]] = times
            first += part.rows
        return found

    def halves(self) -> npt.NDArray[np.int64]:
        """0 or 1 per row; rows of one shape group are in one half."""
        return np.array([zlib.crc32(name.encode()) % 2 for name in self.groups.tolist()])


class FitOutcome(Record, frozen=True, kw_only=True):
    """What a fit gave. Errors are means of |estimate / measured - 1| in percent, None where there is none.

    ``before`` is with the device's own constants, ``after`` with ``calibration``, ``unseen`` that of each half of the
    shape groups by constants fitted on the other. ``calibration`` None: nothing was fitted, ``warnings`` say why.
    """

    family: str
    precision: str
    rows: int
    groups: int
    before: float | None
    after: float | None = None
    unseen: float | None = None
    calibration: Calibration | None = None
    warnings: tuple[str, ...] = ()


def joined(measured: Sequence[Measured]) -> list[Measured]:
    """One per family and precision, whatever it came from."""
    together: dict[tuple[str, str], list[Measured]] = {}
    for each in measured:
        together.setdefault((each.family, each.precision), []).append(each)
    return [
        Measured(
            family=family,
            precision=precision,
            parts=tuple(part for each in some for part in each.parts),
            time_us=np.concatenate([each.time_us for each in some]),
            groups=np.concatenate([each.groups for each in some]),
            use=np.concatenate([each.use for each in some]),
        )
        for (family, precision), some in sorted(together.items())
    ]


def kernel(family: str, precision: str, device: HardwareSpec) -> str | None:
    """The tile choice of the library that was measured on this architecture."""
    version = device.compute or (0, 0)
    if device.vendor == "amd":
        attention = dict.fromkeys(("prefill", "decode", "backward"), "composable-kernel")
        return {"gemm": "hipblaslt", **attention, "moe": "replayed" if version == (8, 0) else "plain"}.get(family)
    if family in ("prefill", "decode", "backward"):
        name = _ATTENTION_KERNELS.get(version, "trtllm-gen" if version[0] == 10 else "flash-attention-2")
        return f"{name}-fp8" if precision == "fp8" and name != "flash-attention-2" else name
    gemm = "cutlass-sm90" if (version[0], precision) == (9, "fp8") else "cutlass"
    return {
        "gemm": "cublas" if precision == "bf16" else gemm,
        "latent": "trtllm-gen-mla" if version[0] == 10 else "flash-mla",
        "moe": "replayed" if version == (8, 0) else "plain",
    }.get(family)


def bounds(family: str, precision: str, device: HardwareSpec) -> dict[str, Bounds]:
    """The constants that are fitted on this architecture, at most eight."""
    (major, minor), every = device.compute or (0, 0), BOUNDS[family]
    is_nvidia = device.vendor == "nvidia"
    blackwell, hopper = major == 10, (major, minor, is_nvidia) == (9, 0, True)
    if family == "gemm":
        return {name: every[name] for name in _gemm_constants(precision, is_blackwell=blackwell)}
    absent: set[str] = set()
    if family == "decode":
        absent = {"l2_efficiency" if hopper else "wide_head"}
    found = {name: of for name, of in every.items() if name not in absent}
    starts = _HOPPER_FP8_EXPERTS if (family, precision, hopper) == ("moe", "fp8", True) else {}
    return found | {name: (start, *found[name][1:]) for name, start in starts.items()}


def _gemm_constants(precision: str, *, is_blackwell: bool) -> tuple[str, ...]:
    # Blackwell's epilogue runs beside the next tile's products: what it takes there is writing the tile.
    edge = "store_efficiency" if is_blackwell else "k_overhead"
    tile = ("matrix_efficiency", "hbm_efficiency", "launch_us", edge, "l2_ratio", "unit_ratio")
    return {
        "bf16": (*tile, "split_us"),
        "fp8": (*tile, "row_ns", "single_row_us") if is_blackwell else (*tile, "row_ns"),
        "nvfp4": (*tile, "row_ns"),
        "fp8_block": (
            "matrix_efficiency", "hbm_efficiency", "l2_ratio", "row_ns",
            "host_us", "host_small_us", "host_unaligned_us", "host_fallback_us",
        ),
    }[precision]  # fmt: skip


def fit(
    measured: Measured,
    device: HardwareSpec,
    rows: Mask,
    *,
    start: Calibration,
    limits: Mapping[str, Bounds],
    inertia: float = 0.0,
) -> Fit:
    """Constants with the least mean of |estimate / measured - 1| on ``rows``; others stay as in ``start``.

    ``inertia`` above 0 holds each to its start: a factor e costs as much as that error in one row.
    """
    names, fixed = list(limits), dict(start.constants)
    origin = np.array([limits[name][0] for name in names])

    def estimate(constants: dict[str, float]) -> Floats:
        times = measured.estimate(device, replace(start, constants=fixed | constants), rows)
        if not inertia:
            return times
        moved = np.array([constants[name] for name in names]) / origin
        return np.concatenate([times, moved**inertia])

    target = measured.time_us[rows]
    return fitted(estimate, np.concatenate([target, np.ones(len(names))]) if inertia else target, limits)


def mean_error(estimated: Floats, measured: Floats) -> float | None:
    """Mean of |estimate / measured - 1| in percent over the rows with an estimate; None where there is none."""
    known = np.isfinite(estimated)
    return float(np.abs(estimated[known] / measured[known] - 1).mean() * 100) if known.any() else None


def calibrate(measured: Measured, device: HardwareSpec, source: str) -> FitOutcome:
    """The device's constants moved to where the measured times are.

    What the data do not determine stays at the device's own value, or at a usual one where it has none, and a warning
    says so. Fewer than three shape groups are not fitted.
    """
    key, everything = (measured.family, measured.precision), np.ones(len(measured.time_us), bool)
    own = device.calibration(*key)
    use, groups = measured.use.copy(), len(np.unique(measured.groups[measured.use]))
    before = None if own is None else mean_error(measured.estimate(device, own, everything), measured.time_us)
    outcome = FitOutcome(
        family=measured.family, precision=measured.precision, rows=len(measured.time_us), groups=groups, before=before
    )
    if groups < LEAST_GROUPS:
        return replace(outcome, warnings=(f"{groups} shape groups determine no constant: not fitted",))
    start, limits = _start(measured, device, own)
    use &= np.isfinite(measured.estimate(device, start, everything))
    if not use.any():
        return replace(outcome, warnings=("the device's file has no rates for it: not fitted",))
    found = fit(measured, device, use, start=start, limits=limits, inertia=_INERTIA)
    open_ = _open(measured, device, use, start, limits, found)
    constants = {**start.constants, **found.constants, **{name: start.constants[name] for name in open_}}
    fitted_on = f"tracelens calibrate: {int(use.sum())} rows, {groups} shape groups of {source}"
    if open_:
        fitted_on += f"; not determined, so unchanged: {', '.join(open_)}"
    made = replace(start, constants=constants, fitted_on=fitted_on, error_percent=None, carried_from=None)
    unseen = _unseen(measured, device, use, start, limits) if groups >= LEAST_GROUPS_TO_SPLIT else None
    after = mean_error(measured.estimate(device, made, everything), measured.time_us)
    warnings = _warnings(open_, found, limits, groups, unseen)
    if before is not None and unseen is not None and unseen > before:
        warnings = (*warnings, "on unseen shape groups no better than the device's own constants")
    return replace(
        outcome, after=after, unseen=unseen, calibration=replace(made, error_percent=unseen), warnings=warnings
    )


def _start(measured: Measured, device: HardwareSpec, own: Calibration | None) -> tuple[Calibration, dict[str, Bounds]]:
    """The device's own constants, within limits; usual ones where it has none."""
    limits = bounds(measured.family, measured.precision, device)
    known = dict(own.constants) if own is not None else {}
    if own is not None:
        # The terms that this device's model has, whatever the architecture's usual ones are.
        limits = {name: BOUNDS[measured.family][name] for name in known if name in BOUNDS[measured.family]}
    limits = {
        name: (min(max(known.get(name, usual), least), most), least, most)
        for name, (usual, least, most) in limits.items()
    }
    usual = {name: start for name, (start, _, _) in limits.items()}
    made = Calibration(
        family=measured.family,
        precision=measured.precision,
        constants={**known, **usual},
        kernel=own.kernel if own is not None else kernel(measured.family, measured.precision, device),
        fitted_on="",
    )
    return made, limits


def _open(
    measured: Measured, device: HardwareSpec, use: Mask, start: Calibration, limits: Mapping[str, Bounds], found: Fit
) -> tuple[str, ...]:
    """Constants that the data alone do not determine: without what holds them near their start."""
    target = measured.time_us[use]

    def cost(constants: Mapping[str, float]) -> float:
        trial = replace(start, constants={**start.constants, **constants})
        return float(np.abs(np.log(measured.estimate(device, trial, use) / target)).mean())

    return undetermined(cost, found.constants, limits)


def _unseen(
    measured: Measured, device: HardwareSpec, use: Mask, start: Calibration, limits: Mapping[str, Bounds]
) -> float | None:
    half, errors = measured.halves(), []
    for side in (0, 1):
        mine, other = use & (half != side), use & (half == side)
        if not mine.any() or not other.any():
            return None
        found = fit(measured, device, mine, start=start, limits=limits, inertia=_INERTIA)
        trial = replace(start, constants={**start.constants, **found.constants})
        errors.append(np.abs(measured.estimate(device, trial, other) / measured.time_us[other] - 1))
    return float(np.concatenate(errors).mean() * 100)


def _warnings(
    open_: Sequence[str], found: Fit, limits: Mapping[str, Bounds], groups: int, unseen: float | None
) -> tuple[str, ...]:
    warnings = []
    if open_:
        warnings.append(f"the data do not determine {', '.join(open_)}: unchanged")
    bound = [
        name
        for name, (_, low, high) in limits.items()
        if name not in open_ and min(found.constants[name] / low, high / found.constants[name]) < 1.001
    ]
    if bound:
        warnings.append(f"at the limit of what it can be: {', '.join(bound)}")
    if groups < 2 * len(limits):
        warnings.append(f"{groups} shape groups for {len(limits)} constants: held near where they were")
    if unseen is None:
        warnings.append("too few shape groups to test on unseen ones: no expected error")
    return tuple(warnings)


def device_file(text: str, calibrations: Sequence[Calibration], *, based_on: str | None = None) -> str:
    """The text of a device file with these rows of ``[calibrated]`` in place of its own.

    ``based_on`` names the device of the package that it is, for its standard node.
    """
    if based_on is not None and not text.startswith("based_on"):
        text = f'based_on = "{based_on}"\n{text}'
    return replaced_tables(text, {f"calibrated.{each.family}.{each.precision}": _lines(each) for each in calibrations})


def replaced_tables(text: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The text of a TOML file with the lines of these tables in place of its own, at its end."""
    replaced = {f"[{name}]" for name in tables}
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("["):
            blocks.append([])
        blocks[-1].append(line)
    kept = ["\n".join(block).strip("\n") for block in blocks if not block or block[0].strip() not in replaced]
    new = ["\n".join([f"[{name}]", *lines]) for name, lines in tables.items()]
    return "\n\n".join(part for part in kept + new if part) + "\n"


def _lines(made: Calibration) -> list[str]:
    order = [name for name in CONSTANTS[made.family] if name in made.constants]
    lines = [f"{name} = {rounded(made.constants[name])}" for name in order]
    if made.kernel is not None:
        lines.append(f"kernel = {quoted(made.kernel)}")
    lines.append(f"fitted_on = {quoted(made.fitted_on)}")
    if made.error_percent is not None:
        lines.append(f"error_percent = {max(made.error_percent, 0.1):.1f}")
    return lines


def rounded(value: float) -> str:
    """Three significant digits."""
    return f"{float(f'{value:.3g}'):g}"


def quoted(text: str) -> str:
    """A basic string of TOML: what a file is called may hold anything."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
