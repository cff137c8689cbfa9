"""A projection asked for by names, as ``tracelens project`` does, and what it says as frames."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.backends.system import System
from tracelens.errors import UsageError
from tracelens.perf_models import GroupedGEMM
from tracelens.projection import step, step_traces
from tracelens.projection.assumptions import Hidden, Options, Straggler
from tracelens.projection.job import Run
from tracelens.projection.overheads import PLAIN, Software
from tracelens.projection.step import BACKENDS, Lever, Projection
from tracelens.units import BYTES_PER_GB, NS_PER_US, US_PER_S
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import (
    Attention,
    Dispatcher,
    Gradients,
    Graphs,
    ParallelConfig,
    Precision,
    Recompute,
    TPOverlap,
)
from tracelens.workload.rank_ops import RankOp
from tracelens.workload.token_routing import Skew

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("tp", "cp", "ep", "fsdp", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWork:
    """What a rank's experts do in one layer and micro-batch: how many it has, how many rows each, which widths.

    ``mode`` ``"grouped"``: one launch for all, ``"sequential"``: one product per expert. ``tokens`` are the rank's own,
    ``copies`` those that leave it in a dispatch.
    """

    local_experts: int
    rows_per_expert: float
    hidden: int
    ffn: int
    mode: str
    tokens: int
    copies: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """A projected step. Frames are made when they are asked for."""

    projection: Projection

    @functools.cached_property
    def run(self) -> Run:
        """The step's event graph, run."""
        return self.projection.job.run()

    @functools.cached_property
    def levers(self) -> tuple[Lever, ...]:
        """The three changes of the configuration that save most."""
        return step.levers(self.projection)

    @property
    def summary(self) -> dict[str, float | str | None]:
        """The figures of the step by name."""
        found = self.projection
        return {
            "step_time_s": found.step_us / US_PER_S,
            "tokens_s_gpu": found.tokens_s_gpu,
            "tflops_gpu": found.tflops_gpu,
            "mfu": found.mfu,
            "memory_gb": found.peak_memory.peak / BYTES_PER_GB,
            "bubble_share": found.bubble_share,
            "does_not_fit": found.infeasible,
        }

    @property
    def breakdown(self) -> pd.DataFrame:
        """Columns part, time_us, share: what the busiest pipeline rank spends the step on, largest first."""
        import pandas as pd

        parts = sorted(self.projection.breakdown_us.items(), key=lambda item: (-item[1], item[0]))
        rows = [(part, time_us, time_us / self.projection.step_us) for part, time_us in parts]
        return pd.DataFrame(rows, columns=["part", "time_us", "share"])

    @property
    def communication(self) -> pd.DataFrame:
        """Columns stream, time_us, calls, exposed_us of the busiest rank: how long each kind of communication runs,
        and what of it nothing hides. What ranks wait for each other in a transfer is part of its time.
        """
        import pandas as pd

        rank, exposed = self.run.busiest, self.projection.breakdown_us
        calls: Counter[str] = Counter()
        times: dict[str, float] = defaultdict(float)
        beside = "fsdp" if self.projection.parallel.zero == 3 else "dp"
        for each, count in self.run.counted(rank):
            for kernel in each.kernels():
                calls[kernel.stream] += count
                times[kernel.stream] += count * kernel.time_us
            for transfer in each.transfers:
                calls[beside] += count
                times[beside] += count * transfer.time_us
        for task in self.run.tasks[rank]:
            sent = self.run.pipeline.sent_us(rank, task)
            if sent is not None:
                calls["pp"] += 1
                times["pp"] += sent[1] - sent[0]
        rows = [(name, times[name], calls[name], exposed.get(name, 0.0)) for name in _KINDS if calls[name]]
        return pd.DataFrame(rows, columns=["stream", "time_us", "calls", "exposed_us"])

    @property
    def memory(self) -> pd.DataFrame:
        """One row per pipeline rank in GB, by what it is spent on, with its peak and the device's capacity."""
        import pandas as pd

        names = ("weights", "gradients", "optimizer", "activations", "logits", "outside", "peak", "capacity")
        rows = []
        for stage in self.projection.stages:
            values = (getattr(stage, name) for name in names)
            rows.append((stage.stage, *(None if value is None else value / BYTES_PER_GB for value in values)))
        return pd.DataFrame(rows, columns=["stage", *(f"{name}_gb" for name in names)])

    def ops(self, stage: int = 0) -> pd.DataFrame:
        """Columns op, calls, time_us: every operation of a rank of pipeline rank ``stage``, longest first.

        As a written trace has them, to the nanosecond. UsageError for a stage that there is not.
        """
        import pandas as pd

        if not 0 <= stage < self.projection.parallel.pp:
            raise UsageError(f"stage {stage} is not one of the {self.projection.parallel.pp} of this step")
        times = step_traces.timeline(self.projection.job, self.run, stage).op_times_ns()
        rows = [(name, calls, time_ns / NS_PER_US) for name, (calls, time_ns) in times.items()]
        rows.sort(key=lambda row: (-row[2], row[0]))
        return pd.DataFrame(rows, columns=["op", "calls", "time_us"])

    @property
    def experts(self) -> ExpertWork | None:
        """None for a model without experts."""
        config, parallel = self.projection.model.experts, self.projection.parallel
        layers = self.projection.job.built.values()
        ops = [op for blocks in layers for block in blocks if block.letter == "E" for op in block.ops]
        up = next((op for op in ops if op.name == "experts.up" and op.phase == "forward"), None)
        if config is None or up is None:
            return None
        local = config.count // parallel.ep
        grouped = isinstance(up.model, GroupedGEMM)
        rows = up.model.m / up.model.groups if isinstance(up.model, GroupedGEMM) else float(getattr(up.model, "m", 0))
        sent = next((op for op in ops if op.name == "experts.dispatch" and op.phase == "forward"), None)
        return ExpertWork(
            local_experts=local,
            rows_per_expert=rows,
            hidden=config.latent or self.projection.model.hidden,
            ffn=config.ffn // parallel.etp,
            mode="grouped" if grouped else "sequential",
            tokens=parallel.micro_batch * self.projection.sequence // parallel.cp // parallel.row_share,
            copies=0.0 if sent is None else _copies(sent),
        )

    def write_traces(self, folder: str | Path, ranks: Sequence[int] | None = None) -> list[Path]:
        """The step as Kineto traces in ``folder``, one per distinct rank or those of ``ranks``."""
        return step_traces.write_traces(self.projection.job, self.run, Path(folder), ranks)

    def to_json(self) -> str:
        """Everything; the same question gives the same text."""
        document: dict[str, Any] = {"schema": "tracelens.project/1", "summary": self.summary}
        for name in ("breakdown", "communication", "memory"):
            document[name] = getattr(self, name).to_dict("records")
        document["ops"] = self.ops(self.run.busiest).to_dict("records")
        document["levers"] = [{"change": lever.change, "gain": lever.gain} for lever in self.levers]
        document["notes"] = list(self.projection.notes)
        return json.dumps(document, indent=2) + "\n"


