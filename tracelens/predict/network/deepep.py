"""How long DeepEP's dispatch and combine take: its normal kernels and its low-latency kernels, in microseconds.

Routing is uniform and each rank holds the same number of experts. Everything is an array or a number; arrays are
taken element by element.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.files.documents import FigureTable
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US, NS_PER_US

Values: TypeAlias = float | npt.NDArray[np.float64]
Phase: TypeAlias = Literal["dispatch", "combine"]
C = TypeVar("C", "NormalConstants", "LowLatencyConstants")
#: ``deep_ep.Buffer.num_sms``, what the library uses unless told otherwise.
DEFAULT_SMS = 20
#: Tokens by which half of ``NormalConstants.fill_us`` is spent; chosen with the measurements in view, not fitted.
FILL_TOKENS = 256


class NormalConstants(Record, frozen=True, kw_only=True):
    """What the normal kernels cost in one phase. Shares are of the peak rates of the node's link and of a network card.

    ``floor_us`` + ``floor_us_per_khidden`` per 1024 of hidden: an exchange of no tokens. Of one SM's time a token takes
    ``token_ns`` and ``token_ns_per_byte``, each of its copies ``copy_ns`` and ``copy_ns_per_byte``. Between nodes each
    other node adds ``peer_us``, filling the buffers of each node ``fill_us``; ``sm_gb_s`` is what an SM forwards. The
    notification before it takes ``notify_us``, ``notify_peer_us`` per other node, ``notify_fill_us`` once there are
    many tokens, and ``notify_copy_ns`` of one SM's time per copy. ``error_percent``: the mean error on shapes or
    numbers of nodes that were not fitted, the largest of those of ``docs/network.md``.
    """

    floor_us: float
    floor_us_per_khidden: float
    token_ns: float = 0.0
    copy_ns: float = 0.0
    copy_ns_per_byte: float = 0.0
    token_ns_per_byte: float = 0.0
    link_share: float
    peer_us: float
    fill_us: float
    nic_share: float
    sm_gb_s: float
    notify_us: float
    notify_peer_us: float
    source: str
    notify_fill_us: float = 0.0
    notify_copy_ns: float = 0.0
    error_percent: float | None = None


class LowLatencyConstants(Record, frozen=True, kw_only=True):
    """What the low-latency kernels cost in one phase. Shares are of the peak rates of link and network card.

    ``floor_us`` + ``expert_ns`` per expert: an exchange of no tokens; between nodes ``nodes_us`` + ``step_us`` per
    doubling of nodes come on top. One expert occupies one compute unit at most, which takes ``token_ns`` per token and
    moves ``unit_gb_s``. ``error_percent`` as of the normal kernels.
    """

    floor_us: float
    expert_ns: float = 0.0
    link_share: float
    unit_gb_s: float
    nodes_us: float = 0.0
    step_us: float
    nic_share: float
    source: str
    token_ns: float = 0.0
    error_percent: float | None = None


class Fabric(Record, frozen=True, kw_only=True):
    """The rates that an exchange runs over, GB/s, one direction: a rank's link within its node, its network card.

    ``library``: whose kernels (``deepep.toml``, ``uccl.toml``).
    """

    link_gb_s: float
    nic_gb_s: float
    ranks_per_node: int
    compute_units: int
    library: str = "deepep"


class Exchanges(Record, frozen=True, kw_only=True, eq=False):
    """Dispatches or combines as numbers or arrays: ``tokens`` of every rank, and what the router chooses from.

    Groups fill ``nodes`` whole nodes. ``sms`` counts for the normal kernels only. ``element_bytes``: of one
    element on the wire, scales included; those of DeepEP's README unless given.
    """

    phase: Phase
    tokens: Values
    hidden: Values
    topk: Values
    experts: Values
    nodes: Values
    sms: Values = DEFAULT_SMS
    element_bytes: Values | None = None

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.tokens) >= 0):
            raise UsageError("tokens per rank must be 0 or more")
        for name in ("hidden", "nodes", "sms"):
            if not np.all(np.asarray(getattr(self, name)) > 0):
                raise UsageError(f"{name} of an exchange must be above 0")

    @property
    def token_bytes(self) -> Values:
        """One token on the wire: dispatch FP8 with an FP32 scale per 128 elements, combine BF16 (DeepEP's README)."""
        if self.element_bytes is not None:
            return self.hidden * self.element_bytes
        return self.hidden * (1 + 4 / 128) if self.phase == "dispatch" else self.hidden * 2.0

    @property
    def remote_share(self) -> Values:
        """Share of the nodes that are others: (N-1)/N."""
        return (self.nodes - 1) / self.nodes

    @property
    def remote_nodes(self) -> Values:
        """Distinct nodes that a token goes to, without its own."""
        return distinct(self.nodes, self.experts, self.topk) * self.remote_share

    def copies(self, ranks_per_node: int) -> Values:
        """Distinct ranks that a token goes to, its own included."""
        return distinct(self.nodes * ranks_per_node, self.experts, self.topk)


#: Whose kernels have a file of constants here.
_LIBRARIES = ("deepep", "uccl")


class DeepEP(Record, frozen=True, kw_only=True):
    """The constants of both kinds of kernels by phase."""

    normal: Mapping[Phase, NormalConstants]
    low_latency: Mapping[Phase, LowLatencyConstants]

    @classmethod
    def load(cls, library: str = "deepep") -> DeepEP:
        """The constants of this package, ``deepep.toml``."""
        if library not in _LIBRARIES:
            raise UsageError.unknown("expert-parallel library", library, _LIBRARIES)
        return _read(Path(__file__).with_name(f"{library}.toml"))


def distinct(places: Values, experts: Values, topk: Values) -> Values:
    """Expected number of places out of ``places`` that hold at least one of ``topk`` distinct experts of ``experts``.

    places * (1 - C(E - E/places, k) / C(E, k)): drawing without replacement.
    """
    if all(isinstance(each, int | float) for each in (places, experts, topk)):
        return _distinct_of_numbers(float(places), float(experts), float(topk))
    return _distinct(*np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (places, experts, topk))))


