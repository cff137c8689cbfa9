"""What a trace holds and what it lacks, before anything is concluded from it."""

from __future__ import annotations

import msgspec
import numpy as np

from tracelens.analysis.attribution.activity import device_activity
from tracelens.analysis.attribution.calls import unified_calls, with_communicating_ops
from tracelens.analysis.attribution.steps import find_steps, holds_most_work
from tracelens.analysis.attribution.window import coverage, recognized
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, active_extensions
from tracelens.analysis.reading.added_ops import graph_launches, with_inner_ops, with_own_graphs
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.engine_steps import STEM, inference_steps
from tracelens.analysis.reading.op_readings import read_ops
from tracelens.analysis.sheets.device_timeline import not_recorded
from tracelens.analysis.verdict.summary import Coverage, Unanswered
from tracelens.perf_models import EPComm
from tracelens.trace.links import LinkedBy
from tracelens.trace.provenance import no_shapes, no_stacks, steps_advice
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.types.records import Record

#: Recorded arguments of collectives that say who exchanges how much with whom.
_COLLECTIVE_FIELDS = ("Group size", "Process Group Ranks", "In split size", "Out split size")
#: Parts of argument names that say how tokens are shared out among experts.
_EXPERT_WORDS = ("expert", "topk", "top_k", "routing")
_UNOPENED_GRAPHS = Unanswered(
    question="ops of replayed kernels",
    because="graphs replay kernels without them: record the capture, then report --capture TRACE",
)


class RoutingField(Record, frozen=True, kw_only=True):
    """Something that would say how tokens travel between ranks. ``found`` says where it is; empty: not recorded."""

    name: str
    found: str


class Health(Record, frozen=True, kw_only=True):
    """Counts are events; ``unlinked_time`` is a share of device events' summed duration.

    ``categories``: (category as recorded, complete events), most first. ``linked``: (how, device events) for each way
    of linking that occurs. ``with_shapes``: share of CPU ops with recorded shapes; None without CPU ops.
    ``no_shapes``, ``no_stacks``: why there are none, where there are none; ``steps_advice``: what makes steps.
    ``damage``: what could not be used of the file. ``violations``: invariants of the op tree that do not hold; none in
    a sound one. ``lacks``: views of a report that were not recorded, and what to set for them. ``token_exchanges``:
    (op name, calls) of expert-parallel exchanges. ``coverage``: None without device events.
    """

    source: str
    events: int
    rows: int
    categories: tuple[tuple[str, int], ...]
    cpu_ops: int
    device_events: int
    with_shapes: float | None
    stacks: bool
    no_shapes: str
    no_stacks: str
    linked: tuple[tuple[str, int], ...]
    unlinked: int
    unlinked_time: float | None
    overlaps: int
    steps: tuple[str, int]
    steps_advice: str
    rank: int | None
    world_size: int | None
    device: str | None
    device_note: str
    extensions: tuple[str, ...]
    token_exchanges: tuple[tuple[str, int], ...]
    routing: tuple[RoutingField, ...]
    damage: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    coverage: Coverage | None = msgspec.field(default=None)
    lacks: tuple[Unanswered, ...] = ()


def health(trace: Trace, options: AnalysisOptions | None = None) -> Health:
    """The health of a loaded trace. ``options`` as for a report: its extensions and device count here too."""
    options = options or AnalysisOptions()
    table, tree = trace.table, trace.tree
    extensions = active_extensions(table.names, options)
    recognition = recognized(table, options.device)
    catalog = Catalog(extensions)
    exchanges = _token_exchanges(table, catalog)
    device = table.rows_of(DEVICE_KINDS)
    device_ns = int(table.duration_ns[device].sum())
    found = find_steps(table, tree, device)
    stem, steps = found.stem, found.steps
    served = inference_steps(table, catalog)
    if not steps and holds_most_work(served.steps, table, tree, device):
        stem, steps = STEM, served.steps
    opened, graphs = with_own_graphs(with_inner_ops(trace, catalog)[0], catalog)
    covered = None
    if len(device):
        # As in a report of the whole file, without its tables
        activity = device_activity(opened.table, opened.tree, catalog.kernel_patterns)
        callers, readings = read_ops(opened, catalog, activity)
        activity = with_communicating_ops(activity, callers, readings)
        calls, categories = unified_calls(opened.table, activity, readings, callers)
        covered = coverage(opened.table, activity, calls, readings, categories)
    ways = zip(*(each.tolist() for each in np.unique(tree.linked_by[device], return_counts=True)), strict=True)
    return Health(
        source=table.source,
        events=table.events_total,
        rows=len(table),
        categories=_categories(table),
        cpu_ops=int((table.kind == Kind.CPU_OP).sum()),
        device_events=len(device),
        with_shapes=_share_with_shapes(table),
        stacks=table.has_stacks,
        no_shapes=no_shapes(table).because,
        no_stacks=no_stacks(table).because,
        linked=tuple((LinkedBy(way).name.lower().replace("_", " "), count) for way, count in ways if way),
        unlinked=len(tree.unlinked),
        unlinked_time=int(table.duration_ns[tree.unlinked].sum()) / device_ns if device_ns else None,
        overlaps=tree.overlaps,
        steps=(stem, len(steps)),
        steps_advice=steps_advice(table),
        rank=table.rank,
        world_size=table.world_size,
        device=recognition.device.name if recognition.device else None,
        device_note=recognition.note,
        extensions=tuple(extension.name for extension in extensions),
        token_exchanges=tuple((name, len(rows)) for name, rows in exchanges.items()),
        routing=_routing(table, exchanges),
        damage=_damage(table),
        violations=tuple(tree.self_check()),
        coverage=covered,
        lacks=(*not_recorded(table), *([_UNOPENED_GRAPHS] if graphs is None and len(graph_launches(table)) else [])),
    )