def _copies(sent: RankOp) -> float:
    """Rows that a dispatch sends to other ranks."""
    wire, width = sent.model.wire_bytes(), getattr(sent.model, "dtype", None)
    return 0.0 if wire is None or width is None else wire / width.width_bytes / getattr(sent.model, "hidden", 1)


def project(
    model: str | Path | ModelConfig,
    cluster: str | Path | System,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    sequence: int = 4096,
    document: int | None = None,
    global_batch: int | None = None,
    micro_batch: int = 1,
    tp: int = 1,
    sequence_parallel: bool = True,
    pp: int = 1,
    vpp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    zero: int = 1,
    shard: int | None = None,
    precision: Precision = "bf16",
    gradients: Gradients = "fp32",
    bf16_layers: tuple[int, int] = (0, 0),
    recompute: Recompute = "none",
    attention: Attention = "flash",
    tp_overlap: TPOverlap = "none",
    ep_overlap: bool = False,
    dispatcher: Dispatcher = "deepep",
    sequential_experts: bool = False,
    graphs: Graphs = "none",
    recompute_modules: Sequence[str] = ("core_attn",),
    skew: str = "uniform",
    schedule: str | None = None,
    backend: str = BACKENDS,
    software: Software = PLAIN,
    fsdp_overlap: str | None = None,
    straggler: str | None = None,
    gpu_clock_mhz: float | None = None,
) -> Result:
    """Projects one training step, as ``tracelens project`` does with options of the same names.

    Without ``global_batch`` a replica passes 8 micro-batches. UsageError for options that do not fit.
    """
    config = model if isinstance(model, ModelConfig) else ModelConfig.load(str(model))
    config = config if document is None else replace(config, document=document)
    system = (cluster if isinstance(cluster, System) else System.load(cluster)).at_clock(gpu_clock_mhz)
    ranks = _ranks(system, cluster, nodes, gpus)
    replicas = max(ranks // (tp * pp * cp), 1)
    parallel = ParallelConfig.of(
        ranks=ranks,
        global_batch=global_batch or 8 * micro_batch * replicas,
        tp=tp,
        sequence_parallel=tp > 1 and sequence_parallel,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=etp,
        zero=zero,
        shard=shard,
        micro_batch=micro_batch,
        precision=precision,
        gradients=gradients,
        recompute=recompute,
        attention=attention,
        tp_overlap=tp_overlap,
        ep_overlap=ep_overlap,
        skew=Skew.parse(skew),
    )
    parallel = replace(
        parallel,
        dispatcher=dispatcher,
        grouped=not sequential_experts,
        graphs=graphs,
        bf16_layers=bf16_layers,
        recompute_modules=tuple(recompute_modules),
    )
    late = Straggler.parse(straggler) if straggler else None
    if late is not None and late.stage >= pp:
        raise UsageError(f"straggler in pipeline stage {late.stage}: with pp {pp} the stages are 0 to {pp - 1}")
    options = Options(
        fsdp_hidden=Hidden.parse(fsdp_overlap) if fsdp_overlap else None,
        straggler=late,
    )
    found = step.project(
        config, parallel, system,
        sequence=sequence, schedule=schedule, backends=backend, software=software, options=options,
    )  # fmt: skip
    return Result(projection=found)


def _ranks(system: System, name: object, nodes: int | None, gpus: int | None) -> int:
    if (nodes is None) == (gpus is None):
        raise UsageError("project takes either --nodes or --gpus")
    if gpus is not None:
        return gpus
    per_node = system.topology.ranks_per_node if system.topology is not None else None
    if per_node is None:
        raise UsageError(f"{name}: how many devices a node has is not known; give --gpus")
    return (nodes or 1) * per_node
