"""Systems and models of a search by name: this project's, the paper's, and either with other figures.

``b200-nvs8`` is the paper's B200 with 8 devices in a fast domain, with the paper's figures whatever the rules; any
other cluster or device can have another domain size the same way: ``dgx-b200-nvs72``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from tracelens.backends.base import System
from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.hardware.device_figures import Hbm, Link, Rate
from tracelens.hardware.spec import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.network.topology import Protocol, Rates, Tier, TierLink, Topology
from tracelens.predict.projection.projection_options import STRATEGIES, PaperAttention, Strategy
from tracelens.predict.projection.search.paper import (
    Layer,
    LinkTier,
    PaperRules,
    PaperSystem,
    given_shape,
    load_shape,
    system_names,
)
from tracelens.predict.projection.search.published_files import read_system
from tracelens.predict.projection.search.space import Shape
from tracelens.units import BYTES_PER_GB, BYTES_PER_GIB, US_PER_S
from tracelens.workload.blocks import DENSE_LAYER
from tracelens.workload.model_config import ModelConfig

_NODE = re.compile(r"(.+)-nvs(\d{1,6})", re.IGNORECASE)
#: Whose kernels' efficiencies the paper's devices have under the corrected rules.
_LIKE = {"A100": "a100-sxm-80gb", "H200": "h200-sxm", "B200": "b200", "B200-next": "b200"}
_SOURCE = "arXiv 2410.00273 (transformer-perf-estimates config-*.json)"
_ALGORITHMS = (
    "all_gather/ring", "reduce_scatter/ring", "all_reduce/ring", "broadcast/ring", "reduce/ring", "all_to_all/direct",
    "send/p2p",
)  # fmt: skip
#: Where a model does not say how long its sequences are, as ``tracelens project`` has it.
SEQUENCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures to put in place of a system's own; None leaves them.

    ``flops``: TFLOP/s of 16-bit matrix products, every other compute rate scales along. ``hbm_gb_s`` and ``hbm_gb`` of
    device memory. ``nvs``: devices in a fast domain. ``vector_flops``: TFLOP/s of 16-bit vector operations.
    ``nvlink_gb_s`` and ``ib_gb_s``: one direction of a device's links within its domain and to others, ``nvlink_us``
    and ``ib_us`` their latencies, ``nvlink_eff`` and ``ib_eff`` the share of their rates that collectives reach.
    ``nic_factor``: on the rate between domains of what also travels within them.
    """

    flops: float | None = None
    hbm_gb: float | None = None
    hbm_gb_s: float | None = None
    nvs: int | None = None
    vector_flops: float | None = None
    nvlink_gb_s: float | None = None
    ib_gb_s: float | None = None
    nvlink_us: float | None = None
    ib_us: float | None = None
    nic_factor: float | None = None
    nvlink_eff: float | None = None
    ib_eff: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not value > 0:
                raise UsageError(f"{each.name} must be above 0, not {value}")
            if value is not None and each.name.endswith("_eff") and value > 1:
                raise UsageError(f"{each.name} is a share of the rate, at most 1, not {value}")

    def of(self, system: PaperSystem) -> PaperSystem:
        """The system with these figures."""
        scale = 1.0 if self.flops is None else self.flops / system.matrix_tflops_s
        return replace(
            system,
            matrix_tflops_s=system.matrix_tflops_s * scale,
            vector_tflops_s=self.vector_flops or system.vector_tflops_s * scale,
            hbm_gb_s=self.hbm_gb_s or system.hbm_gb_s,
            hbm_gb=self.hbm_gb or system.hbm_gb,
            domain=self.nvs or system.domain,
            fast=_with_link(system.fast, self.nvlink_gb_s, self.nvlink_us, self.nvlink_eff),
            slow=_with_link(system.slow, self.ib_gb_s, self.ib_us, self.ib_eff),
            nic_factor=self.nic_factor or system.nic_factor,
        )


def _with_link(tier: LinkTier, gb_s: float | None, latency_us: float | None, efficiency: float | None) -> LinkTier:
    latency_s = tier.latency_s if latency_us is None else latency_us / US_PER_S
    return replace(tier, gb_s=gb_s or tier.gb_s, latency_s=latency_s, efficiency=efficiency or tier.efficiency)


AS_THEY_ARE = Figures()


def paper_system(name: str, figures: Figures = AS_THEY_ARE) -> PaperSystem:
    """A system of the paper (``b200-nvs8``), or any cluster with its data sheet's peaks, as its rules take one.

    UsageError for an unknown name, and for a cluster that lacks a figure.
    """
    if _is_file_of_paper(name):
        return figures.of(read_system(Path(name)))
    base, domain = _split(name)
    if base in system_names():
        if domain is None:
            raise UsageError(f"{name!r} needs the size of its fast domain, like {name}-nvs8")
        return figures.of(PaperSystem.load(base, domain=domain))
    return figures.of(_as_paper(load_system(name)))