def _categories(table: TraceTable) -> tuple[tuple[str, int], ...]:
    codes, counts = np.unique(table.category, return_counts=True)
    names = [table.categories[code] if code >= 0 else "(none)" for code in codes.tolist()]
    return tuple(sorted(zip(names, counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0])))


def _share_with_shapes(table: TraceTable) -> float | None:
    signatures = table.signature[table.kind == Kind.CPU_OP]
    if not len(signatures):
        return None
    codes, counts = np.unique(signatures, return_counts=True)
    # The name does not matter for whether an argument text holds shapes.
    shaped = [table.op_signature(0, code).shapes is not None for code in codes.tolist()]
    return float(counts[np.array(shaped, bool)].sum() / counts.sum())


def _damage(table: TraceTable) -> tuple[str, ...]:
    losses = table.losses
    counted = [f"{losses.damaged_events:,} events could not be read"] if losses.damaged_events else []
    counted += ["the file is truncated"] if losses.truncated else []
    counted += [f"{losses.repaired:,} values were repaired"] if losses.repaired else []
    return tuple(losses.notes or counted)


def _token_exchanges(table: TraceTable, catalog: Catalog) -> dict[str, list[int]]:
    """Op name -> rows of the CPU ops that are read as expert-parallel exchanges."""
    found: dict[str, list[int]] = {}
    rows = np.flatnonzero(table.kind == Kind.CPU_OP)
    for code in np.unique(table.name[rows]).tolist():
        name = table.names[code]
        if not catalog.knows(name):
            continue
        of_name = rows[table.name[rows] == code].tolist()
        reading = catalog.read(table.signature_of(of_name[0]))
        if isinstance(reading.model, EPComm) or reading.category == EPComm.category:
            found[name] = of_name
    return dict(sorted(found.items()))


def _routing(table: TraceTable, exchanges: dict[str, list[int]]) -> tuple[RoutingField, ...]:
    """The fields that could replace an assumption about routing, and where each was recorded."""
    groups = table.process_groups()
    in_groups = f"{len(groups):,} named" if groups else ""
    rows = [row for of_name in exchanges.values() for row in of_name]
    arguments = {key for of_name in exchanges.values() for key in table.args(of_name[0])}
    experts = sorted(key for key in arguments if any(word in key.lower() for word in _EXPERT_WORDS))
    return (
        RoutingField(name="distributedInfo pg_config", found=in_groups),
        *(RoutingField(name=name, found=_where_recorded(table, name, set(rows))) for name in _COLLECTIVE_FIELDS),
        RoutingField(name="tokens per expert", found=f"as {', '.join(experts)}" if experts else ""),
    )


def _where_recorded(table: TraceTable, attribute: str, exchanges: set[int]) -> str:
    """Which events hold an attribute that is neither empty nor an empty list."""
    rows = np.flatnonzero(table.signature >= 0)
    codes, first = np.unique(table.signature[rows], return_index=True)
    recorded = [table.signature_of(row).attribute(attribute) for row in rows[first].tolist()]
    holding = [code for code, value in zip(codes.tolist(), recorded, strict=True) if value not in (None, "", "[]", ())]
    found = rows[np.isin(table.signature[rows], holding)]
    if not len(found):
        return ""
    own = sum(row in exchanges for row in found.tolist())
    others = len(found) - own
    parts = [f"on token exchanges ({own:,})"] if own else []
    parts += [f"on other events ({others:,})"] if others else []
    return " and ".join(parts)