@functools.lru_cache(maxsize=4096)
def _distinct_of_numbers(places: float, experts: float, topk: float) -> float:
    return float(_distinct(*np.array([[places], [experts], [topk]]))[0])


def _distinct(
    places: npt.NDArray[np.float64], experts: npt.NDArray[np.float64], topk: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    if (topk > experts).any() or (topk < 1).any() or (places < 1).any():
        raise UsageError("top-k must be at least 1 and at most the number of experts")
    missed = np.ones(places.shape)
    for drawn in range(int(topk.max(initial=0))):
        left = np.maximum(experts - experts / places - drawn, 0.0) / np.maximum(experts - drawn, 1.0)
        missed = np.where(drawn < topk, missed * left, missed)
    result: npt.NDArray[np.float64] = places * (1 - missed)
    return result


def normal_us(given: Exchanges, fabric: Fabric, constants: NormalConstants | None = None) -> Values:
    """The throughput kernels, without the notification before them; constants of this package unless given.

    t = floor + peer (N-1) + [N > 1] fill N T / (T + 256) + T t1, with T tokens, y bytes of a token, U distinct ranks
    and Un distinct nodes per token, p8(a, b) = (a^8 + b^8)^(1/8). One node: t1 = p8((token + copy U + (token' + copy'
    U) y) / sms, U y / link). N nodes: t1 = p8(Un (N-1)/N y / nic, U y / link, (Un (N-1)/N + U) y / (sms * SM rate)): a
    token crosses the network once per node and is forwarded there over NVLink.
    """
    c = constants or DeepEP.load(fabric.library).normal[given.phase]
    y, copies = given.token_bytes, given.copies(fabric.ranks_per_node)
    remote = given.remote_nodes
    over_link = copies * y / (c.link_share * fabric.link_gb_s * GB_PER_S_IN_BYTES_PER_US)
    over_nic = remote * y / (c.nic_share * fabric.nic_gb_s * GB_PER_S_IN_BYTES_PER_US)
    issued = c.token_ns + c.copy_ns * copies + (c.copy_ns_per_byte * copies + c.token_ns_per_byte) * y
    within = _smooth_max(8, issued / NS_PER_US / given.sms, over_link)
    forwarded = (remote + copies) * y / (c.sm_gb_s * GB_PER_S_IN_BYTES_PER_US * given.sms)
    between = _smooth_max(8, over_nic, over_link, forwarded)
    is_one = given.nodes == np.float64(1)
    filled = np.where(is_one, 0.0, c.fill_us * given.nodes * given.tokens / (given.tokens + FILL_TOKENS))
    floor = c.floor_us + c.floor_us_per_khidden * given.hidden / 1024 + c.peer_us * (given.nodes - 1) + filled
    result: npt.NDArray[np.float64] = floor + given.tokens * np.where(is_one, within, between)
    return result


def notify_us(given: Exchanges, fabric: Fabric, constants: NormalConstants | None = None) -> Values:
    """What the normal kernels need between nodes to agree on counts, before they send; 0 in one node.

    t = notify + peer (N-1) + fill T / (T + 256) + copy T (Un (N-1)/N + U) / sms.
    """
    c = constants or DeepEP.load(fabric.library).normal[given.phase]
    each = (given.remote_nodes + given.copies(fabric.ranks_per_node)) / given.sms
    filled = c.notify_fill_us * given.tokens / (given.tokens + FILL_TOKENS)
    counted = c.notify_us + c.notify_peer_us * (given.nodes - 1) + filled
    counted = counted + c.notify_copy_ns / NS_PER_US * given.tokens * each
    result: npt.NDArray[np.float64] = np.where(given.nodes == np.float64(1), 0.0, counted)
    return result


def low_latency_us(given: Exchanges, fabric: Fabric, constants: LowLatencyConstants | None = None) -> Values:
    """The low-latency kernels; constants of this package unless given.

    X = tokens * topk * bytes of a copy: one copy per expert, local ones included. floor + expert * E + [N > 1] (nodes +
    step log2 N) + p6(X / link, (token * tokens + X / unit rate) / min(E, units), X (N-1)/N / nic), p6(a, b) = (a^6 +
    b^6)^(1/6). Never below ``bound_us``, which it can touch where there are fewer experts than ranks.
    """
    c = constants or DeepEP.load(fabric.library).low_latency[given.phase]
    # a dispatched copy carries 16 bytes of source position beside the token
    sent = given.tokens * given.topk * (given.token_bytes + (16 if given.phase == "dispatch" else 0))
    over_link = sent / (c.link_share * fabric.link_gb_s * GB_PER_S_IN_BYTES_PER_US)
    over_nic = sent * given.remote_share / (c.nic_share * fabric.nic_gb_s * GB_PER_S_IN_BYTES_PER_US)
    of_one_unit = c.token_ns / NS_PER_US * given.tokens + sent / (c.unit_gb_s * GB_PER_S_IN_BYTES_PER_US)
    issued = of_one_unit / np.minimum(given.experts, fabric.compute_units)
    between = np.where(given.nodes > np.float64(1), c.nodes_us + c.step_us * np.log2(given.nodes), 0.0)
    floor = c.floor_us + c.expert_ns / NS_PER_US * given.experts + between
    modeled = floor + _smooth_max(6, over_link, issued, over_nic)
    result: npt.NDArray[np.float64] = np.maximum(modeled, bound_us(given, fabric))
    return result


def bound_us(given: Exchanges, fabric: Fabric) -> Values:
    """The least time that the peak rates of link and card allow: one copy per rank, remote bytes over the slower one.

    Of a token's copies (g-1)/g leave the rank of its node where it arrives or starts, g ranks to a node.
    """
    copies = given.copies(fabric.ranks_per_node) * (fabric.ranks_per_node - 1) / fabric.ranks_per_node
    per_byte = np.maximum(given.remote_nodes / fabric.nic_gb_s, copies / fabric.link_gb_s)
    result: npt.NDArray[np.float64] = given.tokens * given.token_bytes * per_byte / GB_PER_S_IN_BYTES_PER_US
    return result


def _smooth_max(power: int, *terms: Values) -> Values:
    """(sum x^power)^(1/power): where two resources are equally busy, neither is used without gaps."""
    largest = functools.reduce(np.maximum, terms)
    scale = np.where(largest > 0, largest, 1.0)
    result: npt.NDArray[np.float64] = scale * sum((term / scale) ** power for term in terms) ** (1 / power)
    return np.where(largest > 0, result, 0.0)


@functools.cache
def _read(path: Path) -> DeepEP:
    root = FigureTable.of_file(path, kind="DeepEP")
    made = DeepEP(
        normal=_constants(root, "normal", NormalConstants),
        low_latency=_constants(root, "low_latency", LowLatencyConstants),
    )
    root.finish()
    return made


def _constants(root: FigureTable, kernels: str, made: type[C]) -> dict[Phase, C]:
    found: dict[Phase, C] = {}
    phases: tuple[Phase, ...] = ("dispatch", "combine")
    tables = root.tables(kernels, frozenset(phases))
    for phase in phases:
        if phase not in tables:
            raise root.error(kernels, f"must have the table {phase}")
        table = tables[phase]
        found[phase] = made(**table.figures(made))
        table.finish()
    return found
