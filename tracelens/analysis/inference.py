"""Inference steps: which engine step every op ran in, and what its annotation says of the requests."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.catalog import Catalog
from tracelens.analysis.intervals import Ints
from tracelens.perf_models.inference_attention import AttentionSums
from tracelens.trace.table import Kind, TraceTable


def inference_sums(table: TraceTable, catalog: Catalog, rows: Ints) -> tuple[Ints, list[AttentionSums]]:
    """(index into the sums for each row, or -1; the distinct sums) from the host annotations around the rows.

    An op belongs to the innermost annotation of its process, on whatever thread, in whose time it started.
    """
    found = np.full(len(rows), -1, np.int64)
    annotations = np.flatnonzero(table.kind == Kind.USER_ANNOTATION)
    sums_of: dict[int, AttentionSums] = {}
    for code in np.unique(table.name[annotations]).tolist():
        step = catalog.inference_step(table.names[code])
        if step is not None and step.sums is not None:
            sums_of[code] = step.sums
    windows = [row for row in annotations.tolist() if int(table.name[row]) in sums_of]
    if not windows:
        return found, []
    windows.sort(key=lambda row: (int(table.start_ns[row]), -int(table.duration_ns[row])))
    distinct = {sums: index for index, sums in enumerate(dict.fromkeys(sums_of.values()))}
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
        found[inside] = distinct[sums_of[int(table.name[row])]]
    return found, list(distinct)
