"""The model of a search by name or by its shape, and a system with other figures than its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace

from tracelens.backends.base import System
from tracelens.errors import UsageError
from tracelens.hardware.device_figures import Hbm, Rate
from tracelens.hardware.spec import HardwareSpec
from tracelens.predict.network.topology import TierLink
from tracelens.predict.projection.search.space import given_shape
from tracelens.predict.workload.blocks import DENSE_LAYER
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB, BYTES_PER_GIB

#: Where a model does not say how long its sequences are, as ``tracelens project`` has it.
SEQUENCE = 4096


class Figures(Record, frozen=True, kw_only=True):
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


AS_THEY_ARE = Figures()


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


def with_figures(system: System, figures: Figures) -> System:
    device, hbm = system.device, system.device.hbm
    if figures.flops is not None:
        device = scaled(device, figures.flops)
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
        device = scaled(device, figures.vector_flops, engine="vector")
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
    tiers[0] = replace(inner, link=_changed_link(inner.link, near, figures.nvlink_us, figures.nvlink_eff))
    if len(tiers) > 1:
        tiers[-1] = replace(
            outer, link=_changed_link(outer.link, far * (figures.nic_factor or 1.0), figures.ib_us, figures.ib_eff)
        )
    return replace(system, topology=replace(topology, tiers=tuple(tiers)))


def _changed_link(link: TierLink, factor: float, latency_us: float | None, efficiency: float | None) -> TierLink:
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


def scaled(device: HardwareSpec, tflops_s: float, *, engine: str = "matrix") -> HardwareSpec:
    """All compute rates in proportion to the 16-bit matrix rate, or those of vectors to theirs."""
    rate = first_rate(device, engine, DType.BF16, DType.FP16, *([DType.FP32] if engine == "vector" else []))
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


def first_rate(device: HardwareSpec, engine: str, *types: DType) -> Rate | None:
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
