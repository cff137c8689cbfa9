"""Findings about transfers: exposed communication by kind, uneven exchanges between experts, and exposed copies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_scopes import FORWARD, PHASES
from tracelens.analysis.findings.rule import MIN_GAIN, Candidate, Observed, built_in, otherwise
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.intervals import Floats
from tracelens.analysis.reading.process_groups import attributes_of_calls, split_sizes
from tracelens.analysis.sheets import coll_analysis, device_memory
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.backends.base import System
from tracelens.backends.collective_times import Collectives
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import Collective
from tracelens.perf_models.base import WorkColumns
from tracelens.trace.table import Kind, TraceTable
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US, counted, duration, percent, size, takes

SEND_RECV, ALL_TO_ALL, ALL_REDUCE = "send/recv", "all-to-all", "all-reduce"
#: An all-reduce by a kernel of a serving engine's own, on shared buffers, or in a trace without a backward pass.
OF_ACTIVATIONS = "all-reduce of activations"
_PLAIN_KINDS = {"send": SEND_RECV, "recv": SEND_RECV}
_KINDS_NAMED = re.compile(
    r"(?i)(?P<reduce>all_?reduce|cross_device_reduce)|(?P<gather>all_?gather)|(?P<scatter>reduce_?scatter)"
    r"|(?P<exchange>all_?to_?all)|(?P<pair>sendrecv)|(?P<broadcast>broadcast)"
)
_KIND_WORDS = {
    "reduce": ALL_REDUCE, "gather": "all-gather", "scatter": "reduce-scatter", "exchange": ALL_TO_ALL,
    "pair": SEND_RECV, "broadcast": "broadcast",
}  # fmt: skip
#: The category of exchanges of tokens (DeepEP and the like).
_TOKENS = "EP_Communication"
_TRAINS = re.compile(r"^(?:autograd::engine|Optimizer\.|aten::_fused_(?:adam|sgd|adagrad))")
_SENDS = ("c10d::send", "c10d::recv_", "nccl:send", "nccl:recv")
_EXCHANGES = re.compile(r"^(?:c10d|nccl|_c10d_functional)::?all_?to_?all")


def _remedy(case: str | None) -> str:
    """What hides or spares communication of a kind, or waiting for it."""
    return otherwise("exposed_communication", case)


def exposed_kinds(seen: Observed) -> dict[str, int]:
    """Nanoseconds in which communication of each kind was all that ran; communication of an unknown kind is in none."""
    at = np.flatnonzero(seen.activity.communication & (seen.own_ns > 0))
    found: dict[str, int] = {}
    activity, names = seen.activity, seen.table.names
    pair = _kind_of_pairs(names)
    keys = list(zip(activity.name[at].tolist(), seen.category[at].tolist(), strict=True))
    by_name = {(code, category): _reduced(seen, _said_kind(names[code], category, pair)) for code, category in {*keys}}
    kinds = [by_name[key] for key in keys]
    own_record = np.flatnonzero(activity.collective[at])
    attributes, call = attributes_of_calls(seen.table, seen.tree, activity.rows[at[own_record]])
    recorded = [in_words(seen, values.get("Collective name")) for values in attributes]
    for place, code in zip(own_record.tolist(), call.tolist(), strict=True):
        kinds[place] = recorded[code] or kinds[place]
    for kind, own in zip(kinds, seen.own_ns[at].tolist(), strict=True):
        if kind:
            found[kind] = found.get(kind, 0) + own
    return found


def holds_only_communication(table: TraceTable, activity: DeviceActivity) -> bool:
    """Whether a file is an extract of its collectives: computation and the host are not in it."""
    host = (table.kind == Kind.CPU_OP) | (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    return bool(len(activity) and activity.communication.all() and not host.any())


def _serves(seen: Observed) -> bool:
    """Whether ops ran forward only, and no optimizer: what they reduce are no gradients."""
    phases = seen.context.attribution.phases
    if phases.has_backward or not (phases.phase == PHASES.index(FORWARD)).any():
        return False
    return not any(_TRAINS.search(name) for name in seen.table.names)


def in_words(seen: Observed, collective: object) -> str | None:
    """A recorded collective's kind; None for an unknown one."""
    word = Collective(kind=str(collective), elements_in=0, elements_out=0, ranks=None).word
    return None if word is None else _reduced(seen, _PLAIN_KINDS.get(word, word.replace("_", "-")))


