"""Joules of a comparison: those of the reports of both sides, in one way, and a gate on them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TRACES
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.comparison.compare import compare, compare_sides
from tracelens.comparison.gates import Gate
from tracelens.comparison.inputs import read_side, side_of, write_side
from tracelens.comparison.sides import Recorded, Side, StepJoules
from tracelens.errors import InputError, NothingToAnalyzeError, UsageError
from tracelens.report.comparison_report import comparison_json, comparison_text

#: Of devices whose power is known: without collectives and with.
KNOWN = ("h100/gaunernst_bert-small-uncased__1016001.json.gz", "b200/eager_trace.json.gz")
UNKNOWN = "mi300/gaunernst_bert-small-uncased__1016001.json.gz"


def recorded(joules: StepJoules | None, steps: int = 3) -> Recorded:
    """Steps of a kernel of 8 ms and 2 ms of idle time."""
    side = side_of(TRACES / UNKNOWN, AnalysisOptions())
    one = side.first
    count = np.arange(2 * steps)
    return replace(
        one, calls=(one.calls[0], next(call for call in one.calls if call.is_idle)), rates=one.rates[:2],
        call=count % 2, step=count // 2, kernel_ns=np.where(count % 2, 0, 8_000_000), piece_unit=count,
        piece_step=count // 2, piece_ns=np.where(count % 2, 2_000_000, 8_000_000),
        durations_ns=np.full(steps, 10_000_000), event_unit=count[::2], event_kernel=count[::2] * 0,
        event_ns=np.full(steps, 8_000_000), kernel_names=("k",), repeats=np.ones(2 * steps), host=(), typical=0,
        joules=joules, has_steps=True,
    )  # fmt: skip


def side(joules: StepJoules | None) -> Side:
    return Side(name="built", parts=((recorded(joules),),))


def modelled(*joules: float) -> StepJoules:
    return StepJoules(
        modelled=joules, low=tuple(0.9 * j for j in joules), high=tuple(1.1 * j for j in joules), idle_w=100.0
    )


@pytest.mark.shared
@pytest.mark.parametrize("name", KNOWN)
def test_joules_are_those_of_the_report(name: str, shared_traces: Path) -> None:
    """Calls are grouped by op and arguments; a report's rows are a little finer."""
    one = side_of(shared_traces / name, AnalysisOptions()).first.joules
    report = analyze(load(shared_traces / name), AnalysisOptions(), on_demand=True)
    assert one is not None
    assert report.energy is not None
    whole = report.energy.of_spans(np.zeros(len(report.activity), np.int32), np.array([report.timeline.total_ns]))
    found = [float(np.sum(each)) for each in (one.modelled, one.low, one.high)]
    assert found == pytest.approx([float(each[0]) for each in whole], rel=2e-3)


@pytest.mark.shared
def test_what_a_step_draws_is_said_beside_its_time(shared_traces: Path) -> None:
    """3 and 3.3 J of which 2 ms at 100 W are 0.2 J; 10 ms each."""
    found = compare_sides(side(modelled(2.99, 3.0, 3.01)), side(modelled(3.29, 3.3, 3.31)))
    assert "energy 3 -> 3.3 J (modelled): +0.3 J (+10.0 %), 300 -> 330 W; waiting 0.2 -> 0.2 J" in (
        " ".join(comparison_text(found).split())
    )
    assert json.loads(comparison_json(found))["energy"]["change_j"] == pytest.approx(0.3)


@pytest.mark.shared
def test_a_gate_on_energy_fails_beyond_its_limit_and_chance(shared_traces: Path) -> None:
    def passed(gate: str, a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        return compare_sides(side(modelled(*a)), side(modelled(*b)), [Gate.parse(gate)]).gates[0].passed

    same, more, spread = (3.0, 3.001, 2.999), (3.3, 3.301, 3.299), (2.0, 3.3, 4.6)
    assert [passed("energy<+5%", same, each) for each in (same, more, spread)] == [True, False, True]
    assert [passed(limit, same, more) for limit in ("energy<+0.2J", "energy<+0.4 J")] == [False, True]


@pytest.mark.shared
def test_modelled_joules_are_not_compared_with_measured_ones(shared_traces: Path) -> None:
    measured = StepJoules(measured=(2.0, 2.1, 2.2))
    both = replace(modelled(2.9, 3.0, 3.1), measured=(2.5, 2.5, 2.5))
    found = compare_sides(side(modelled(2.9, 3.0, 3.1)), side(measured))
    assert found.energy is None
    assert "joules of A are modelled, of B measured: they are not compared" in found.notes
    with pytest.raises(NothingToAnalyzeError, match="joules of both sides"):
        compare_sides(side(modelled(2.9, 3.0, 3.1)), side(measured), [Gate.parse("energy<+5%")])
    kinds = [compare_sides(side(both), side(each)).energy for each in (measured, modelled(3.0, 3.0, 3.0))]
    assert [each and each.kind for each in kinds] == ["measured", "modelled"]


@pytest.mark.shared
def test_without_a_known_power_nothing_is_written_of_it(tmp_path: Path, shared_traces: Path) -> None:
    found = compare(shared_traces / UNKNOWN, shared_traces / KNOWN[0])
    assert found.energy is None
    assert b"energy" not in comparison_json(found) + comparison_text(found).encode()
    write_side(side_of(shared_traces / UNKNOWN, AnalysisOptions()), tmp_path / "one.json.gz")
    assert b"joules" not in gzip.decompress((tmp_path / "one.json.gz").read_bytes())


@pytest.mark.shared
def test_a_baseline_has_the_joules_of_its_recording(tmp_path: Path, shared_traces: Path) -> None:
    write_side(side(modelled(2.9, 3.0, 3.1)), tmp_path / "one.json.gz")
    assert read_side(tmp_path / "one.json.gz").first.joules == modelled(2.9, 3.0, 3.1)
    write_side(side(modelled(2.9, 3.0)), tmp_path / "two.json.gz")
    with pytest.raises(InputError, match="joules of another number of steps"):
        read_side(tmp_path / "two.json.gz")


def test_energy_is_in_joules() -> None:
    for gate in ("energy<+3ms", "energy<+3", "step<+3J"):
        with pytest.raises(UsageError, match="its limit needs a unit"):
            Gate.parse(gate)
