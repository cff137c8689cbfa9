"""What a step has on top of kernels measured alone: rates, a framework's kernels, its host, attention kernels of
another generation, and what is assumed; and what layers are made of and take on a rank, which the event graph of a step
and the closed form of a search share.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Backend, EstimateTable, System, hbm_peak
from tracelens.backends.chain import chain
from tracelens.backends.roofline_and_tile import Tile
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, Collective, EPComm, GroupedGEMM, PerfModel, WorkColumns
from tracelens.predict.workload import rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import Attention, Graphs, ParallelConfig
from tracelens.predict.workload.rank_ops import RankLayer, RankOp
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GIB, TERA_PER_S_IN_PER_US


class Hidden(Record, frozen=True, kw_only=True):
    """Shares of FSDP's transfers that cost nothing, whatever overlaps them: published constants of some stack."""

    forward_gather: float
    backward_gather: float
    scatter: float

    def __post_init__(self) -> None:
        for share in (self.forward_gather, self.backward_gather, self.scatter):
            if not 0 <= share <= 1:
                raise UsageError(f"a hidden share must be from 0 to 1 (or 0 to 100 %), not {share}")

    @classmethod
    def parse(cls, text: str) -> Hidden:
        """``"0.93"`` for all three, or ``"90,24,34"``: forward gather, backward gather, scatter; above 1 in percent."""
        try:
            shares = [float(part) for part in text.split(",")]
        except ValueError:
            shares = []
        if len(shares) not in (1, 3):
            raise UsageError(f"--fsdp-overlap takes one share or three, e.g. 0.93 or 90,24,34; got {text!r}")
        if max(shares) > 1:
            shares = [share / 100 for share in shares]
        forward, backward, scatter = shares * 3 if len(shares) == 1 else shares
        return cls(forward_gather=forward, backward_gather=backward, scatter=scatter)


class Straggler(Record, frozen=True, kw_only=True):
    """A device of pipeline rank ``stage`` that computes ``factor`` times as long; everyone waits for its gradients."""

    factor: float
    stage: int = 0

    def __post_init__(self) -> None:
        if not self.factor >= 1 or self.stage < 0:
            raise UsageError(f"straggler factor must be >= 1 and stage >= 0; got {self.stage}:{self.factor}")

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """``"1.15"``, in the first stage, or ``"3:1.15"``."""
        found = re.fullmatch(r"(?:(\d+):)?(\d+(?:\.\d+)?)", text)
        if found is None:
            raise UsageError(f"--straggler takes a factor, or a stage and a factor, e.g. 1.15 or 3:1.15; got {text!r}")
        return cls(stage=int(found[1] or 0), factor=float(found[2]))


class ProjectionOptions(Record, frozen=True, kw_only=True):
    """``fsdp_hidden`` None: what FSDP's overlapped transfers cost follows from the timeline."""

    fsdp_hidden: Hidden | None = None
    straggler: Straggler | None = None


NO_OPTIONS = ProjectionOptions()


#: Side of the square product that stands for those which published sustained rates were measured on.
LARGE = 16384
#: Those of one machine: what they lose is in the other constants.
_RANKS_WITHOUT_LOSS = 8
#: A Mamba-2 block's scan.
SCAN = frozenset({"mamba.scan"})
#: What ``Software`` has of the host.
_HOSTED = ("host_us_per_op", "experts_us", "overlap_us")
#: From wide to narrow.
_PRODUCTS = {"bf16": DType.BF16, "fp8": DType.FP8_E4M3FN, "fp4": DType.FP4_E2M1}


