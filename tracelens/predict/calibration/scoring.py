"""How far predictions were from measured points, by family: anybody's predictions, of anything that is above 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import FIRST_ROW, Number, is_blank, read_table
from tracelens.types.records import Record, pd

#: Pairs of columns that files have, measured and predicted, with the bounds of an interval; the first that is there is
#: scored, and each of ``ENERGY_PAIRS``.
PAIRS = (
    ("measured", "predicted", "low", "high"),
    ("step_time_s", "step_time_s_est", "step_time_s_low", "step_time_s_high"),
    ("tokens_s_gpu", "tokens_s_gpu_est", "", ""),
    ("tpot_ms", "tpot_ms_est", "tpot_ms_low", "tpot_ms_high"),
    ("median_itl_ms", "itl_ms_est", "itl_ms_low", "itl_ms_high"),
    ("power_w", "power_w_est", "power_w_low", "power_w_high"),
)
ENERGY_PAIRS = (
    ("energy_per_token_joules", "energy_per_token_j_est", "energy_per_token_j_low", "energy_per_token_j_high"),
    ("power_w_gpu", "power_w_gpu_est", "", ""),
)
#: Columns that tell families apart, the first that is there.
FAMILIES = ("family", "model", "model_path", "model_id")
ALL = "all"
_ABOVE_0 = Number(least=1e-12)
_DRAWS = 1000


class Score(Record, frozen=True, kw_only=True):
    """Errors are |predicted / measured - 1|; ``signed`` is the median with its sign. ``median_low`` to ``median_high``:
    where the median is in nine of ten draws of families. ``inside``: share of measured values between the bounds that
    the file states, None where it states none. ``missing``: rows without a prediction.
    """

    name: str
    rows: int
    missing: int
    median: float | None = None
    p90: float | None = None
    signed: float | None = None
    median_low: float | None = None
    median_high: float | None = None
    inside: float | None = None


class ScoreColumns(Record, frozen=True, kw_only=True):
    """Names of a file's columns; ``low`` and ``high`` empty: it has no intervals. ``area`` empty: one for all."""

    measured: str
    predicted: str
    low: str
    high: str
    family: str
    area: str

    @classmethod
    def of(cls, path: Path, table: pd.DataFrame, *, family: str | None = None) -> list[ScoreColumns]:
        """Of each pair that is scored. InputError for a file without measured and predicted values."""
        pairs = [pair for pair in PAIRS if {*pair[:2]} <= {*table.columns}][:1]
        pairs += [pair for pair in ENERGY_PAIRS if {*pair[:2]} <= {*table.columns}]
        if not pairs:
            known = ", ".join(f"{measured} and {predicted}" for measured, predicted, *_ in (*PAIRS, *ENERGY_PAIRS))
            raise InputError(f"{path.name}: no pair of columns to compare; it needs {known}")
        if family is not None and family not in table.columns:
            raise UsageError.unknown(f"column of {path.name}", family, map(str, table.columns))
        grouped = family or next((name for name in FAMILIES if name in table.columns), "")
        area = "area" if "area" in table.columns else ""
        found = []
        for measured, predicted, *bounds in pairs:
            low, high = bounds if {*bounds} <= {*table.columns} else ("", "")
            found.append(cls(measured=measured, predicted=predicted, low=low, high=high, family=grouped, area=area))
        return found


def public_predictions() -> Path:
    """Predictions of published measurements by constants that were fitted without them, each over its measured value;
    ``python -m benchmarks.public_scores FOLDER`` writes them."""
    return Path(__file__).with_name("public_scores.csv")


def score_file(path: Path, *, family: str | None = None) -> tuple[Score, ...]:
    """All rows, each area, and each family, in this order; of a second pair of columns, under its predicted name.
    InputError, with the row, for a value that is none.
    """
    table = read_table(path)
    first, *others = ScoreColumns.of(path, table, family=family)
    rows = table.to_dict("records")
    scores = list(_scores(path, rows, first))
    for columns in others:
        scores += [replace(each, name=f"{columns.predicted}: {each.name}") for each in _scores(path, rows, columns)]
    return tuple(scores)


