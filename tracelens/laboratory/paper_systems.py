"""Systems and models of arXiv 2410.00273: systems by name, as the JSON files of its code, and as systems of this
project and back; dense shapes by name, and all ways to split one over devices.

``b200-nvs8`` is the paper's B200 with 8 devices in a fast domain, with the paper's figures whatever the rules. A
configuration is a data-parallel degree, a tensor-parallel grid m1 x m2, pipeline stages, a micro-batch, for SUMMA a
number of blocks, and how many members of each group sit in one fast (NVLink) domain. The space depends on the model's
shape and the domain's size, not on the device.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracelens.backends.base import System
from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import Number
from tracelens.files.documents import beside, expected, json_of, toml_of
from tracelens.hardware.device_figures import Hbm, Link
from tracelens.hardware.spec import HardwareSpec
from tracelens.predict.network.topology import Protocol, Rates, Tier, TierLink, Topology
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.projection.search import space, systems
from tracelens.predict.projection.search.space import AlignedColumns, Ints, Shape
from tracelens.predict.projection.search.systems import AS_THEY_ARE, Figures
from tracelens.predict.workload.blocks import DENSE_LAYER
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB, BYTES_PER_GIB, US_PER_S

#: Whose kernels' efficiencies the paper's devices have under the corrected rules.
_LIKE = {"A100": "a100-sxm-80gb", "H200": "h200-sxm", "B200": "b200", "B200-next": "b200"}
_SOURCE = "arXiv 2410.00273 (transformer-perf-estimates config-*.json)"
_ALGORITHMS = (
    "all_gather/ring", "reduce_scatter/ring", "all_reduce/ring", "broadcast/ring", "reduce/ring", "all_to_all/direct",
    "send/p2p",
)  # fmt: skip


class LinkTier(Record, frozen=True, kw_only=True):
    """A tier of the network: GB/s one direction, the fraction that is reached, and seconds per message."""

    gb_s: float
    efficiency: float
    latency_s: float

    @property
    def effective_gb_s(self) -> float:
        return self.gb_s * self.efficiency


class Sigmoid(NamedTuple):
    """GB/s of a collective: ``height / (1 + exp(-slope (x - center))) + base``, x = log2 of its message in bytes."""

    height: float
    slope: float
    center: float
    base: float


class NcclFits(Record, frozen=True):
    """Measured bandwidths as fits by (collective, devices per domain, domains), in place of the two tiers' formula."""

    fits: Mapping[tuple[str, int, int], Sigmoid]

    def seconds(self, volume_gb: Any, ranks: Any, near: Any, kind: str) -> Any:
        """Volume over the fit's rate, in GB of 2^30 bytes as the published code has it; NaN where a kind has no fit.

        A number of domains that was not measured has the fit of the nearest; UsageError for larger domains.
        """
        if not any(word == kind for word, _, _ in self.fits):
            return np.nan
        volume, ranks, near = np.broadcast_arrays(np.asarray(volume_gb, float), ranks, near)
        result = np.full(volume.shape, np.nan)
        pairs = np.stack((near, ranks // near), axis=-1).reshape(-1, 2)
        for each, domains in np.unique(pairs[(ranks > 1).reshape(-1)], axis=0).tolist():
            at = (near == each) & (ranks // near == domains) & (volume > 0)
            size = np.log2(volume[at] * 2**30)
            fit = self._fit(kind, each, domains)
            result[at] = volume[at] / (fit.height / (1 + np.exp(-fit.slope * (size - fit.center))) + fit.base)
        return result

    def _fit(self, kind: str, near: int, domains: int) -> Sigmoid:
        known = [count for word, each, count in self.fits if (word, each) == (kind, near)]
        if not known:
            raise UsageError(
                f"the NCCL fits have no {kind} of {near} devices in a domain: choose another size with --sweep nvs="
            )
        return self.fits[kind, near, min(known, key=lambda count: abs(math.log2(count / domains)))]


class PaperSystem(Record, frozen=True, kw_only=True):
    """A device and its two network tiers, by the paper's account. ``domain``: devices joined by ``fast`` links.
    ``nic_factor``: on the slow links of collectives that use both. ``nccl``: measured collectives instead.
    """

    name: str
    matrix_tflops_s: float
    vector_tflops_s: float
    hbm_gb_s: float
    hbm_gb: float
    fast: LinkTier
    slow: LinkTier
    domain: int
    nic_factor: float = 1.0
    nccl: NcclFits | None = None

    @classmethod
    def load(cls, name: str, *, domain: int) -> PaperSystem:
        """``A100``, ``H200``, ``B200`` or ``B200-next`` with ``domain`` devices per fast domain."""
        known = paper_data()["systems"]
        found = next((key for key in known if key.lower() == name.lower()), None)
        if found is None:
            raise UsageError.unknown("system of the paper", name, [key.lower() for key in known])
        figures: dict[str, Any] = dict(known[found])
        fast, slow = (LinkTier(**figures.pop(tier)) for tier in ("fast", "slow"))
        return cls(name=found, domain=domain, fast=fast, slow=slow, **figures)


@cache
def paper_data() -> dict[str, Any]:
    """The figures of ``systems`` and ``models`` that the paper states."""
    return toml_of(Path(__file__).with_name("paper.toml"))


def system_names() -> tuple[str, ...]:
    """The paper's systems, in small letters."""
    return tuple(name.lower() for name in paper_data()["systems"])


def paper_system(name: str, figures: Figures = AS_THEY_ARE) -> PaperSystem:
    """A system of the paper (``b200-nvs8``), or any cluster with its data sheet's peaks, as its rules take one.

    UsageError for an unknown name, and for a cluster that lacks a figure.
    """
    if _is_file_of_paper(name):
        return _changed_paper(read_system(Path(name)), figures)
    base, domain = _split(name)
    if base in system_names():
        if domain is None:
            raise UsageError(f"{name!r} needs the size of its fast domain, like {name}-nvs8")
        return _changed_paper(PaperSystem.load(base, domain=domain), figures)
    return _changed_paper(_as_paper(load_system(name)), figures)


def load_system(name: str, figures: Figures = AS_THEY_ARE) -> System:
    """A cluster or device by name or file, or a system of the paper. UsageError for an unknown name.

    ``h200`` alone is the device in its standard node; ``h200-nvs8`` the paper's.
    """
    if _is_file_of_paper(name):
        return _from_paper(paper_system(name, figures))
    base, domain = _split(name)
    if domain is None:
        try:
            return systems.with_figures(System.load(name), figures)
        except UsageError:
            if base not in system_names():
                raise
    if base in system_names():
        own, changed = paper_system(name), paper_system(name, figures)
        scale = changed.matrix_tflops_s / own.matrix_tflops_s * own.hbm_gb_s / changed.hbm_gb_s
        system = _from_paper(changed)
        return replace(system, device=replace(system.device, on_chip_scale=scale))
    return systems.with_figures(System.load(base), replace(figures, nvs=figures.nvs or domain))


def _is_file_of_paper(name: str) -> bool:
    """Whether a cluster is given as the published code's JSON."""
    return name.lower().endswith(".json")


def _changed_paper(system: PaperSystem, figures: Figures) -> PaperSystem:
    """The system with these figures in place of its own."""
    scale = 1.0 if figures.flops is None else figures.flops / system.matrix_tflops_s
    return replace(
        system,
        matrix_tflops_s=system.matrix_tflops_s * scale,
        vector_tflops_s=figures.vector_flops or system.vector_tflops_s * scale,
        hbm_gb_s=figures.hbm_gb_s or system.hbm_gb_s,
        hbm_gb=figures.hbm_gb or system.hbm_gb,
        domain=figures.nvs or system.domain,
        fast=_with_link(system.fast, figures.nvlink_gb_s, figures.nvlink_us, figures.nvlink_eff),
        slow=_with_link(system.slow, figures.ib_gb_s, figures.ib_us, figures.ib_eff),
        nic_factor=figures.nic_factor or system.nic_factor,
    )


def _with_link(tier: LinkTier, gb_s: float | None, latency_us: float | None, efficiency: float | None) -> LinkTier:
    latency_s = tier.latency_s if latency_us is None else latency_us / US_PER_S
    return replace(tier, gb_s=gb_s or tier.gb_s, latency_s=latency_s, efficiency=efficiency or tier.efficiency)


def _from_paper(paper: PaperSystem) -> System:
    """The paper's figures; efficiencies by size are those fitted on the device of the same name."""
    if paper.name not in _LIKE:
        raise UsageError(
            f"{paper.name}: --rules corrected need a device whose kernels were measured; name the file after one "
            f"(config-{next(iter(_LIKE))}.json), or use --rules paper"
        )
    like = HardwareSpec.load(_LIKE[paper.name])
    device = replace(
        systems.scaled(like, paper.matrix_tflops_s),
        name=f"{paper.name.lower()}-of-the-paper",
        label=f"{paper.name} of arXiv 2410.00273",
        aliases=(),
        hbm=Hbm(
            peak_tb_s=paper.hbm_gb_s / 1000,
            visible_gib=paper.hbm_gb * BYTES_PER_GB / BYTES_PER_GIB,
            source=_SOURCE,
            visible_source=_SOURCE,
        ),
        link=Link(
            gb_s=paper.fast.gb_s, achievable_gb_s=paper.fast.effective_gb_s, source=_SOURCE, achievable_source=_SOURCE
        ),
        busbw=None,
        calibrated_like=like.name,
    )
    topology = Topology(
        tiers=(
            Tier(ranks=paper.domain, link=_link(paper.fast)),
            Tier(
                ranks=None, link=_link(replace(paper.slow, gb_s=paper.slow.gb_s * paper.nic_factor)), cards=paper.domain
            ),
        ),
        algorithms=_ALGORITHMS,
    )
    return System(
        device=device, topology=topology, note=f"figures of {device.label}, efficiencies fitted on {like.label}"
    )


def _link(tier: LinkTier) -> TierLink:
    hop = tier.latency_s * US_PER_S
    return TierLink(
        rates=Rates(peak_gb_s=tier.gb_s, all_gather_gb_s=tier.effective_gb_s),
        protocols=(Protocol(name="simple", base_us=0.0, hop_us=hop, tree_hop_us=hop, rate_share=1.0),),
    )


def _as_paper(system: System) -> PaperSystem:
    device, topology = system.device, system.topology
    matrix = systems.first_rate(device, "matrix", DType.FP16, DType.BF16)
    vector = systems.first_rate(device, "vector", DType.FP16, DType.BF16, DType.FP32)
    hbm = device.hbm
    figures = {
        "a 16-bit matrix rate": matrix,
        "a vector rate": vector,
        "an HBM rate": hbm and hbm.peak_tb_s,
        "a memory capacity": hbm and hbm.nominal_gib,
        "links": topology and topology.ranks_per_node,
    }
    missing = [what for what, figure in figures.items() if not figure]
    if missing or matrix is None or vector is None or hbm is None or topology is None:
        raise UsageError(f"{device.name}: the paper's rules need its {', '.join(missing)}; use --rules corrected")
    fast, slow = topology.tiers[0], topology.tiers[-1]
    node = topology.ranks_per_node or 1
    return PaperSystem(
        name=device.name,
        matrix_tflops_s=matrix.peak_tflops_s,
        vector_tflops_s=vector.peak_tflops_s,
        hbm_gb_s=(hbm.peak_tb_s or 0) * 1000,
        hbm_gb=(hbm.nominal_gib or 0) * BYTES_PER_GIB / BYTES_PER_GB,
        fast=_tier(fast.link, 1.0),
        slow=_tier(slow.link, slow.cards / node),
        domain=node,
    )


def _tier(link: TierLink, share: float) -> LinkTier:
    """``share`` of a network card per device; the latency of the protocol for long messages."""
    rates = link.rates
    return LinkTier(
        gb_s=rates.peak_gb_s * share,
        efficiency=rates.of("all_gather") / rates.peak_gb_s,
        latency_s=link.protocols[-1].hop_us / US_PER_S,
    )


_FIGURE, _SHARE = Number(least=1e-9, most=1e9), Number(least=1e-9, most=1)
_RANKS = Number(least=1, most=1 << 20, whole=True)
#: Figure of a system -> its key in the JSON file; rates TFLOP/s and GB/s, capacity GB, latencies s.
_KEYS = {
    "matrix_tflops_s": "matrix_flops_fp16", "vector_tflops_s": "vector_flops_fp16", "hbm_gb_s": "hbm_bandwidth",
    "hbm_gb": "hbm_capacity",
}  # fmt: skip
#: Where its code looks for the fits that ``"empirical": true`` asks for.
_FITS = Path("measurements/comm/nccl-benchmark-21209538.out")
_WORDS = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}


def read_system(path: Path) -> PaperSystem:
    """A ``config-A100.json``. InputError, naming the key, for what is none.

    ``empirical`` true, or a file's name: collectives by its fits (``read_fits``), beside the JSON or one folder up.
    """
    given = json_of(path, "a system of the published code")
    if not isinstance(given, Mapping):
        raise InputError(f"{path} is not a system of the published code: its top level has no keys")

    def number(key: str, kind: Number = _FIGURE, default: float | None = None) -> float:
        if key not in given and default is None:
            raise InputError(f"{path} is not a system of the published code: it has no {key}")
        return kind.of(given.get(key, default), f"{path}: {key}")

    fast, slow = (
        LinkTier(
            gb_s=number(f"{link}_bandwidth"), efficiency=number(f"{link}_eff", _SHARE),
            latency_s=number(f"{link}_latency", Number(least=0, most=1)),
        )
        for link in ("nvlink", "ib")
    )  # fmt: skip
    return PaperSystem(
        name=path.stem.removeprefix("config-"), domain=int(number("nvlink_size", _RANKS)), fast=fast, slow=slow,
        nic_factor=number("nic_factor", default=1.0), nccl=_fits_of(path, given.get("empirical", False)),
        **{name: number(key) for name, key in _KEYS.items()},
    )  # fmt: skip


def _fits_of(path: Path, said: object) -> NcclFits | None:
    if said is False or said is None:
        return None
    places = [beside(path, said)] if isinstance(said, str) else [path.parent / _FITS, path.parent.parent / _FITS]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(
            f'{path}: empirical needs the NCCL fits, which are not at {places[0]}; name them: "empirical": "FILE"'
        )
    return read_fits(found)


def read_fits(path: Path) -> NcclFits:
    """Sigmoids of bandwidth over log2 of a message, by collective, devices per node and nodes. InputError."""
    what, found = "NCCL fits of the published code", {}
    with expected(path, what):
        for word, by_near in json_of(path, what).items():
            for near, by_nodes in by_near.items():
                for nodes, values in by_nodes.items():
                    place = _counted(near, "gpus_per_node_"), _counted(nodes, "num_nodes_")
                    found[_WORDS.get(word, word), *place] = Sigmoid(*map(float, values))
    if not found or not all(math.isfinite(value) for fit in found.values() for value in fit):
        raise InputError(f"{path} is not {what}: it has no finite fit")
    return NcclFits(found)


def _counted(key: str, prefix: str) -> int:
    if not key.startswith(prefix):
        raise ValueError(f"{key!r} is not {prefix}N")
    return int(key.removeprefix(prefix))


def system_json(system: PaperSystem) -> str:
    """The system as ``read_system`` and the published code read it."""
    links = {"nvlink": system.fast, "ib": system.slow}
    figures = {"bandwidth": "gb_s", "eff": "efficiency", "latency": "latency_s"}
    document = {
        **{key: getattr(system, name) for name, key in _KEYS.items()},
        **{f"{name}_{key}": getattr(links[name], field) for key, field in figures.items() for name in links},
        "nvlink_size": system.domain, "nic_factor": system.nic_factor, "empirical": False, "summa_nb": 4,
        "element_size": 2e-09, "mask_element_size": 1e-09, "flops_units": 1e-12,
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


_NODE = re.compile(r"(.+)-nvs(\d{1,6})", re.IGNORECASE)


def _split(name: str) -> tuple[str, int | None]:
    found = _NODE.fullmatch(name)
    if found is None:
        return name.lower(), None
    if int(found[2]) < 1:
        raise UsageError(f"{name!r}: a fast domain needs at least one device")
    return found[1].lower(), int(found[2])


def load_shape(name: str) -> Shape:
    """The shape of ``gpt3``, ``gpt3_1T`` or ``vit_era5``, or of ``l=2048,e=25600,h=160,depth=128``."""
    models: Mapping[str, Any] = paper_data()["models"]
    if "=" in name:
        return space.given_shape(name)
    for key, entry in models.items():
        if name.lower() in (key.lower(), *entry["aliases"]):
            return Shape(**{k: v for k, v in entry.items() if k != "aliases"})
    raise UsageError.unknown(
        "model of the paper", name, [alias for entry in models.values() for alias in entry["aliases"]]
    )


def paper_shape(name: str, sequence: int | None = None) -> Shape:
    """The shape of a model for the paper's rules. UsageError for a model that they do not describe."""
    try:
        shape = load_shape(name)
    except UsageError:
        if "=" in name:
            raise
        model, length = systems.load_model(name, sequence)
        if set(model.layers) != {DENSE_LAYER} or model.gated or model.kv_heads != model.q_heads:
            raise UsageError(
                "the paper's rules support dense models with a plain feed-forward (of two GEMMs) and as many key as "
                f"query heads; for {model.name} use --rules corrected"
            ) from None
        return Shape(sequence=length, hidden=model.hidden, heads=model.q_heads, depth=len(model.layers), ffn=model.ffn)
    return shape if sequence is None else replace(shape, sequence=sequence)


class Candidates(AlignedColumns, frozen=True, kw_only=True, eq=False):
    """One entry per configuration. ``blocks`` is 1 outside SUMMA; ``near_*``: members of the group in one domain."""

    gpus: Ints
    dp: Ints
    m1: Ints
    m2: Ints
    pp: Ints
    micro_batch: Ints
    blocks: Ints
    near_m1: Ints
    near_m2: Ints
    near_dp: Ints
    near_pp: Ints


def enumerate_candidates(
    shape: Shape, strategy: Strategy, gpu_counts: Iterable[int], *, global_batch: int, domain: int
) -> Candidates:
    """All configurations for each of ``gpu_counts`` devices; ``domain`` is the number of devices in one fast domain."""
    parts = [
        _block(shape, strategy, (n, n // (m1 * m2 * pp), m1, m2, pp), global_batch, domain)
        for n in gpu_counts
        for m1, m2 in _grids(shape, strategy, n)
        for pp in space.divisors(min(n // (m1 * m2), shape.depth))
        if n % (m1 * m2 * pp) == 0 and shape.depth % pp == 0
    ]
    rows = np.concatenate([p for p in parts if len(p)] or [np.empty((0, 11), np.int64)])
    return Candidates(**{name: rows[:, i].copy() for i, name in enumerate(Candidates.__struct_fields__)})


def _grids(shape: Shape, strategy: Strategy, n: int) -> Iterator[tuple[int, int]]:
    e, h, seq = shape.hidden, shape.heads, shape.sequence
    for m1 in space.divisors(n):
        if h % m1 or e % m1:
            continue
        if strategy == "1d":
            if 3 * e // m1 >= space.MIN_SHARD:
                yield m1, 1
            continue
        for m2 in space.divisors(n // m1):
            if strategy == "2d" and e % m2:
                continue
            if e // m1 >= space.MIN_SHARD and seq // m2 >= space.MIN_SHARD:
                yield m1, m2


def _block(
    shape: Shape, strategy: Strategy, degrees: tuple[int, int, int, int, int], global_batch: int, domain: int
) -> Ints:
    """All micro-batches x blocks x placements of one grid; ``degrees`` are devices, dp, m1, m2 and pp."""
    _, dp, m1, m2, pp = degrees
    if dp > global_batch or global_batch % dp:
        return np.empty((0, 11), np.int64)
    shard = {"1d": m1, "2d": m2, "2d-seqp": m1 * m2}[strategy]
    batches = [b for b in space.divisors(global_batch // dp) if b * shape.sequence % shard == 0]
    blocks = space.summa_blocks(shape.hidden, m1, m2) if strategy == "2d" else (1,)
    placed = _placements((m1, m2, dp, pp), domain)
    inner = np.array(np.meshgrid(batches, blocks, np.arange(len(placed)), indexing="ij"), np.int64).reshape(3, -1)
    rows = np.empty((inner.shape[1], 11), np.int64)
    rows[:, :5] = degrees
    rows[:, 5:7] = inner[:2].T
    rows[:, 7:] = placed[inner[2]]
    return rows


@cache
def _placements(degrees: tuple[int, int, int, int], domain: int) -> Ints:
    """(m1, m2, dp, pp) members in one domain: every ordered factorization of ``domain`` into divisors of the degrees.

    When all devices fit into one domain there is only one way: all of them do.
    """
    if math.prod(degrees) <= domain:
        return np.array([degrees], np.int64)
    found = [
        (a, b, c, d)
        for a in space.divisors(math.gcd(degrees[0], domain))
        for b in space.divisors(math.gcd(degrees[1], domain // a))
        for c in space.divisors(math.gcd(degrees[2], domain // (a * b)))
        if degrees[3] % (d := domain // (a * b * c)) == 0 and a * b * c * d == domain
    ]
    return np.array(found, np.int64).reshape(-1, 4)
