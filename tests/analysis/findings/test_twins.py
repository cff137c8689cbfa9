"""Each rule and each cause speaks on a recording and is silent on its twin."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.findings.twins import TWINS, Change, Events, Twin
from tests.conftest import TRACES, part
from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.window import Recording, Window, attribute
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.idle_rules import LEAST_SHARE
from tracelens.analysis.findings.rule import MIN_GAIN, Observed, Rule
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.priced_calls import PricedCalls

RULES = {claim.key: Rule.of(claim) for claim in built_in_rules().values()}


@lru_cache(maxsize=1)
def recorded(name: str) -> str:
    return gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()).decode()


def observed(name: str, changes: tuple[Change, ...]) -> Observed:
    document: dict[str, Any] = json.loads(recorded(name))
    events: Events = document.pop("traceEvents")
    for change in changes:
        change(events)
    options = AnalysisOptions()
    recording = Recording.of(Trace.of(read_events(events, document, source=Path(name).name)), options)
    window = Window.of(recording, options)
    attribution = attribute(recording, window, options)
    priced = PricedCalls.of(recording, window, attribution, options)
    return Observed(
        SheetContext(
            recording=recording,
            options=options,
            step_times=window.times,
            selected=window.selected,
            window=window,
            attribution=attribution,
            priced=priced,
        )
    )


def said(seen: Observed, kind: str) -> list[str]:
    """What a rule says that is worth a line; of a cause without a rule, that it is there."""
    if kind in RULES:
        least = MIN_GAIN * seen.window_ns
        return [each.why for each in RULES[kind].candidates(seen) if each.claimed.high_ns.sum() > least]
    parts = seen.idle_of(kind.removeprefix("idle: "))
    return [kind] if seen.idle_ns[parts].sum() > LEAST_SHARE * seen.window_ns else []


#: Rules that no other test of this folder makes speak.
NOWHERE_ELSE = {"slow_convolutions"}


@pytest.mark.shared
@pytest.mark.parametrize(
    "twin", part(TWINS, 10, [twin for twin in TWINS if twin.kind in NOWHERE_ELSE]), ids=lambda twin: twin.kind
)
def test_a_rule_speaks_on_its_recording_and_is_silent_on_its_twin(shared_traces: Path, twin: Twin) -> None:
    assert said(observed(*twin.speaks), twin.kind)
    assert not said(observed(*twin.silent), twin.kind), twin.why


#: Rules that need a file beside the trace: their twins are in tests/analysis/sheets/test_compiled_code.py.
BESIDE = {"graph_break", "recompilation"}


def test_every_rule_and_every_cause_has_a_twin() -> None:
    kinds = {twin.kind for twin in TWINS}
    assert kinds | BESIDE == {*RULES, *(f"idle: {cause}" for cause in CAUSES)}
    assert len(kinds) == len(TWINS)


def test_a_twin_differs_from_what_a_rule_speaks_on() -> None:
    assert all(twin.speaks != twin.silent for twin in TWINS)
    assert np.unique([twin.why for twin in TWINS]).size > 0.9 * len(TWINS)
