"""What `tracelens route` can be told, by option, by ``--config file.toml``, or by the original simulator's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tracelens.errors import UsageError
from tracelens.files.data_table import LARGEST, shown
from tracelens.files.documents import toml_of
from tracelens.files.option_fields import integer, option
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB

#: Copies of a token: one per node, forwarded there; one per rank; one per expert.
Dispatch: TypeAlias = Literal["hierarchical", "direct", "per-expert"]
#: 1 byte per ms in GB/s.
BYTES_PER_MS_IN_GB_S = 1e3 / BYTES_PER_GB


class Parameter(Record, frozen=True, kw_only=True):
    """``name`` is the TOML key, and the option with ``-`` for ``_``. ``original`` is the original simulator's name,
    ``production`` its value there; ``scale`` turns the original's unit into ours. ``least``: smallest allowed value.
    """

    name: str
    kind: type[int] | type[float]
    help: str
    original: str | None = None
    production: int | float | None = None
    scale: float = 1.0
    least: float = 0.0


_KINDS: Mapping[str, type[int] | type[float]] = {"int": int, "float": float}
PARAMETERS = tuple(
    Parameter(**given | {"kind": _KINDS[given["kind"]]})
    for given in toml_of(Path(__file__).with_name("parameters.toml"))["parameter"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """How tokens choose experts and travel, beside the figures of ``PARAMETERS``."""

    skew: str | None = option("distribution of tokens over experts; default: uniform", metavar="zipf:1.1")
    groups: int | None = option("expert groups of group-limited gating (DeepSeek-V3: 8)", kind=integer, metavar="N")
    best_groups: int | None = option("groups that a token may choose from (DeepSeek-V3: 4)", kind=integer, metavar="N")
    capacity: float | None = option(
        "drop an expert's tokens above this factor times the mean load", kind=float, metavar="FACTOR"
    )
    slots: int | None = option("physical experts for EPLB; default: one spare per rank", kind=integer, metavar="N")
    steps: int | None = option("number of steps, for --drift", kind=integer, metavar="N")
    drift: float | None = option("share of the experts' log weight that changes per step", kind=float, metavar="0..1")
    dispatch: Dispatch | None = option(
        "copies of a token: one per node, forwarded there (default), one per rank, or one per expert (low latency)",
        choices=get_args(Dispatch), old_flags=("--way",), also=("way",),
    )  # fmt: skip
    dispatch_dtype: str | None = option("element type of dispatched tokens; default: fp8 with scales", metavar="DTYPE")
    combine_dtype: str = option("element type of tokens that experts return", "bf16", metavar="DTYPE")


def element_type(text: str) -> DType:
    """The type of that name. UsageError for an unknown one."""
    found = DType.parse(text)
    if found is None:
        raise UsageError(f"no element type {text!r}; try fp8, bf16, fp16, fp32 or fp4")
    return found


#: What the original declares and never uses: under its rules these have no effect.
NEVER_USED = ("layers", "hidden", "inter_gb_s", "overlap")
#: These have no value unless given; the others have the original's.
_WITHOUT_DEFAULT = frozenset(NEVER_USED)
#: What only the mesh has: switched ports have neither rounds nor links of their own for each pair.
MESH_ONLY = ("links", "base_delay_ms", "intra_bytes_per_ms", "nic_bytes_per_round")
#: Bytes that travel with every copy of a token.
METADATA = ("weight_bytes", "routing_bytes", "id_bytes", "unit_bytes")


def read_config(path: Path) -> dict[str, Any]:
    """Parameters out of a TOML file, keys as ``Parameter.name`` or ``original``. InputError, UsageError."""
    given = toml_of(path)
    by_name = {p.name: p for p in PARAMETERS}
    by_original = {p.original: p for p in PARAMETERS if p.original}
    values: dict[str, Any] = {}
    for key, value in given.items():
        parameter = by_name.get(key) or by_original.get(key)
        if parameter is None:
            raise UsageError.unknown(f"parameter in {path.name}", key, [*by_name, *by_original])
        if parameter.name in values:
            raise UsageError(f"{path.name} gives {parameter.name} twice")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"{path.name}: {key} must be a number, got {shown(value)}")
        values[parameter.name] = value * (parameter.scale if key == parameter.original else 1)
    return values


def settled(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Options over ``config`` over the original's production values; None what nobody said. UsageError out of range."""
    values: dict[str, Any] = {}
    for parameter in PARAMETERS:
        name = parameter.name
        value = given.get(name)
        value = config.get(name) if value is None else value
        if value is None and name not in _WITHOUT_DEFAULT:
            value = parameter.production
        if value is not None:
            if not parameter.least <= value < float("inf"):
                raise UsageError(f"{name} must be a number of at least {parameter.least:g}, got {value:g}")
            if value > LARGEST:
                raise UsageError(f"{name} must be at most {LARGEST:g}, got {shown(value)}")
            if parameter.kind is int and value != int(value):
                raise UsageError(f"{name} must be a whole number, got {value:g}")
            value = parameter.kind(value)
        values[name] = value
    if values["unit_bytes"] is None:
        values["unit_bytes"] = values["weight_bytes"] + 2 * values["id_bytes"] + values["routing_bytes"]
    values["seed"] = values["seed"] or 0
    return values
