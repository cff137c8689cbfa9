"""How many bytes an event takes: in columns and tree, and at most while it is analyzed. Bytes that are counted, no times."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tracelens
from benchmarks.read_trace import copies
from tracelens import Trace

EXAMPLE = Path(__file__).resolve().parent.parent / "example_traces" / "moe_ep8" / "rank0.json.gz"
#: Steps of the small and of the large trace, whose difference is the cost of an event.
FEW, MANY = 32, 64


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    texts = [text for text, _ in itertools.islice(copies(EXAMPLE), MANY)]
    path = tmp_path_factory.mktemp("traces") / "t.json"

    def of(steps: int) -> Trace:
        path.write_text("".join(texts[:steps]) + "]}")
        return tracelens.load(path)

    return of(FEW), of(MANY)


def bytes_of(columns: Iterable[Any]) -> int:
    return sum(column.nbytes for column in columns if hasattr(column, "nbytes"))


def fields(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def test_columns_and_tree_take_few_bytes_per_event(traces: tuple[Trace, Trace]):
    table, tree = traces[1].table, traces[1].tree
    assert int(table.external_id.max()) > 2**15  # as in a large trace, more than two bytes hold
    # Kind 1, category 1, name 2, lane 1, start 8, duration 4, stream, device and signature 4, three ids of 4, place in
    # the file 4, a graph's node 1 where there is none: 38. A duration above 2^31 ns would make it 42.
    assert bytes_of(fields(table)) <= 38 * len(table)
    # Start or end 1, category 1, id 4, lane 1, time 8
    assert bytes_of(fields(table.flows)) <= 15 * len(table.flows)
    # Four columns of 4 bytes, one of 2 and two of 1; rows of host events in order, rows and places of launched events
    assert bytes_of(getattr(tree, name) for name in tree.__slots__ if name != "table") <= 25 * len(table)


@pytest.mark.sweep
def test_analysis_takes_few_bytes_per_event(traces: tuple[Trace, Trace]):
    tracelens.report(EXAMPLE)  # what is imported and cached once
    peaks = []
    for trace in traces:
        gc.collect()
        tracemalloc.start()
        tracelens.report(trace)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    events = traces[1].table.events_total - traces[0].table.events_total
    assert (peaks[1] - peaks[0]) / events < 46