class Software(Record, frozen=True, kw_only=True):
    """How a framework's kernels and host differ from what backends price; the defaults are not fitted.

    ``products``, ``attention`` and ``memory`` multiply the times of matrix products, of attention, and of everything
    that streams memory; ``scan`` a state-space scan, ``biased_experts`` grouped products
    with a bias, which run outside of the fused path. ``host_us_per_op`` is the host's time per launched operation: a
    kernel takes 3-5 us, and an operation is at least one. ``experts_us``: what it takes longer in a pass over a block
    of experts, whose token counts it reads back; ``overlap_us``: and longer still where exchanges overlap another
    micro-batch, for which passes are cut into pieces on two streams, each with its own call of autograd ("extra cpu
    overhead", NVIDIA/Megatron-LM pull request 2184). ``graphed``: the share of all this that partial graphs leave, as
    found on published steps; of the whole step, nothing. ``gathers_again``: the share of its gather that FSDP repeats
    for the backward of a layer which is not recomputed in full; 0: weights stay gathered from the forward on.
    ``scale_loss``: the share that a step takes longer per e-fold of ranks beyond eight, as stragglers, jitter and
    congestion together; steps that differ in ranks alone do not tell these apart. ``rotary`` multiplies what rotary
    positions move; ``fsdp``, 0, 1 or 2: whose FSDP of PyTorch copies what it sends; ``separate``, 0 or 1: whether
    queries, keys, values and gates have products of their own (``rank_ops``).
    """

    products: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    scan: float = 1.0
    biased_experts: float = 1.0
    host_us_per_op: float = 5.0
    experts_us: float = 0.0
    overlap_us: float = 0.0
    graphed: float = 0.6
    gathers_again: float = 1.0
    scale_loss: float = 0.0
    rotary: float = 1.0
    fsdp: float = 0.0
    separate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("products", "attention", "memory", "scan", "biased_experts", "rotary"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in (*_HOSTED, "graphed", "gathers_again", "scale_loss", "fsdp", "separate"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)}")

    def of(self, op: RankOp) -> float:
        """What the time of ``op`` is multiplied with; 1 for communication. Experts have a bias: see ``running``."""
        if op.name in SCAN:
            return self.scan
        if op.part == "attention":
            return self.attention
        if op.is_communication or op.name in (rank_ops.COPIED, rank_ops.ALONG_SEQUENCE):
            return 1.0
        if op.name == rank_ops.ROPE:
            return self.memory * self.rotary
        if op.part == "experts" and op.model.engine == "matrix":
            return self.products * self.biased_experts
        return self.products if op.model.engine == "matrix" else self.memory

    def running(self, model: ModelConfig) -> Software:
        """The constants of a step of ``model``: those of experts with a bias are not for experts without."""
        if model.experts is not None and model.experts.bias:
            return self
        return replace(self, biased_experts=1.0)

    def scale_loss_us(self, step_us: Any, ranks: Any) -> Any:
        """What a step of so long takes longer on so many ranks. Numbers or arrays."""
        return self.scale_loss * np.log(np.maximum(ranks / _RANKS_WITHOUT_LOSS, 1.0)) * step_us

    def hosted(self, factor: float) -> Software:
        """With the host's times multiplied."""
        return replace(self, **{name: factor * getattr(self, name) for name in _HOSTED})

    def left(self, graphs: Graphs, *, overlaps: bool = False) -> Software:
        """What graphs leave to the host, of passes whose exchanges overlap another micro-batch's or do not."""
        found = replace(self, experts_us=self.experts_us + overlaps * self.overlap_us)
        return found.hosted({"none": 1.0, "partial": self.graphed, "full": 0.0}[graphs])


def later_us(device_us: Any, host_us: Any) -> Any:
    """What a pass takes longer than the device needs: the cubic norm of both, between maximum and sum, since now one
    is ahead and now the other. Numbers or arrays.
    """
    return np.cbrt(device_us**3 + host_us**3) - device_us


#: Nothing fitted.
PLAIN = Software()


def sustained_us(found: EstimateTable, models: Sequence[PerfModel], system: System) -> npt.NDArray[np.float64]:
    """Times of an estimate of ``models``, those of the tile model as a step holds them."""
    by_tile = np.array([name == Tile.name for name in found.backend], bool)
    times: npt.NDArray[np.float64] = found.time_us * np.where(by_tile, held(models, system), 1.0)
    return times