def _reduced(seen: Observed, kind: str | None) -> str | None:
    return OF_ACTIVATIONS if kind == ALL_REDUCE and seen.once(_serves) else kind


def _kind_of_pairs(names: Collection[str]) -> str | None:
    """What NCCL's SendRecv kernels are that record no collective: batches of sends, unless ops exchange as well.

    PyTorch launches ``batch_isend_irecv`` behind the records of its sends: pytorch/pytorch#194693.
    """
    sends = any(name in names for name in _SENDS)
    exchanges = any(_EXCHANGES.search(name) for name in names)
    return None if sends == exchanges else SEND_RECV if sends else ALL_TO_ALL


def _said_kind(kernel: str, category: str, pair: str | None) -> str | None:
    """What a kernel's name says."""
    if category == _TOKENS:
        return ALL_TO_ALL
    match = _KINDS_NAMED.search(kernel)
    kind = None if match is None else _KIND_WORDS[str(match.lastgroup)]
    if kind == ALL_REDUCE and category == "CustomCollective":
        return OF_ACTIVATIONS
    return pair if kind == SEND_RECV else kind


#: Bus bandwidth, as a share of the link's rate, below which collectives are called slow.
SLOW_BUS = 0.1
#: How many times as long as it needs a collective takes whose time goes mostly into something else.
_MOSTLY_ELSE = 2.0
#: Calls of one size whose durations spread: the longest and the mean, in shortest ones. A path slows all of them alike.
_LONGEST_OF_SPREAD, _MEAN_OF_SPREAD = 3.0, 1.5
#: How many times as long as any other call a few of a kind are that stand apart.
_APART = 5.0
#: A few are at most one in so many.
_ONE_IN_FEW = 4
ALL_LATENCY = "a message this small is all latency"
_NO_SIZES = "their sizes were not recorded"
#: From this share of it on, exposed communication is told to be mostly of one kind.
_MOSTLY = 0.5
_WAITS = re.compile(r"(?i)notify|barrier|wait|semaphore")


