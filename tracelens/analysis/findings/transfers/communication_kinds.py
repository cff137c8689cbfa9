"""Which kind of communication device events are, in words of a sentence, and what hides or spares each kind."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_scopes import FORWARD, PHASES
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.reading.recorded_groups import attributes_of_calls
from tracelens.lazy.patterns import lazy_pattern
from tracelens.perf_models import Collective
from tracelens.trace.table import Kind, TraceTable

SEND_RECV, ALL_TO_ALL, ALL_REDUCE = "send/recv", "all-to-all", "all-reduce"
#: An all-reduce by a kernel of a serving engine's own, on shared buffers, or in a trace without a backward pass.
OF_ACTIVATIONS = "all-reduce of activations"
_PLAIN = {"send": SEND_RECV, "recv": SEND_RECV}
_NAMED = lazy_pattern(
    r"(?i)(?P<reduce>all_?reduce|cross_device_reduce)|(?P<gather>all_?gather)|(?P<scatter>reduce_?scatter)"
    r"|(?P<exchange>all_?to_?all)|(?P<pair>sendrecv)|(?P<broadcast>broadcast)"
)
_WORDS = {
    "reduce": ALL_REDUCE, "gather": "all-gather", "scatter": "reduce-scatter", "exchange": ALL_TO_ALL,
    "pair": SEND_RECV, "broadcast": "broadcast",
}  # fmt: skip
#: The category of exchanges of tokens (DeepEP and the like).
_TOKENS = "EP_Communication"
_TRAINS = lazy_pattern(r"^(?:autograd::engine|Optimizer\.|aten::_fused_(?:adam|sgd|adagrad))")
_SENDS = ("c10d::send", "c10d::recv_", "nccl:send", "nccl:recv")
_EXCHANGES = lazy_pattern(r"^(?:c10d|nccl|_c10d_functional)::?all_?to_?all")

STAGES = "more micro-batches per step, an interleaved or zero-bubble schedule, stages of equal time: `tracelens search`"
#: What hides or spares communication of a kind.
REMEDIES = {
    SEND_RECV: f"between pipeline stages: {STAGES}; in ring attention: more rows per rank",
    "all-gather": "gather a layer ahead (FSDP prefetch, async tensor parallelism), keep weights gathered "
    "(reshard_after_forward=False), or shard over fewer ranks",
    "reduce-scatter": "overlap it with the next layer's gradients, reduce once per several micro-batches, or shard "
    "over fewer ranks",
    ALL_REDUCE: "overlap it with the backward pass (larger or earlier buckets), or reduce once per several "
    "micro-batches (no_sync)",
    OF_ACTIVATIONS: "a smaller tensor-parallel size, an all-reduce fused with the norm behind it, or a larger batch",
    ALL_TO_ALL: "overlap it with other work (another micro-batch, the dense part), send fewer bytes (FP8), or keep it "
    "within a node",
}
#: What spares latency, which no fewer bytes do.
REMEDIES_OF_LATENCY = "fewer and larger messages: larger buckets, a larger batch, or one fused with the work behind it"


def exposed_kinds(seen: Observed) -> dict[str, int]:
    """Nanoseconds in which communication of each kind was all that ran; communication of an unknown kind is in none."""
    at = np.flatnonzero(seen.activity.communication & (seen.own_ns > 0))
    found: dict[str, int] = {}
    for kind, own in zip(_kinds(seen, at), seen.own_ns[at].tolist(), strict=True):
        if kind:
            found[kind] = found.get(kind, 0) + own
    return found


def holds_only_communication(table: TraceTable, activity: DeviceActivity) -> bool:
    """Whether a file is an extract of its collectives: what computed beside them, and the host, is not in it."""
    host = (table.kind == Kind.CPU_OP) | (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    return bool(len(activity) and activity.communication.all() and not host.any())


def _serves(seen: Observed) -> bool:
    """Whether ops ran forward only, and no optimizer: what they reduce are no gradients."""
    phases = seen.context.attribution.phases
    if phases.has_backward or not (phases.phase == PHASES.index(FORWARD)).any():
        return False
    return not any(_TRAINS.search(name) for name in seen.table.names)


def _kinds(seen: Observed, at: npt.NDArray[np.int64]) -> list[str | None]:
    """By the recorded collective, which NCCL's kernels alone have, else by the kernel's name and category."""
    activity, names = seen.activity, seen.table.names
    pair = _kind_of_pairs(names)
    keys = list(zip(activity.name[at].tolist(), seen.category[at].tolist(), strict=True))
    by_name = {(code, category): _reduced(seen, _said(names[code], category, pair)) for code, category in {*keys}}
    kinds = [by_name[key] for key in keys]
    own_record = np.flatnonzero(activity.collective[at])
    attributes, call = attributes_of_calls(seen.table, seen.tree, activity.rows[at[own_record]])
    recorded = [in_words(seen, values.get("Collective name")) for values in attributes]
    for place, code in zip(own_record.tolist(), call.tolist(), strict=True):
        kinds[place] = recorded[code] or kinds[place]
    return kinds


def in_words(seen: Observed, collective: object) -> str | None:
    """A recorded collective's kind; None for an unknown one."""
    word = Collective(kind=str(collective), elements_in=0, elements_out=0, ranks=None).word
    return None if word is None else _reduced(seen, _PLAIN.get(word, word.replace("_", "-")))


def _reduced(seen: Observed, kind: str | None) -> str | None:
    return OF_ACTIVATIONS if kind == ALL_REDUCE and seen.once(_serves) else kind


def _kind_of_pairs(names: Collection[str]) -> str | None:
    """What NCCL's SendRecv kernels are that record no collective: batches of sends, unless ops exchange as well.

    PyTorch launches ``batch_isend_irecv`` behind the records of its sends: pytorch/pytorch#194693.
    """
    sends = any(name in names for name in _SENDS)
    exchanges = any(_EXCHANGES.search(name) for name in names)
    return None if sends == exchanges else SEND_RECV if sends else ALL_TO_ALL


def _said(kernel: str, category: str, pair: str | None) -> str | None:
    """What a kernel's name says."""
    if category == _TOKENS:
        return ALL_TO_ALL
    match = _NAMED.search(kernel)
    kind = None if match is None else _WORDS[str(match.lastgroup)]
    if kind == ALL_REDUCE and category == "CustomCollective":
        return OF_ACTIVATIONS
    return pair if kind == SEND_RECV else kind