def load_system(name: str, figures: Figures = AS_THEY_ARE) -> System:
    """A cluster or device by name or file, or a system of the paper. UsageError for an unknown name.

    ``h200`` alone is the device in its standard node; ``h200-nvs8`` the paper's.
    """
    if _is_file_of_paper(name):
        return _from_paper(paper_system(name, figures))
    base, domain = _split(name)
    if domain is None:
        try:
            return _with(System.load(name), figures)
        except UsageError:
            if base not in system_names():
                raise
    if base in system_names():
        own, changed = paper_system(name), paper_system(name, figures)
        scale = changed.matrix_tflops_s / own.matrix_tflops_s * own.hbm_gb_s / changed.hbm_gb_s
        system = _from_paper(changed)
        return replace(system, device=replace(system.device, on_chip_scale=scale))
    return _with(System.load(base), replace(figures, nvs=figures.nvs or domain))


def load_model(name: str, sequence: int | None = None) -> tuple[ModelConfig, int]:
    """A model, and how long its sequences are: ``sequence``, else its positions, else 4096 tokens.

    ``l=2048,e=25600,h=160,depth=128`` is a GPT of that shape; without ``vocab=51200`` it has no embedding, no logits.
    """
    if "=" not in name:
        model = ModelConfig.load(name)
        return model, sequence or model.positions or SEQUENCE
    vocab = re.search(r"(?:^|,)\s*vocab\s*=\s*(\d+)\s*(?=,|$)", name)
    shape = given_shape(name if vocab is None else name.replace(vocab[0], "").strip(","))
    model = ModelConfig(
        name=name,
        label=name,
        source="given shape",
        blocks=DENSE_LAYER * shape.depth,
        hidden=shape.hidden,
        vocab=0 if vocab is None else int(vocab[1]),
        ffn=shape.width,
        q_heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm="layer",
        norm_bias=True,
        positions=shape.sequence,
    )
    return model, sequence or shape.sequence


def layer(
    model: str,
    cluster: str,
    *,
    strategy: Strategy = "1d",
    attention: PaperAttention = "fused",
    sequence: int | None = None,
    **degrees: int,
) -> Layer:
    """One layer of a model on one device by the paper's rules, as objects (``tl.layer``).

    ``degrees``: ``tp1``, ``tp2``, ``micro_batch``, ``blocks``, ``near_tp1``, ``near_tp2`` of ``Layer``; ``tp`` is
    ``tp1``. UsageError for others.
    """
    given = {"tp1" if name == "tp" else name: value for name, value in degrees.items()}
    known = [each.name for each in fields(Layer) if each.name != "rules"]
    for name in given:
        if name not in known:
            raise UsageError.unknown("degree", name, known)
    if strategy not in STRATEGIES:
        raise UsageError.unknown("strategy", strategy, STRATEGIES)
    rules = PaperRules(
        shape=paper_shape(model, sequence), strategy=strategy, system=paper_system(cluster), attention=attention
    )
    return Layer(rules=rules, **given)


def paper_shape(name: str, sequence: int | None = None) -> Shape:
    """The shape of a model for the paper's rules. UsageError for a model that they do not describe."""
    try:
        shape = load_shape(name)
    except UsageError:
        if "=" in name:
            raise
        model, length = load_model(name, sequence)
        if set(model.layers) != {DENSE_LAYER} or model.gated or model.kv_heads != model.q_heads:
            raise UsageError(
                "the paper's rules support dense models with a plain feed-forward (of two products) and as many key as "
                f"query heads; for {model.name} use --rules corrected"
            ) from None
        return Shape(sequence=length, hidden=model.hidden, heads=model.q_heads, depth=len(model.layers), ffn=model.ffn)
    return shape if sequence is None else replace(shape, sequence=sequence)


def _is_file_of_paper(name: str) -> bool:
    """Whether a cluster is given as the published code's JSON."""
    return name.lower().endswith(".json")


def _split(name: str) -> tuple[str, int | None]:
    found = _NODE.fullmatch(name)
    if found is None:
        return name.lower(), None
    if int(found[2]) < 1:
        raise UsageError(f"{name!r}: a fast domain needs at least one device")
    return found[1].lower(), int(found[2])