def errors_by_area(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    """|predicted / measured - 1| of the first pair of columns, ascending, by area; ``ALL`` where a file has none."""
    table = read_table(path)
    columns = ScoreColumns.of(path, table)[0]
    rows = table.to_dict("records")
    measured, predicted = (_values(path, rows, name) for name in (columns.measured, columns.predicted))
    error = np.abs(predicted / measured - 1)
    area = np.array([str(row[columns.area]) if columns.area else ALL for row in rows], object)
    known = ~np.isnan(error)
    return {name: np.sort(error[known & (area == name)]) for name in sorted(set(area[known].tolist()))}


def _scores(path: Path, rows: Sequence[Mapping[object, object]], columns: ScoreColumns) -> Iterator[Score]:
    names = (columns.measured, columns.predicted, columns.low, columns.high)
    measured, predicted, low, high = (_values(path, rows, name) for name in names)
    known = np.flatnonzero(~np.isnan(measured)).tolist()
    if not known:
        raise InputError(f"{path.name}: no row has a value in {columns.measured}")
    family = np.array([str(rows[at].get(columns.family, "")) for at in known], object)
    points = _Points(measured[known], predicted[known], low[known], high[known], family)
    yield points.score(ALL, np.arange(len(known)))
    for column in dict.fromkeys(filter(None, (columns.area, columns.family))):
        groups: dict[str, list[int]] = {}
        for place, at in enumerate(known):
            groups.setdefault(str(rows[at][column]), []).append(place)
        yield from (points.score(name, np.array(places)) for name, places in sorted(groups.items()))


class _Points(Record, frozen=True):
    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    family: npt.NDArray[np.object_]

    def score(self, name: str, places: npt.NDArray[np.intp]) -> Score:
        answered = places[~np.isnan(self.predicted[places])]
        missing = len(places) - len(answered)
        if not len(answered):
            return Score(name=name, rows=0, missing=missing)
        error = self.predicted[answered] / self.measured[answered] - 1
        low, high = _drawn(np.abs(error), self.family[answered])
        bounded = answered[~np.isnan(self.low[answered]) & ~np.isnan(self.high[answered])]
        value = self.measured[bounded]
        inside = (self.low[bounded] <= value) & (value <= self.high[bounded])
        return Score(
            name=name,
            rows=len(answered),
            missing=missing,
            median=float(np.median(np.abs(error))),
            p90=float(np.percentile(np.abs(error), 90)),
            signed=float(np.median(error)),
            median_low=low,
            median_high=high,
            inside=float(inside.mean()) if len(bounded) else None,
        )


def _drawn(size: npt.NDArray[np.float64], family: npt.NDArray[np.object_]) -> tuple[float | None, float | None]:
    """Between which the median is in nine of ten draws of as many families; None with fewer than three."""
    names = sorted(set(family.tolist()))
    if len(names) < 3:
        return None, None
    parts = [size[family == name] for name in names]
    draw = np.random.default_rng(0).integers(0, len(parts), (_DRAWS, len(parts)))
    medians = [float(np.median(np.concatenate([parts[at] for at in one]))) for one in draw]
    low, high = np.percentile(medians, (5, 95)).tolist()
    return low, high


def _values(path: Path, rows: Sequence[Mapping[object, object]], column: str) -> npt.NDArray[np.float64]:
    """NaN where a cell is blank, and for a column that a file has not."""
    if not column:
        return np.full(len(rows), np.nan)
    cells = [
        np.nan if is_blank(row[column]) else _ABOVE_0.of(row[column], f"{path.name}: row {number}: {column}")
        for number, row in enumerate(rows, FIRST_ROW)
    ]
    return np.array(cells, float)


_HEADS = ("family", "rows", "no prediction", "median", "of families drawn", "p90", "signed", "inside")


def score_lines(scores: Sequence[Score], drawn: str = "families") -> list[list[str]]:
    """Heads and a line of texts per score, shares in percent; ``drawn``: of what groups the medians' draws are."""
    lines = [[head.replace("families", drawn) for head in _HEADS]]
    for each in scores:
        span = "" if each.median_low is None else f"{_percent(each.median_low)} to {_percent(each.median_high)}"
        lines.append([
            each.name, f"{each.rows:,}", f"{each.missing:,}", _percent(each.median), span, _percent(each.p90),
            _percent(each.signed, "+"), _percent(each.inside),
        ])  # fmt: skip
    return lines


def score_words(drawn: str) -> list[str]:
    """What the heads say; ``drawn``: of what groups, such as families."""
    return [
        "median and 90th percentile (p90) of |predicted / measured - 1|; signed: median of predicted / measured - 1",
        f"of {drawn} drawn: the median in 9 of 10 draws of as many; inside: share within their predicted intervals",
    ]


def _percent(share: float | None, sign: str = "") -> str:
    return "" if share is None else f"{share:{sign}.1%}"