@built_in("exposed_communication")
def exposed_communication(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of it."""
    events = seen.activity.communication
    exposed_ns = int(seen.own_ns[events].sum())
    if not exposed_ns or holds_only_communication(seen.table, seen.activity):
        return
    share = exposed_ns / seen.window_ns
    kind = _kind(seen, exposed_ns)
    hides = next((reason.remedy for reason in kind), "")
    reasons = [*_waiting(seen, exposed_ns), *_collectives(seen, hides)]
    said = ", ".join([f"exposed communication takes {percent(share)} of the time", *(reason.text for reason in kind)])
    yield Candidate(
        why="; ".join([said, *(reason.text for reason in reasons)]),
        claimed=seen.kernels(events, low=0.0),
        figures=(
            Said(what="share of the time", value=share, unit="share"),
            *(said for reason in (*kind, *reasons) for said in reason.figures),
        ),
        evidence=tuple(row for reason in reasons for row in reason.evidence),
        remedy=next((reason.remedy for reason in (*reasons, *kind) if reason.remedy), None),
    )


class _Reason(Record, frozen=True, kw_only=True):
    """Why communication takes as long as it does, and what to do about it instead of what the rule says."""

    text: str
    figures: tuple[Said, ...]
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


def _kind(seen: Observed, exposed_ns: int) -> tuple[_Reason, ...]:
    """The kind that most of it is, if one is."""
    kinds = exposed_kinds(seen)
    kind = max(kinds, key=kinds.__getitem__, default="")
    if not kind or kinds[kind] < _MOSTLY * exposed_ns:
        return ()
    said = Said(what=f"of that, {kind}", value=kinds[kind] / exposed_ns, unit="share")
    return (_Reason(text=f"mostly {kind}", figures=(said,), remedy=_remedy(kind)),)


def _waiting(seen: Observed, exposed_ns: int) -> Iterator[_Reason]:
    """Kernels that only wait for other ranks."""
    activity = seen.activity
    waits = np.zeros(len(seen.table.names), bool)
    for name in distinct_rows(activity.name, len(waits)).tolist():
        waits[name] = _WAITS.search(seen.table.names[name]) is not None
    at = waits[activity.name] & ~activity.memcpy
    time_us = float(activity.duration[at].sum()) / NS_PER_US
    if time_us > 0.01 * seen.device_us:
        each_us = time_us / seen.steps
        text = f"kernels that only wait for other ranks (notify, barrier) take {duration(each_us)}"
        said = Said(what="kernels that wait", value=each_us, unit="us")
        is_most = float(seen.own_ns[at].sum()) > _MOSTLY * exposed_ns
        yield _Reason(text=text, figures=(said,), remedy=_remedy("late rank") if is_most else "")


def _collectives(seen: Observed, hides: str) -> Iterator[_Reason]:
    """What the collectives of one size that take most time tell of themselves."""
    frame = seen.context.frames[coll_analysis.TITLE]
    if "effective_bus_gb_s" not in frame:
        return
    known = frame[frame["effective_bus_gb_s"].notna() & (frame["duration_us_sum"] > 0)]
    if 2 * known["duration_us_sum"].sum() < frame["duration_us_sum"].sum():
        yield from _calls_apart(seen, hides)
    elif not known.empty:
        yield from _Calls(seen, known).reasons()


def _calls_apart(seen: Observed, hides: str) -> Iterator[_Reason]:
    """A few collectives that take most of the time of all, each far longer than any other; their sizes are unknown."""
    lasts = np.sort(seen.activity.duration[seen.activity.collective])[::-1]
    if len(lasts) < 2:
        return
    ratio = lasts[:-1] / np.maximum(lasts[1:], 1)
    few = int(np.argmax(ratio[: max(1, len(lasts) // _ONE_IN_FEW)])) + 1
    share = float(lasts[:few].sum() / lasts.sum())
    if few * _ONE_IN_FEW > len(lasts) or ratio[few - 1] < _APART or share < _MOSTLY:
        yield _Reason(
            text=f"{_NO_SIZES}, so waiting and transfer cannot be separated", figures=(), remedy=_first(hides)
        )
        return
    shortest_us, other_us = float(lasts[few - 1]) / NS_PER_US, float(lasts[few]) / NS_PER_US
    longest, each = ("longest", "takes") if few == 1 else (f"{few} longest", "each take")
    text = (
        f"the {longest} of {len(lasts)} collectives {each} at least {duration(shortest_us)} ({percent(share)} of all), "
        f"no other more than {duration(other_us)}, so a rank is late or they move far more data ({_NO_SIZES})"
    )
    figures = (
        Said(what="collectives", value=len(lasts), unit="count"),
        Said(what="long ones", value=few, unit="count"),
        Said(what="of their time", value=share, unit="share"),
        Said(what="shortest of them", value=shortest_us, unit="us"),
        Said(what="longest other", value=other_us, unit="us"),
    )
    yield _Reason(text=text, figures=figures, remedy=_remedy("late rank"))


class _Calls:
    """The calls of one collective of one size in one group that take most time: a row of the sheet.

    ``alone_us``: what one takes where nobody is late, by the library's model; ``is_latency``: most of that is there
    without bytes, too. ``others_us``: moving as much takes at most this long, as other calls of the group show.
    """

    def __init__(self, seen: Observed, known: pd.DataFrame) -> None:
        device, row = seen.device, known.iloc[[int(known["duration_us_sum"].argmax())]]
        most = row.iloc[0]
        self.kind, self.word = str(most["collective"]), in_words(seen, most["collective"])
        self.size_mb, self.calls = float(most["in_mb"]), int(most["operation_count"])
        self.mean_us, self.shortest_us, self.longest_us = (
            float(most[f"duration_us_{key}"]) for key in ("mean", "min", "max")
        )
        self.rate = float(most["effective_bus_gb_s"])
        self.best_rate = float(most["effective_bus_gb_s_shortest"])
        self.link = None if device is None or device.link is None else device.link.gb_s
        self.alone_us = None if device is None else _alone_us(row, device)
        self.is_latency = device is not None and self.alone_us is not None and _is_latency(row, device)
        self.others_us = _as_others_show(known, most)
        apart = self.longest_us >= _LONGEST_OF_SPREAD * self.shortest_us
        self._spread = apart and self.mean_us >= _MEAN_OF_SPREAD * self.shortest_us
        self._others_are_faster = self.others_us is not None and self.mean_us >= _MOSTLY_ELSE * self.others_us
        self._is_slow = self.link is not None and self.rate < SLOW_BUS * self.link

    def reasons(self) -> Iterator[_Reason]:
        """Waiting, where two of three signs say so: calls of one size spread, the shortest is as fast as the links are,
        others of the group move as much in half of the time. Latency, where the shortest is slow as well.
        """
        path_is_fine = self.alone_us is not None and self.shortest_us <= _MOSTLY_ELSE * self.alone_us
        if self._spread + path_is_fine + self._others_are_faster >= 2 and not self._is_small():
            yield self._waits()
        elif self._is_slow and self._is_small():
            yield self._reason(f"{self._reached()}; {ALL_LATENCY}", _remedy("latency"))
        elif self._is_slow and self.alone_us is not None and self.mean_us > _MOSTLY_ELSE * self.alone_us:
            is_sent = self.word == SEND_RECV
            whom, case = ("another stage", "stages") if is_sent else ("a late rank", "late rank or slow path")
            even = f" and takes {self._shortest()}" if self.calls > 1 else ""
            yield self._reason(f"{self._reached()}{even}, so it waits for {whom} or takes a slower path", _remedy(case))
        elif self._is_slow:
            yield self._reason(self._reached(), _first(_remedy(self.word)))

    def _is_small(self) -> bool:
        return (
            self.is_latency
            and not self._spread
            and self.alone_us is not None
            and self.mean_us <= _MOSTLY_ELSE * self.alone_us
            and (self.link is None or self.best_rate < SLOW_BUS * self.link)
        )

    def _waits(self) -> _Reason:
        whom, case = ("another stage", "stages") if self.word == SEND_RECV else ("a late rank", "late rank")
        took = f"{self.kind} of {size(self.size_mb)} takes {duration(self.mean_us)} on average"
        seen = f" and {self._shortest()}" if self._spread else ""
        if self._others_are_faster and self.others_us is not None:
            seen += f"; other calls of its group suggest {duration(self.others_us)}"
        return self._reason(f"{took}{seen}, so it mostly waits for {whom}", _remedy(case))

    def _shortest(self) -> str:
        return f"at least {duration(self.shortest_us)} ({self.best_rate:.3g} GB/s)"

    def _reached(self) -> str:
        limit = "" if self.link is None else f" on a {self.link:,.0f} GB/s link"
        return f"{self.kind} of {size(self.size_mb)} reaches {self.rate:.3g} GB/s bus bandwidth{limit}"

    def _reason(self, text: str, remedy: str) -> _Reason:
        figures = (
            Said(what="bytes sent", value=self.size_mb, unit="MB"),
            Said(what="bus bandwidth", value=self.rate, unit="GB/s"),
            Said(what="mean", value=self.mean_us, unit="us"),
            Said(what="shortest", value=self.shortest_us, unit="us"),
            Said(what="bus bandwidth of the shortest", value=self.best_rate, unit="GB/s"),
            *([] if self.link is None else [Said(what="link", value=self.link, unit="GB/s")]),
            *([] if self.others_us is None else [Said(what="as others of its group", value=self.others_us, unit="us")]),
        )
        evidence = Evidence(sheet=coll_analysis.TITLE, row={"collective": self.kind, "in_mb": self.size_mb})
        return _Reason(text=text, figures=figures, evidence=(evidence,), remedy=remedy)


def _first(then: str) -> str:
    """What to do where nothing tells waiting from moving."""
    return "; then ".join([_remedy("late rank"), *([then] if then else [])])


def _as_others_show(known: pd.DataFrame, most: pd.Series) -> float | None:
    """How long (µs) moving as much takes at most, by the shortest calls of the same kind and group with other sizes:
    as long as more bytes took, or as fewer did times the ratio of their bytes. None without such calls.
    """
    same = known[(known["collective"] == most["collective"]) & (known["in_mb"] > 0) & (known.index != most.name)]
    for key in ("group_name", "group_ranks", "group_size"):
        # Where none was recorded, all calls of one size of group are taken for one group
        same = same[(same[key] == most[key]) | (same[key].isna() & (most[key] is None))]
    if same.empty:
        return None
    ratio = np.maximum(1.0, float(most["in_mb"]) / same["in_mb"].to_numpy(float))
    return float((same["duration_us_min"].to_numpy(float) * ratio).min())


def _alone_us(
    row: pd.DataFrame, device: HardwareSpec, *, elements: int | None = None, near: bool = False
) -> float | None:
    """What a collective (of so many ``elements``) takes by the library's model of the device's standard node
    (``tracelens.predict.network``) when nobody is late; where the ranks of its group are not known, with each in a node
    of its own, or all ``near`` each other. None where it has no model.
    """
    system = System.of_device(device).in_a_node()
    if system.topology is None:
        return None
    # A message arrives when it has been sent
    sent = row.assign(collective=row["collective"].replace("recv", "send"))
    if elements is not None:
        sent = sent.assign(in_nelems=elements, out_nelems=elements)
    (model,) = coll_analysis.collective_models(sent, stride=1 if near else system.topology.ranks_per_node)
    if model is None:
        return None
    time_us = float(Collectives().estimate_many(WorkColumns.of([model]), system).time_us[0])
    return time_us if time_us > 0 else None


def _is_latency(row: pd.DataFrame, device: HardwareSpec) -> bool:
    """Whether most of what a collective takes is there without bytes as well, wherever its ranks are."""
    size = row["group_size"].iloc[0]
    least = size if isinstance(size, int) else 1
    for near in (False, True):
        first, whole = (_alone_us(row, device, elements=elements, near=near) for elements in (least, None))
        if first is None or whole is None or 2 * first <= whole:
            return False
    return True


#: How many times the mean of an exchange its largest part must be.
_TIMES_MEAN_UNEVEN = 2.0
#: Categories whose time goes with the rows that a rank was sent.
_EXPERTS = ("GroupedGEMM_fwd", "GroupedGEMM_bwd", "MoE_fused", "MoE_unfused")


@built_in("expert_imbalance")
def expert_imbalance(seen: Observed) -> Iterator[Candidate]:
    """Gain: of each uneven exchange what its largest part takes longer than the mean; of the experts' kernels what
    they were given beyond what this rank sends.
    """
    frame = seen.context.frames[coll_analysis.TITLE]
    if "in_split" not in frame:
        return
    uneven_rows = frame[frame["in_split"].map(lambda split: bool(split_sizes(split))).astype(bool)]
    if uneven_rows.empty:
        return
    events = np.flatnonzero(seen.activity.collective)
    most, sent, received = _splits(seen, events)
    uneven = most >= _TIMES_MEAN_UNEVEN
    at, share = events[uneven], 1 - 1 / most[uneven]
    claimed = seen.kernels(at, share)
    surplus = float(received.sum() / sent.sum()) if sent.sum() else 1.0
    rows = seen.rows_where([category in _EXPERTS for category in seen.column("category")])
    overloaded = surplus >= _TIMES_MEAN_UNEVEN and not rows.empty
    if overloaded:
        claimed += seen.calls(rows, 1 - 1 / surplus, low=0.0)
    elif not len(at):
        return
    time_us = float(seen.activity.duration[at].sum()) / NS_PER_US
    texts, figures = [], []
    if len(at):
        largest = float(np.average(most[uneven], weights=seen.activity.duration[at] + 1))
        exchanges = counted(len(at), "all-to-all")
        texts.append(
            f"{exchanges} {takes(len(at))} {seen.share_text(time_us)} and {takes(len(at), 'send')} one rank "
            f"{largest:.1f} times the mean"
        )
        figures += [Said(what="uneven all-to-alls", value=len(at), unit="count"), seen.gpu_share(time_us),
                    Said(what="largest part over the mean", value=largest, unit="ratio")]  # fmt: skip
    if overloaded:
        texts.append(f"this rank's experts receive {surplus:.1f} times the rows that it sends")
        figures.append(Said(what="rows received over sent", value=surplus, unit="ratio"))
    yield Candidate(
        why="; ".join(texts),
        claimed=claimed,
        figures=tuple(figures),
        evidence=tuple(
            Evidence(sheet=coll_analysis.TITLE, row={"collective": kind, "in_split": split})
            for kind, split in zip(uneven_rows["collective"][:10], uneven_rows["in_split"][:10], strict=True)
        ),
    )


def _splits(seen: Observed, events: npt.NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Of each device event (largest part over the mean, elements sent, elements received): 1, 0, 0 where not known."""
    calls, call = attributes_of_calls(seen.table, seen.tree, seen.activity.rows[events])
    most, sent, received = np.ones(len(calls)), np.zeros(len(calls)), np.zeros(len(calls))
    for i, attributes in enumerate(calls):
        into, out = (split_sizes(attributes.get(f"{side} split size")) for side in ("In", "Out"))
        if into and sum(into):
            most[i], sent[i] = max(into) * len(into) / sum(into), sum(into)
            received[i] = sum(out) if out else sum(into)
    return most[call], sent[call], received[call]


#: Share of the link's rate that a copy from pageable memory, which the driver first copies on the host, stays below.
_PAGEABLE_REACHES = 0.6
#: Share of the copies below which other work hides nothing worth a word.
_HARDLY_HIDDEN = 0.05


@built_in("exposed_copies")
def exposed_copies(seen: Observed) -> Iterator[Candidate]:
    """Time in which the device did nothing but copy, and how fast the copies that took most were.

    Gain: with pinned memory what a copy takes beyond its path's own rate, else what other work can hide.
    """
    frame = seen.context.frames.get(device_memory.COPIES_TITLE)
    between = seen.activity.between_memories
    only_ns = device_memory.only_copies_ns(seen.activity)
    share = only_ns / max(1, seen.window_ns)
    if frame is None or share <= MIN_GAIN:
        return
    top = frame.iloc[0]
    how = " ".join(word for word in (top["direction"], top["host_memory"]) if word not in (None, "unknown"))
    why = f"the GPU does nothing but copy for {100 * share:.0f} % of the time, mostly {top['parent_op']} {how}"
    figures = [Said(what="share of the time", value=share, unit="share")]
    if top["gb_s"] > 0:
        why += f" at {top['gb_s']:.1f} GB/s"
        figures.append(Said(what="achieved", value=float(top["gb_s"]), unit="GB/s"))
        if top["path"]:
            why += f" of {top['path']}'s {top['path_gb_s']:.0f}"
            figures.append(Said(what=str(top["path"]), value=float(top["path_gb_s"]), unit="GB/s"))
    faster = 1 - device_memory.at_rate_of_path(seen.table, seen.activity, seen.device)
    work_ns = int(seen.own_ns[~between].sum())
    hidden = min(1.0, work_ns / only_ns)
    # Where nothing was recorded of its memory, a copy as fast as only one of pinned memory is
    is_fast = top["host_memory"] == "unknown" and top["path"] and top["gb_s"] > _PAGEABLE_REACHES * top["path_gb_s"]
    remedy = otherwise("exposed_copies", "pinned" if is_fast else top["host_memory"] or "between devices")
    if not remedy:
        gain, computed = np.nan_to_num(faster, nan=hidden), "what the copies take beyond their path's own rate"
    elif hidden < _HARDLY_HIDDEN and np.nansum(faster) > 0:
        gain, computed = np.nan_to_num(faster), "what the copies take beyond their path's own rate"
        remedy = otherwise("exposed_copies", "slow and alone")
    else:
        gain, computed = (
            np.full(len(faster), hidden),
            "the copies, as far as the other work is long enough to hide them",
        )
    yield Candidate(
        why=why,
        claimed=seen.kernels(between, gain, low=0.0, high=np.fmax(gain, hidden)),
        computed=f"{computed}; at least none of it",
        certainty="low",
        remedy=remedy,
        figures=tuple(figures),
        evidence=(
            Evidence(
                sheet=device_memory.COPIES_TITLE, row={"parent_op": top["parent_op"], "direction": top["direction"]}
            ),
        ),
    )