def _from_paper(paper: PaperSystem) -> System:
    """The paper's figures; efficiencies by size are those fitted on the device of the same name."""
    if paper.name not in _LIKE:
        raise UsageError(
            f"{paper.name}: --rules corrected need a device whose kernels were measured; name the file after one "
            f"(config-{next(iter(_LIKE))}.json), or use --rules paper"
        )
    like = HardwareSpec.load(_LIKE[paper.name])
    device = replace(
        _scaled(like, paper.matrix_tflops_s),
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
    matrix = _rate(device, "matrix", DType.FP16, DType.BF16)
    vector = _rate(device, "vector", DType.FP16, DType.BF16, DType.FP32)
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
        raise UsageError(f"{device.name}: the paper's rules need {', '.join(missing)}, which is unknown")
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


def _with(system: System, figures: Figures) -> System:
    device, hbm = system.device, system.device.hbm
    if figures.flops is not None:
        device = _scaled(device, figures.flops)
    if figures.hbm_gb is not None or figures.hbm_gb_s is not None:
        hbm = hbm or Hbm()
        if figures.hbm_gb_s is not None:
            share = (hbm.achievable_tb_s or 0) / hbm.peak_tb_s if hbm.peak_tb_s else 0
            peak = figures.hbm_gb_s / 1000
            # Caches keep their rate, which constants give as a share of the memory's
            device = replace(device, on_chip_scale=device.on_chip_scale * (hbm.peak_tb_s or peak) / peak)
            hbm = replace(hbm, peak_tb_s=peak, achievable_tb_s=share * peak or None)
        if figures.hbm_gb is not None:
            hbm = replace(hbm, visible_gib=figures.hbm_gb * BYTES_PER_GB / BYTES_PER_GIB)
        device = replace(device, hbm=hbm)
    if figures.vector_flops is not None:
        device = _scaled(device, figures.vector_flops, engine="vector")
    if device is not system.device:
        system = replace(system, device=replace(device, name=f"{device.name}-changed"))
    return _with_links(system if figures.nvs is None else _with_node(system, figures.nvs), figures)


def _with_links(system: System, figures: Figures) -> System:
    """The innermost and the outermost tier with other rates per device and latencies."""
    topology = system.topology
    changed = (
        figures.nvlink_gb_s, figures.ib_gb_s, figures.nvlink_us, figures.ib_us, figures.nic_factor, figures.nvlink_eff,
        figures.ib_eff,
    )  # fmt: skip
    if topology is None or not any(changed):
        return system
    inner, outer = topology.tiers[0], topology.tiers[-1]
    share = outer.cards / (topology.ranks_per_node or 1)
    near = 1.0 if figures.nvlink_gb_s is None else figures.nvlink_gb_s / inner.link.rates.peak_gb_s
    far = 1.0 if figures.ib_gb_s is None else figures.ib_gb_s / (outer.link.rates.peak_gb_s * share)
    tiers = [*topology.tiers]
    tiers[0] = replace(inner, link=_changed(inner.link, near, figures.nvlink_us, figures.nvlink_eff))
    if len(tiers) > 1:
        tiers[-1] = replace(
            outer, link=_changed(outer.link, far * (figures.nic_factor or 1.0), figures.ib_us, figures.ib_eff)
        )
    return replace(system, topology=replace(topology, tiers=tuple(tiers)))


def _changed(link: TierLink, factor: float, latency_us: float | None, efficiency: float | None) -> TierLink:
    given = {each.name: getattr(link.rates, each.name) for each in fields(link.rates)}
    given |= {"all_gather_gb_s": link.rates.of("all_gather")} if efficiency is not None else {}
    rates = replace(
        link.rates,
        **{
            name: factor * (value if efficiency is None or name == "peak_gb_s" else efficiency * link.rates.peak_gb_s)
            for name, value in given.items()
            if value is not None
        },
    )
    if latency_us is None:
        return replace(link, rates=rates)
    protocols = tuple(replace(each, hop_us=latency_us, tree_hop_us=latency_us) for each in link.protocols)
    return replace(link, rates=rates, protocols=protocols)


def _with_node(system: System, ranks: int) -> System:
    """Nodes of ``ranks`` devices with as many network cards per device as before."""
    topology = system.topology
    if topology is None or topology.ranks_per_node is None or len(topology.tiers) < 2:
        raise UsageError(f"{system.device.name} has no nodes, so -nvsN does not apply")
    node, network = topology.tiers[:2]
    cards = max(1, round(network.cards * ranks / topology.ranks_per_node))
    tiers = (replace(node, ranks=ranks), replace(network, cards=cards), *topology.tiers[2:])
    return replace(system, topology=replace(topology, tiers=tiers))


def _scaled(device: HardwareSpec, tflops_s: float, *, engine: str = "matrix") -> HardwareSpec:
    """All compute rates in proportion to the 16-bit matrix rate, or those of vectors to theirs."""
    rate = _rate(device, engine, DType.BF16, DType.FP16, *([DType.FP32] if engine == "vector" else []))
    if rate is None:
        raise UsageError(f"{device.name}: its 16-bit {engine} rate is not known")
    scale = tflops_s / rate.peak_tflops_s
    if engine == "vector":
        return replace(device, vector=_rates(device.vector, scale))
    return replace(
        device,
        matrix=_rates(device.matrix, scale),
        vector=_rates(device.vector, scale),
        on_chip_scale=device.on_chip_scale * scale,
    )


def _rate(device: HardwareSpec, engine: str, *types: DType) -> Rate | None:
    """The rate in the first of ``types`` that the device has one for."""
    return next(filter(None, (device.rate(engine, each) for each in types)), None)


def _rates(rates: Mapping[str, Rate], scale: float) -> dict[str, Rate]:
    return {
        key: replace(
            rate,
            peak_tflops_s=rate.peak_tflops_s * scale,
            achievable_tflops_s=None if rate.achievable_tflops_s is None else rate.achievable_tflops_s * scale,
        )
        for key, rate in rates.items()
    }