def priced(ops: Iterable[PerfModel], backend: Backend, system: System) -> tuple[dict[PerfModel, float], EstimateTable]:
    """Microseconds of each operation of one step, and what the backend said. UsageError for one that none prices."""
    models = list(dict.fromkeys(ops))
    found = backend.estimate_many(WorkColumns.of(models), system)
    unknown = np.flatnonzero(np.isnan(found.time_us))
    if len(unknown):
        model = models[unknown[0]]
        if isinstance(model, Collective | EPComm):
            system.joined()
        dtype = model.compute_dtype
        what = type(model).__name__ if dtype is None else f"{type(model).__name__} in {dtype.rate}"
        if hbm_peak(system.device) is None or dtype is None:
            why = "its file lacks the memory's rate"
        else:
            why = "choose another --precision" if system.device.matrix else "its file has no matrix rates"
        raise UsageError(f"no backend can estimate {what} on {system.device.name}: {why}")
    return dict(zip(models, sustained_us(found, models, system).tolist(), strict=True)), found


def held(models: Sequence[PerfModel], system: System) -> npt.NDArray[np.float64]:
    """What the tile model's time of each is multiplied with: products at the clock that a step's power allows.

    That is the power of the narrowest products among ``models``, which a step has most of: wider ones between them,
    such as its head's, are not held down further. 1 for everything that is no product.
    """
    rates = [_rate(model) for model in models]
    step = next((key for key in reversed(_PRODUCTS) if key in rates), "bf16")
    most = max(slowdown(step, system.device), 1.0)
    factor = {key: min(slowdown(key, system.device), most) for key in _PRODUCTS}
    return np.array([factor.get(rate or "", 1.0) for rate in rates])


def _rate(model: PerfModel) -> str | None:
    if not isinstance(model, GEMM | GroupedGEMM) or model.compute_dtype is None:
        return None
    return "bf16" if model.compute_dtype.rate == "fp16" else model.compute_dtype.rate


@functools.lru_cache(maxsize=256)
def slowdown(key: str, device: HardwareSpec) -> float:
    """How much longer GEMMs in ``key`` (``"bf16"``, ``"fp8"``, ``"fp4"``) take than the tile model says: as the
    longest measured GEMMs of the device, else of the one whose constants stand in for its own, else until a large one
    runs at the published sustained rate. 1 where none is known.
    """
    measured = device.calibrated.get(("sustained", key))
    if measured is None and device.calibrated_like is not None:
        measured = HardwareSpec.load(device.calibrated_like).calibrated.get(("sustained", key))
    if measured is not None:
        return measured["slowdown"]
    rate = device.matrix.get(key)
    product = GEMM(m=LARGE, n=LARGE, k=LARGE, dtype=_PRODUCTS[key], dtype_out=DType.BF16)
    found = Tile().estimate(product, System(device=device))
    if rate is None or rate.achievable_tflops_s is None or found is None:
        return 1.0
    return product.flops() / found.time_us / TERA_PER_S_IN_PER_US / rate.achievable_tflops_s


#: The kernel whose instructions are one architecture's runs elsewhere at that architecture's rate per unit and clock.
_HOME = {"fa1": "a100-sxm-80gb", "fa2": "a100-sxm-80gb", "fa3": "h100-sxm", "fa4": "b200", "cudnn": ""}
#: A kernel's time at home over what backends price there. fa1: half of fa2's speed (Dao, 2023, arXiv 2307.08691,
#: section 4.1: "around 2x"). On H100 fa2's instructions reach about 335 TFLOPS (there, section 4.1).
_AT_HOME = {"fa1": 2.0, "fa2": 1.0, "fa3": 1.0, "fa4": 1.0}
#: What stands for a step's attention: causal, long enough for the rate to have settled.
_SAMPLE = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=32, kv_heads=32, d_qk=128, d_v=128, mask="top_left", flash=True)


