"""Twelve kinds of changes planted in real recordings, each as a recording of the changed program would have it."""

from __future__ import annotations

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.comparison.edits import Events, Original, covered_before, event_of, stretched
from tracelens.analysis.intervals import Bools, Covered
from tracelens.comparison.sides import COMMUNICATION, COPY, STREAMING, Call, call_role
from tracelens.trace.table import HOST_KINDS
from tracelens.types.units import NS_PER_MS


@dataclass(frozen=True)
class Planted:
    """The ``events`` of every rank, what it costs per step (ms), and what the first sentence must say of it."""

    events: list[Events]
    size_ms: float
    says: str
    #: Also a right size: the part that the sentence's own kernels take.
    or_ms: float | None = None


class Edit:
    """One recording's events, and its device events by row of the table."""

    def __init__(self, before: Original) -> None:
        self.before, self.table, self.tree = before, before.trace.table, before.trace.tree
        self.rows = before.rows
        one = before.one
        self.unit = one.event_unit
        self.step = one.step[self.unit]
        self.calls = [one.calls[number] for number in one.call[self.unit].tolist()]
        self.role = np.array([call_role(call) for call in self.calls])
        self.steps = len(one.durations_ns)
        self.launch = self.tree.launch[self.rows]
        self.start, self.end = self.table.start_ns[self.rows], self.table.ends_ns(self.rows)
        self.name = np.array([self.table.name_of(row) for row in self.rows.tolist()], object)
        self.is_hip = any(
            self.table.name_of(row).startswith("hip") for row in self.launch[self.launch >= 0][:50].tolist()
        )

    def ms(self, mask: Bools, factor: float = 1.0) -> float:
        """Union of these device events, per step, times a factor."""
        union = Covered(np.zeros(int(mask.sum()), np.int64), self.start[mask], self.end[mask])
        low, high = union.spans(0)
        return factor * float((high - low).sum()) / self.steps / NS_PER_MS

    def api(self, name: str) -> str:
        return f"{'hip' if self.is_hip else 'cuda'}{name}"

    def quiet_launches(self, step: int, count: int, *, first: bool = False) -> list[int]:
        """Launch rows of a step, in its middle, of kernels that start soonest after them; or its first ones."""
        own = np.flatnonzero((self.step == step) & (self.launch >= 0))
        own = own[np.argsort(self.table.start_ns[self.launch[own]], kind="stable")]
        if not first:
            own = own[len(own) // 5 : -len(own) // 5 or None]
            lag = self.start[own] - self.table.start_ns[self.launch[own]]
            own = np.sort(own[np.argsort(lag, kind="stable")[:count]])
        return list(dict.fromkeys(self.launch[own[:count]].tolist()))

    def host_time(self, launches: Sequence[int], each_ns: int, name: str, cat: str) -> Events:
        """A host call of that length before each launch; all that comes after is later by as much."""
        found = copy.deepcopy(self.before.events)
        for row in sorted(launches, reverse=True):
            at = int(self.table.start_ns[row])
            caller = found[event_of(self.before, row)]
            call = {key: caller[key] for key in ("pid", "tid")} | {
                "ph": "X", "cat": cat, "name": name, "ts": at / 1000, "dur": each_ns / 1000 - 0.002,
                "args": {"correlation": 900_000_000 + row} if cat.endswith("runtime") else {},
            }  # fmt: skip
            later(found, at, each_ns, self._device(found))
            found.append(call)
        return found

    def _device(self, found: Events) -> set[int]:
        return {id(found[event_of(self.before, row)]) for row in self.rows.tolist()}


def later(events: Events, at_ns: int, by_ns: int, fixed: set[int], stay: set[int] = frozenset()) -> None:
    """All that starts from then on is later; what runs then takes longer, but for the events of these ids."""
    for event in events:
        if not isinstance(event.get("ts"), int | float) or id(event) in stay:
            continue
        start = round(event["ts"] * 1000)
        if start >= at_ns:
            event["ts"] = (start + by_ns) / 1000
        elif id(event) not in fixed and event.get("dur") and start + round(event["dur"] * 1000) > at_ns:
            event["dur"] = round(event["dur"] * 1000 + by_ns) / 1000


def slow_kernel(edit: Edit, nth: int = 0, factor: float = 1.2) -> Planted:
    """The kernel of the most time (or the next ones) takes a fifth longer."""
    times: Counter[str] = Counter()
    for name, ns, role in zip(edit.name.tolist(), (edit.end - edit.start).tolist(), edit.role.tolist(), strict=True):
        if role not in (COMMUNICATION, COPY):
            times[name] += ns
    name = times.most_common(nth + 1)[nth][0]
    mask = edit.name == name
    said = re.escape(f"{100 * (factor - 1):.2g}")
    return Planted(
        [stretched(edit.before, edit.rows[mask], factor)],
        edit.ms(mask, factor - 1),
        rf"\b(?:{said}|{said}\.\d+|19\.\d+) % slower",
    )


def sync(edit: Edit, share: float = 0.05) -> Planted:
    each = round(share * edit.before.one.durations_ns.mean())
    name = edit.api("DeviceSynchronize")
    rows = [row for step in range(edit.steps) for row in edit.quiet_launches(step, 1)]
    return Planted([edit.host_time(rows, each, name, "cuda_runtime")], each / NS_PER_MS, rf"^idle.*{name}")


def allocator(edit: Edit, count: int = 8, share: float = 0.06) -> Planted:
    each = round(share * edit.before.one.durations_ns.mean() / count)
    name = edit.api("Malloc")
    rows = [row for step in range(edit.steps) for row in edit.quiet_launches(step, count)]
    return Planted(
        [edit.host_time(rows, each, name, "cuda_runtime")],
        each * len(rows) / edit.steps / NS_PER_MS,
        rf"^idle.*(?:allocator|{name})",
    )


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def data_loading(edit: Edit, share: float = 0.1) -> Planted:
    each = round(share * edit.before.one.durations_ns.mean())
    rows = [row for step in range(edit.steps) for row in edit.quiet_launches(step, 1, first=True)]
    return Planted(
        [edit.host_time(rows, each, LOADER, "user_annotation")], each / NS_PER_MS, "^idle.*(?:data loading|DataLoader)"
    )


def clock(edit: Edit, ratio: float = 0.92) -> Planted:
    mask = ~np.isin(edit.role, (COMMUNICATION, COPY))
    return Planted(
        [stretched(edit.before, edit.rows[mask], 1 / ratio)], edit.ms(mask, 1 / ratio - 1), "(?:clock|alike)"
    )


def one_to_three(edit: Edit) -> Planted:
    """A streaming op of one kernel, of the most calls times time, becomes three kernels of the same time each."""
    times: Counter[Call] = Counter()
    events: defaultdict[Call, list[int]] = defaultdict(list)
    per_unit = np.bincount(edit.unit, minlength=len(edit.before.one.call))
    for at, call in enumerate(edit.calls):
        if call_role(call) == STREAMING and per_unit[edit.unit[at]] == 1 and edit.launch[at] >= 0 and not call.kernel:
            times[call] += int(edit.end[at] - edit.start[at])
            events[call].append(at)
    # All calls of the op of most time whose name says what it does
    ops: Counter[str] = Counter()
    for call, ns in times.items():
        ops[call.name] += ns if re.search("norm|softmax|loss|relu|gelu", call.name) else ns // 8
    op = ops.most_common(1)[0][0]
    chosen = np.array(sorted(at for call, own in events.items() if call.name == op for at in own))
    found = stretched(edit.before, edit.rows[chosen], 3.0)
    mask = np.zeros(len(edit.rows), bool)
    mask[chosen] = True
    for at in chosen.tolist():
        for row, prefix in ((edit.rows[at], "unfused_{}_kernel"), (edit.launch[at], "")):
            first = found[event_of(edit.before, int(row))]
            begin, third = round(first["ts"] * 1000), round((first.get("dur") or 0.003) * 1000) // 3
            for part, what in enumerate(("square", "mean", "scale")):
                each = copy.deepcopy(first) if part else first
                each["ts"], each["dur"] = (begin + part * third) / 1000, max(third - 2, 1) / 1000
                each["name"] = prefix.format(what) or first["name"]
                if part:
                    each["args"]["correlation"] = 910_000_000 + 3 * at + part
                    found.append(each)
    return Planted([found], edit.ms(mask, 2.0), r"1 kernel became 3|became 3 kernels")


def batch(edit: Edit, factor: float = 1.9) -> Planted:
    """Twice the samples: the leading dimension that most ops have is doubled, and their kernels take nearly twice as long."""
    sizes: Counter[int] = Counter()
    for event in edit.before.events:
        dims = _dims(event)
        sizes.update(d[0] for d in dims if isinstance(d, list) and len(d) > 2 and isinstance(d[0], int) and d[0] > 1)
    size = sizes.most_common(1)[0][0]
    # Rows of a product over all samples
    rows = {
        d[0] * d[1] for event in edit.before.events for d in _dims(event)
        if isinstance(d, list) and len(d) == 3 and d[0] == size and isinstance(d[1], int)
    }  # fmt: skip
    mask = np.zeros(len(edit.rows), bool)
    for at, row in enumerate(edit.tree.op[edit.rows].tolist()):
        while row >= 0 and not mask[at]:
            dims = _dims(edit.before.events[event_of(edit.before, row)])
            mask[at] = any(
                isinstance(d, list) and d and (d[0] == size or (_is_product(d) and d[0] in rows)) for d in dims
            )
            row = int(edit.tree.op_parent[row])
    mask &= ~np.isin(edit.role, (COMMUNICATION, COPY))
    found = stretched(edit.before, edit.rows[mask], factor)
    for event in found:
        args = event.get("args") or {}
        for key in {"Input Dims", "Input dims"} & args.keys():
            args[key] = [
                [2 * d[0], *d[1:]]
                if isinstance(d, list) and d and (d[0] == size or (_is_product(d) and d[0] in rows))
                else d
                for d in args[key]
            ]
    return Planted([found], edit.ms(mask, factor - 1), r"shapes|batch")


def _is_product(dims: list) -> bool:
    return len(dims) == 2 and isinstance(dims[0], int)


def _dims(event: dict) -> list:
    args = event.get("args") or {}
    return args.get("Input Dims") or args.get("Input dims") or []


def data_type(edit: Edit, factor: float = 0.55) -> Planted:
    """float becomes bfloat16, or the other way round, where an op has it, or its kernel's name."""
    kinds = Counter(
        kind for call in edit.calls for kind in re.findall(r"'(float|c10::BFloat16|c10::Half)'", call.dtypes or "")
    )
    old = kinds.most_common(1)[0][0]
    new = "float" if old != "float" else "c10::BFloat16"
    factor = factor if old == "float" else 1 / factor
    is_old = np.array([f"'{old}'" in call.dtypes if call.dtypes else old in name
                       for call, name in zip(edit.calls, edit.name.tolist(), strict=True)])  # fmt: skip
    mask = is_old & ~np.isin(edit.role, (COMMUNICATION, COPY))
    found = stretched(edit.before, edit.rows[mask], factor)
    for event in found:
        args = event.get("args") or {}
        for key in {"Input type", "Input Type"} & args.keys():
            args[key] = [new if kind == old else kind for kind in args[key]]
    for at in np.flatnonzero(mask).tolist():
        event = found[event_of(edit.before, int(edit.rows[at]))]
        spelled = event["name"].replace(old, new)
        event["name"] = spelled if spelled != event["name"] else f"{spelled}_{new.rpartition('::')[2].lower()}"
    return Planted([found], edit.ms(mask, factor - 1), r"^\w+.*: different type \(")


def lost_overlap(edit: Edit) -> Planted | None:
    """Computation that ran beside collectives starts when these have ended."""
    sent = edit.role == COMMUNICATION
    if not sent.any():
        return None
    found = copy.deepcopy(edit.before.events)
    compute = np.sort(edit.start[~np.isin(edit.role, (COMMUNICATION, COPY))])
    device = edit._device(found)
    low, high = Covered(np.zeros(int(sent.sum()), np.int64), edit.start[sent], edit.end[sent]).spans(0)
    total = busy = 0
    for start, end in zip(low[::-1].tolist(), high[::-1].tolist(), strict=True):
        inner = compute[(compute >= start) & (compute < end)]
        if len(inner):
            sends = {
                id(found[event_of(edit.before, row)])
                for row in edit.rows[sent & (edit.start < end) & (edit.start >= start)].tolist()
            }
            begin = int(inner[0])
            moved = (~sent) & (edit.start >= begin) & (edit.start < end)
            hidden = int(edit.end[moved].max()) - begin
            for row in edit.rows[moved].tolist():
                event = found[event_of(edit.before, row)]
                event["ts"] = round(event["ts"] * 1000 + end - begin - hidden) / 1000
                sends.discard(id(event))
            # What ran meanwhile now runs from the end on, and all that follows after that
            later(
                found,
                min(end, begin + hidden),
                hidden,
                device,
                sends | {id(found[event_of(edit.before, row)]) for row in edit.rows[moved].tolist()},
            )
            for row in edit.rows[moved].tolist():
                event = found[event_of(edit.before, row)]
                event["ts"] = round(event["ts"] * 1000 + hidden) / 1000
            total += hidden
            busy += int(covered_before(edit.start[moved], edit.end[moved], np.array([end + hidden]))[0])
    per_step = edit.steps * NS_PER_MS
    return Planted([found], total / per_step, "^exposed communication.*hidden less", busy / per_step) if total else None


def extra_layer(edit: Edit, blocks: Callable[[Edit, int], tuple[int, int] | None] | None = None) -> Planted | None:
    """A part of each step once more: host calls from one op to another, and what they launched."""
    found = copy.deepcopy(edit.before.events)
    pieces = (blocks or repeated_block)(edit, 0)
    if pieces is None:
        return None
    total, busy = 0, 0
    for step in range(edit.steps - 1, -1, -1):
        own = (blocks or repeated_block)(edit, step)
        if own is None:
            return None
        begin, end = own
        of_block = np.flatnonzero(
            (edit.launch >= 0) & (edit.table.start_ns[edit.launch] >= begin) & (edit.table.start_ns[edit.launch] < end)
        )
        low, high = int(edit.start[of_block].min()), int(edit.end[of_block].max())
        longer = max(end - begin, high - low)
        host = np.flatnonzero(
            np.isin(edit.table.kind, HOST_KINDS)
            & (edit.table.start_ns >= begin)
            & (edit.table.start_ns + edit.table.duration_ns <= end)
        )
        index = {event_of(edit.before, row) for row in (*host.tolist(), *edit.rows[of_block].tolist())}
        device = {event_of(edit.before, row) for row in edit.rows.tolist()}
        again = [(number, copy.deepcopy(found[number])) for number in sorted(index)]
        for number, event in enumerate(found):
            if not isinstance(event.get("ts"), int | float):
                continue
            start, cut = round(event["ts"] * 1000), high if number in device else end
            if start >= cut:
                event["ts"] = (start + longer) / 1000
            elif number not in device and event.get("dur") and start + round(event["dur"] * 1000) > cut:
                event["dur"] = round(event["dur"] * 1000 + longer) / 1000
        for number, event in again:
            event["ts"] += ((longer - (high - low)) + high - low if number in device else end - begin) / 1000
            for key in ("correlation", "External id", "external id"):
                if key in event.get("args", {}) and isinstance(event["args"][key], int):
                    event["args"][key] += 400_000_000 + 1_000_000 * step
            found.append(event)
        total += longer
        busy += int(covered_before(edit.start[of_block], edit.end[of_block], np.array([high]))[0])
    return Planted(
        [found], total / edit.steps / NS_PER_MS, r"\d+ -> \d+ (?:times|calls)", busy / edit.steps / NS_PER_MS
    )


def repeated_block(edit: Edit, step: int) -> tuple[int, int] | None:
    """Host times of the module of most launches of which a step has several; without modules, of a tenth of its ops."""
    own = np.flatnonzero((edit.step == step) & (edit.launch >= 0))
    times = np.sort(edit.table.start_ns[edit.launch[own]])
    modules: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in np.flatnonzero(np.isin(edit.table.kind, HOST_KINDS)).tolist():
        name = edit.table.name_of(row)
        if name.startswith("nn.Module: "):
            begin, end = int(edit.table.start_ns[row]), int(edit.table.start_ns[row] + edit.table.duration_ns[row])
            if np.searchsorted(times, end) > np.searchsorted(times, begin):
                modules[re.sub(r"_\d+$", "", name)].append((begin, end))
    several = {name: sorted(spans) for name, spans in modules.items() if len(spans) >= 3}
    if several:
        spans = max(
            several.values(),
            key=lambda own: sum(np.searchsorted(times, e) - np.searchsorted(times, b) for b, e in own) / len(own),
        )
        return spans[1]
    lane = Counter(edit.table.lane[edit.launch[own]].tolist()).most_common(1)[0][0]
    tops = []
    for at in own[edit.table.lane[edit.launch[own]] == lane].tolist():
        row = int(edit.launch[at])
        while int(edit.tree.op_parent[row]) >= 0:
            row = int(edit.tree.op_parent[row])
        tops.append(row)
    tops = sorted(set(tops), key=lambda row: int(edit.table.start_ns[row]))
    if len(tops) < 20:
        return None
    first, count = len(tops) // 5, max(len(tops) // 10, 4)
    last = tops[first + count - 1]
    return int(edit.table.start_ns[tops[first]]), int(edit.table.start_ns[last] + edit.table.duration_ns[last]) + 1


def compiled(edit: Edit, factor: float = 0.4) -> Planted | None:
    """Runs of streaming kernels become one Triton kernel each, in a compiled region around them and the products."""
    order = np.argsort(edit.start, kind="stable")
    lane = edit.table.lane[edit.launch]
    runs: list[list[int]] = []
    for at in order.tolist():
        eager = edit.role[at] == STREAMING and edit.launch[at] >= 0
        if eager and runs and runs[-1] and (edit.step[at], lane[at]) == (edit.step[runs[-1][-1]], lane[runs[-1][-1]]):
            runs[-1].append(at)
        elif eager:
            runs.append([at])
        elif runs and runs[-1] and edit.role[at] not in (COMMUNICATION, COPY):
            runs.append([])
    runs = [run for run in runs if 2 <= len(run) <= 30]
    if not runs:
        return None
    mask = np.zeros(len(edit.rows), bool)
    mask[np.concatenate([np.array(run) for run in runs])] = True
    found = stretched(edit.before, edit.rows[mask], factor)
    others = [row for row in edit.launch[~mask].tolist() if row >= 0]
    gone: set[int] = set()
    spans: dict[tuple[int, int], list[float]] = {}
    for number, run in enumerate(runs):
        kernel = found[event_of(edit.before, int(edit.rows[run[0]]))]
        kernel["name"] = f"triton_poi_fused_planted_{number % 7}"
        kernel["dur"] = sum(round(found[event_of(edit.before, int(edit.rows[at]))]["dur"] * 1000) for at in run) / 1000
        for at in run:
            top = row = int(edit.launch[at])
            while row >= 0:
                begin, end = edit.table.start_ns[row], edit.table.start_ns[row] + edit.table.duration_ns[row]
                if any(
                    begin <= edit.table.start_ns[o] < end and edit.table.lane[o] == edit.table.lane[row] for o in others
                ):
                    break
                top, row = row, int(edit.tree.op_parent[row])
            op = found[event_of(edit.before, top)]
            if at == run[0] and top != int(edit.launch[at]):
                op["name"] = kernel["name"]
                op["args"] = {key: value for key, value in op.get("args", {}).items() if "nput" not in key}
                keep = {int(edit.launch[at]), top}
            else:
                keep = {int(edit.launch[at]), top} if at == run[0] else set()
                gone |= set() if at == run[0] else {event_of(edit.before, int(edit.rows[at]))}
            gone |= {event_of(edit.before, each) for each in edit.tree.subtree(top).tolist() if each not in keep}
            span = spans.setdefault((int(edit.step[at]), int(lane[at])), [op["ts"], op["ts"], op["pid"], op["tid"]])
            span[0], span[1] = min(span[0], op["ts"]), max(span[1], op["ts"] + op.get("dur", 0))
    for begin, end, pid, tid in spans.values():
        for more, name in ((0.004, "Torch-Compiled Region: 0/0"), (0.002, "CompiledFunction")):
            found.append(
                {
                    "ph": "X",
                    "cat": "cpu_op",
                    "name": name,
                    "pid": pid,
                    "tid": tid,
                    "ts": begin - more,
                    "dur": end - begin + 2 * more,
                    "args": {},
                }
            )
    events = [event for number, event in enumerate(found) if number not in gone]
    return Planted([events], edit.ms(mask, factor - 1), "compiled")


def slow_rank(edits: Sequence[Edit], which: int = 1, factor: float = 1.15) -> Planted:
    """One rank's computation takes longer; the others wait as much longer in the last collective of each step."""
    own = edits[which]
    mask = ~np.isin(own.role, (COMMUNICATION, COPY))
    found = []
    for number, edit in enumerate(edits):
        if number == which:
            found.append(stretched(edit.before, edit.rows[mask], factor))
            continue
        events = copy.deepcopy(edit.before.events)
        for step in range(edit.steps - 1, -1, -1):
            extra = round(own.ms(mask & (own.step == min(step, own.steps - 1)), factor - 1) * NS_PER_MS) * own.steps
            sent = np.flatnonzero((edit.role == COMMUNICATION) & (edit.step == step))
            at = int(sent[np.argmax(edit.end[sent])])
            kernel = events[event_of(edit.before, int(edit.rows[at]))]
            end = int(edit.end[at])
            later(events, end, extra, edit._device(events))
            kernel["dur"] = round(kernel["dur"] * 1000 + extra) / 1000
        found.append(events)
    rank = own.before.one.rank if own.before.one.rank is not None else which
    return Planted(found, own.ms(mask, factor - 1), rf"^rank {rank} alone")


def by_chance(edit: Edit, random: np.random.Generator) -> Events:
    """The same program once more: each stretch of time runs a little faster or slower, and so do whole steps."""
    found = copy.deepcopy(edit.before.events)
    timed = [event for event in found if isinstance(event.get("ts"), int | float)]
    starts = np.array([round(event["ts"] * 1000) for event in timed], np.int64)
    ends = starts + np.array([round((event.get("dur") or 0) * 1000) for event in timed], np.int64)
    moments, at = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    begins = np.array([edit.start[edit.step == step].min() for step in range(edit.steps)])
    step = np.clip(np.searchsorted(begins, moments[:-1], "right") - 1, 0, edit.steps - 1)
    speed = np.exp(random.normal(0, 0.01, edit.steps))[step] * np.exp(random.normal(0, 0.05, len(moments) - 1))
    # Gaps of a step share what the host was slowed by
    apart = np.maximum(np.rint(np.diff(moments) * speed).astype(np.int64), 1)
    moved = np.concatenate((moments[:1], moments[0] + np.cumsum(apart)))[at]
    for event, start, end in zip(timed, moved[: len(timed)].tolist(), moved[len(timed) :].tolist(), strict=True):
        event["ts"] = start / 1000
        if "dur" in event:
            event["dur"] = (end - start) / 1000
    return found
