"""Many searches: every combination of figures, models and clusters, on any executor, going on where it stopped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tracelens.errors import InputError, UsageError
from tracelens.executors import outcomes
from tracelens.projection.search.request import Request, answer
from tracelens.projection.search.systems import Figures

if TYPE_CHECKING:
    import pandas as pd

FIGURES = tuple(each.name for each in fields(Figures))
#: Axes of a sweep, and the columns that name a point; an own figure of the system is empty.
AXES = ("model", "cluster", *FIGURES)
#: Values of an evenly divided range.
_MOST_VALUES = 1000
#: Column that says what else was asked of every point.
_ASKED = "asked"
_COLUMN = {name: f"set_{name}" for name in FIGURES} | {"model": "model", "cluster": "cluster"}


def parse_axes(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """``flops=1250/2500/5000,hbm_gb=96..384,ib_gb_s=50..200:4``: values by ``/``, from..to by doubling, or so many
    values evenly between. UsageError for others.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for item in (part for text in texts for part in text.split(",")):
        name, equals, values = (part.strip() for part in item.partition("="))
        if not equals or name not in AXES:
            raise UsageError(
                f"--sweep takes NAME=V/V/V, NAME=V..V or NAME=V..V:COUNT with NAME of {', '.join(AXES)}; got {item!r}"
            )
        axes[name] = tuple(values.split("/")) if name in ("model", "cluster") else tuple(_numbers(name, values))
    return axes


def points(request: Request, axes: Mapping[str, Sequence[Any]]) -> list[Request]:
    """One request per combination of values, the last axis fastest."""
    made = []
    for values in itertools.product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        figures = {name: given.pop(name) for name in FIGURES if name in given}
        made.append(replace(request, **given, figures=replace(request.figures, **figures)))
    return made


def key(request: Request) -> tuple[str, ...]:
    """What tells a point from the others, as its rows in a file do."""
    figures = (getattr(request.figures, name) for name in FIGURES)
    return (request.model, request.cluster, *("" if value is None else f"{value:g}" for value in figures))


def asked(request: Request) -> str:
    """All of a request that no axis varies; rows of a file that say otherwise answer another question."""
    wanted = request.wanted
    parts = {
        "rules": request.rules,
        "attention": "" if request.attention == "fused" else request.attention,
        "strategies": "/".join(request.strategies),
        "gpus": "/".join(map(str, sorted(set(request.gpus)))),
        "global batch": request.global_batch,
        "sequence": request.sequence,
        "precisions": "/".join(request.precisions),
        "backends": request.backends,
        "framework": request.framework,
        "fixed": "/".join(f"{name}={value}" for name, value in sorted(wanted.fixed.items())),
        "forbidden": "/".join(sorted(wanted.forbidden)),
        "headroom": wanted.headroom,
        "price": request.price_per_gpu_hour,
        "top": request.top,
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items() if value)


def rows(request: Request) -> pd.DataFrame:
    """The best configurations of one point, with the columns that name it."""
    table = answer(request).fits.copy()
    named = dict(zip(AXES, key(request), strict=True))
    for name in ("cluster", *FIGURES):
        table[_COLUMN[name]] = named[name]
    table[_ASKED] = asked(request)
    return table


def sweep(
    requests: Sequence[Request],
    executor: Executor,
    *,
    done: pd.DataFrame | None = None,
    save: Callable[[pd.DataFrame], None] = lambda table: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """All points' rows in the order of ``requests``, and why any point has none. ``save`` gets all after each point.

    ``done``: rows of an earlier run; points that they have are not searched again. A point where nothing fits has no
    row, and is searched again. InputError for rows of a run that asked something else.
    """
    import pandas as pd

    order = {key(request): place for place, request in enumerate(requests)}
    known = _by_point(done, asked(requests[0])) if done is not None else {}
    found = {point: frame for point, frame in known.items() if point in order}
    errors: list[str] = []
    table = pd.DataFrame()
    waiting = [request for request in requests if key(request) not in found]
    progress(len(requests) - len(waiting), len(requests))
    for count, outcome in enumerate(outcomes(executor, rows, waiting), len(requests) - len(waiting) + 1):
        point = key(outcome.item)
        if outcome.value is None:
            errors.append(f"{', '.join(filter(None, point))}: {outcome.error}")
        elif len(outcome.value):
            found[point] = outcome.value
        table = _joined(found, order)
        save(table)
        progress(count, len(requests))
    return table if waiting else _joined(found, order), tuple(errors)


def _joined(found: Mapping[tuple[str, ...], pd.DataFrame], order: Mapping[tuple[str, ...], int]) -> pd.DataFrame:
    import pandas as pd

    frames = [found[point] for point in sorted(found, key=order.__getitem__)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _by_point(table: pd.DataFrame, same: str) -> dict[tuple[str, ...], pd.DataFrame]:
    columns = [_COLUMN[name] for name in AXES]
    missing = [name for name in (*columns, _ASKED) if name not in table]
    if missing:
        raise InputError(
            f"the table to resume from was not written by `search --sweep`: it lacks the columns {', '.join(missing)}"
        )
    if other := sorted(set(table[_ASKED].astype(str)) - {same}):
        raise InputError(
            f"the table to resume from is of another search ({other[0]}, not {same}): choose another file with -o"
        )
    named = table.copy()
    for name in columns:
        named[name] = [_text(value) for value in named[name]]
    return {point: named.loc[where] for point, where in named.groupby(columns).groups.items()}  # type: ignore[misc]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or value != value else f"{value:g}"


def _numbers(name: str, text: str) -> Iterator[float]:
    first, dots, last = text.partition("..")
    whole = int if name == "nvs" else float
    try:
        if not dots:
            yield from (whole(value) for value in text.split("/"))
            return
        last, colon, count = last.partition(":")
        value, end = whole(first), whole(last)
        if colon:
            steps = int(count)
            if not (0 < value <= end and 1 < steps <= _MOST_VALUES):
                raise ValueError
            yield from (whole(value + (end - value) * step / (steps - 1)) for step in range(steps))
            return
    except ValueError:
        raise UsageError(f"--sweep {name}: not numbers: {text!r}") from None
    if not 0 < value <= end <= 2**60 * value:
        raise UsageError(f"--sweep {name}: {text!r} is empty, endless, or does not start above 0")
    while value <= end:
        yield value
        value *= 2