@functools.lru_cache(maxsize=256)
def kernel_factor(kernel: Attention, device: HardwareSpec) -> float:
    """What the priced time of attention is multiplied with. 1 for the device's own kernel (``flash``, ``cudnn``), and
    where a device's units or rates are not known; never less: a newer kernel does not run on an older device.
    """
    home = HardwareSpec.load(_HOME[kernel]) if _HOME.get(kernel) else None
    here = None if home is None else _cycles(device)
    there = None if home is None else _cycles(home)
    if home is None or here is None or there is None:
        return 1.0
    return max(1.0, _AT_HOME[kernel] * there / here)


def _cycles(device: HardwareSpec) -> float | None:
    """Unit-cycles that the sample takes: its time times units and clock."""
    found = Tile().estimate(_SAMPLE, System(device=device))
    device = device.completed
    if device.compute_units is None or device.clock_mhz is None or found is None:
        return None
    return float(found.time_us * device.compute_units * device.clock_mhz)


#: How the name of a layer ends that computes in BF16 between narrower ones, and of one that is not recomputed among
#: those that are.
WIDE, KEPT = "'", "~"
_chain = functools.cache(chain)


def backend_of(backends: str | Backend) -> Backend:
    """Backends by their names, or as they are."""
    return _chain(backends) if isinstance(backends, str) else backends


def blocks_of(name: str) -> str:
    """The letters of a layer's blocks, without its marks."""
    return name.rstrip(WIDE + KEPT)


class LayerCosts(Record, frozen=True, kw_only=True, eq=False):
    """The layers of ``model`` for sequences of ``sequence`` tokens, at the times of ``backend`` on ``system``, with the
    operations that the code of the framework of ``software`` adds.
    """

    model: ModelConfig
    system: System
    sequence: int
    backend: Backend
    software: Software

    @property
    def capacity(self) -> float | None:
        """Bytes of device memory; None where it is not known."""
        hbm = self.system.device.hbm
        return None if hbm is None or hbm.nominal_gib is None else hbm.nominal_gib * BYTES_PER_GIB

    def layers(self, names: Iterable[str], parallel_of: Callable[[str], ParallelConfig]) -> dict[str, list[RankLayer]]:
        """The blocks of each distinct layer, and the ends. ``parallel_of``: how layers with such marks are computed.

        UsageError where tp or ep do not divide what they divide.
        """
        made: dict[str, RankLayer] = {}
        built: dict[str, list[RankLayer]] = {}
        for name in dict.fromkeys(names):
            marks = name[len(blocks_of(name)) :]
            for letter in blocks_of(name):
                if letter + marks not in made:
                    parallel = parallel_of(marks)
                    one = rank_ops.block(self.model, parallel, letter, self.sequence)
                    made[letter + marks] = self._as_run(one, parallel)
            built[name] = [made[letter + marks] for letter in blocks_of(name)]
        parallel = parallel_of("")
        for name, (one,) in rank_ops.ends(self.model, parallel, self.sequence).items():
            built[name] = [self._as_run(one, parallel)]
        return built

    def _as_run(self, layer: RankLayer, parallel: ParallelConfig) -> RankLayer:
        if self.software.separate:
            layer = rank_ops.separate(layer, self.model, parallel)
        return rank_ops.copied(layer, parallel, self.software.fsdp) if self.software.fsdp else layer

    def priced(self, ops: Iterable[PerfModel]) -> tuple[dict[PerfModel, float], Counter[str]]:
        """Microseconds of each distinct operation, all of one step, and how many each backend priced. UsageError for
        one that none prices.
        """
        prices, found = priced(ops, self.backend, self.system)
        return prices, Counter(name for name in found.backend if name is not None)
