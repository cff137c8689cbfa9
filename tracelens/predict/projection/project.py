"""A projection asked for by names, as ``tracelens project`` does, and what it says as frames. The split of a step that
nobody gave is the fastest that fits, by the search of ``tracelens search``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tracelens.backends.base import System
from tracelens.errors import TracelensError, UsageError
from tracelens.files.option_fields import build_options, takes
from tracelens.files.say import with_progress
from tracelens.hardware.power import Facility, FacilityEnergy, beyond_design
from tracelens.perf_models import GroupedGEMM
from tracelens.predict.projection import step, step_traces
from tracelens.predict.projection.frameworks import Framework, Residuals, named
from tracelens.predict.projection.job import Run
from tracelens.predict.projection.overheads import Hidden, ProjectionOptions, Straggler
from tracelens.predict.projection.projection_options import ProjectOptions, SearchOptions
from tracelens.predict.projection.search.request import Answer, Request, answer
from tracelens.predict.projection.search.space import RECOMPUTE, SCHEDULES, recomputation
from tracelens.predict.projection.search.systems import AS_THEY_ARE
from tracelens.predict.projection.step import Lever, Projection, StepEnergy
from tracelens.predict.workload.model_config import ModelConfig, unread_weights
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import RankOp
from tracelens.predict.workload.token_routing import Skew
from tracelens.types.records import Record, pd
from tracelens.types.units import BYTES_PER_GB, NS_PER_US, US_PER_S

_KINDS = ("tp", "cp", "ep", "fsdp", "dp", "pp")


#: A step with one of these given is split as it says; the others are 1, and ZeRO 1.
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero", "shard")
#: Sequences per step and GPU where no global batch is given: as many as 8 micro-batches of 1 on as many replicas.
_SEQUENCES_PER_GPU = 8
#: Options of a projection that the search takes too, as such or fixed.
_SEARCHED = frozenset({
    "nodes", "gpus", "sequence", "global_batch", "micro_batch", "recompute", "precision", "backend", "framework",
})  # fmt: skip
#: What a search calls the degrees of a node, in the order in which a projection places them.
_PLACED = (("tp1", "nv_tp1"), ("tp2", "nv_tp2"), ("dp", "nv_dp"), ("pp", "nv_pp"))


class BestSplit(Record, frozen=True, kw_only=True):
    """``options`` of a projection that make the split; ``fitting``: how many splits fit; ``curse``: by which share its
    step is likely to take longer, being the best of them. ``unsearched``: options given that the search does not know.
    """

    options: dict[str, Any]
    fitting: int
    curse: float
    is_batch_given: bool
    unsearched: tuple[str, ...]

    def on(self, asked: ProjectOptions) -> ProjectOptions:
        """``asked`` with this split."""
        return replace(asked, **self.options)

    @property
    def words(self) -> str:
        """The degrees above 1, ZeRO, micro-batch and recomputation."""
        given = self.options
        degrees = [f"{name} {given[name]}" for name in ("tp", "cp", "pp", "vpp", "ep") if given[name] > 1]
        parts = [" ".join(degrees) or "data parallelism alone", f"ZeRO {given['zero']}"]
        repeated = " and ".join(given.get("recompute_modules", [given["recompute"]]))
        parts += [f"micro-batch {given['micro_batch']}", f"recompute {repeated}"]
        return ", ".join([*parts, *([f"schedule {given['schedule']}"] if given.get("schedule") else [])])

    @property
    def sentence(self) -> str:
        """Which split this is, of how many, for which global batch."""
        source = "" if self.is_batch_given else f", {_SEQUENCES_PER_GPU} per GPU (--global-batch)"
        low = f" The best of many estimates is likely too low, by some {100 * self.curse:.0f} %." * (self.curse >= 0.01)
        known = f" The search does not know {', '.join(self.unsearched)}." if self.unsearched else ""
        return (
            f"No degree was given, so tracelens took the fastest of {self.fitting:,} splits that fit: {self.words}. "
            f"The global batch is {self.options['global_batch']:,} sequences{source}.{known}{low}"
        )

    def command(self, line: Collection[str], given: Collection[str]) -> list[str]:
        """``line`` with the options that ask for the split, one degree at least."""
        words = list(line)
        for name, value in self.options.items():
            if name not in given and (name == "tp" or value != getattr(ProjectOptions(), name)):
                text = value if isinstance(value, str | int) else ",".join(value)
                words += [f"--{name.replace('_', '-')}", str(text)]
        return words


def best_split(
    model: str, cluster: str, asked: ProjectOptions, *, ranks: int, given: Collection[str]
) -> BestSplit | None:
    """The fastest split of ``ranks`` devices that fits and that a projection has options for; None where none fits.
    ``given``: the options that somebody gave, of which micro-batch and recomputation are kept.
    """
    fixed = _fixed(asked, given)
    batch = asked.global_batch or _SEQUENCES_PER_GPU * asked.micro_batch * ranks
    search = SearchOptions(
        gpus=ranks, global_batch=batch, sequence=asked.sequence, precision=(str(asked.precision),),  # type: ignore[arg-type]
        backend=asked.backend, framework=asked.framework, fix=tuple(f"{k}={v}" for k, v in fixed.items()),
    )  # fmt: skip
    options, fitting, curse = _searched(model, cluster, search)
    if options is None:
        # A split that fills the memory is better than none; the memory table shows it.
        options, fitting, curse = _searched(model, cluster, replace(search, memory_headroom=0.0))
    if options is None:
        return None
    asked_for = (each for each in fields(ProjectOptions) if each.name in given and each.name not in _SEARCHED)
    unsearched = [(each.metadata["option"].flags or (f"--{each.name.replace('_', '-')}",))[0] for each in asked_for]
    kept = {name: getattr(asked, name) for name in ("recompute", "schedule") if name in given}
    return BestSplit(
        options={**options, **kept, "global_batch": batch}, fitting=fitting, curse=curse,
        is_batch_given=asked.global_batch is not None, unsearched=tuple(unsearched),
    )  # fmt: skip


def _fixed(asked: ProjectOptions, given: Collection[str]) -> dict[str, Any]:
    """What the search may not choose, since somebody did."""
    fixed: dict[str, Any] = {"mbs": asked.micro_batch} if "micro_batch" in given else {}
    if "recompute" in given:
        fixed["recompute"] = "full" if asked.recompute == "full" else "none"
    if "schedule" in given:
        fixed["schedule"] = asked.schedule if asked.schedule in SCHEDULES else SCHEDULES[0]
    return fixed


@functools.lru_cache(maxsize=256)
def _searched(model: str, cluster: str, options: SearchOptions) -> tuple[dict[str, Any] | None, int, float]:
    """The options of the best split, how many fit, and ``winners_curse``. Points of a sweep that ask the same are
    searched once.
    """
    found = answer(Request.of(model, cluster, options))
    rows = (row for _, row in found.best.head(len(found.fits)).iterrows())
    splits = (options_of_row(found, row) for row in rows)
    best = next((split for split in splits if split), None)
    return best, sum(map(len, found.ranking().values())), 0.0 if best is None else found.winners_curse


def options_of_row(found: Answer, row: pd.Series) -> dict[str, Any] | None:
    """The options of a projection that make ``row``; None where it has none for all of it."""
    request, free, usual = found.request, int(row["nvs"]), []
    for degree, _ in _PLACED:
        usual.append(min(int(row[degree]), free))
        free //= usual[-1]
    has_options = row["strategy"] != "2d" and "=" not in request.model and "-nvs" not in request.cluster
    if not has_options or request.figures != AS_THEY_ARE or usual != [int(row[name]) for _, name in _PLACED]:
        return None
    degrees = {"tp": "tp1", "cp": "tp2", "pp": "pp", "vpp": "vpp", "ep": "ep", "zero": "zero", "micro_batch": "mbs"}
    options = {name: int(row[column]) for name, column in degrees.items()}
    options |= recomputation(RECOMPUTE.index(row["recompute"]))
    return options if row["schedule"] == SCHEDULES[0] else {**options, "schedule": str(row["schedule"])}


class ExpertWork(Record, frozen=True, kw_only=True):
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


class Result(Record, frozen=True, kw_only=True, dict=True):
    """A projected step. Frames are made when they are asked for."""

    projection: Projection
    framework: Framework | None = None
    #: The split that was chosen because nobody gave one.
    split: BestSplit | None = None
    facility: Facility = Facility()

    @property
    def expected(self) -> Residuals | None:
        """How far measured steps of such models were from their projections by this framework's constants."""
        if self.framework is None:
            return None
        found = self.projection
        return self.framework.expected(found.model, found.system, found.parallel, found.sequence, found.backends)

    def __repr__(self) -> str:
        found = self.projection
        on = f"{found.parallel.ranks} x {found.system.device.label}"
        unfit = f", does not fit: {found.infeasible}" if found.infeasible else ""
        return f"{found.model.label} on {on}: {found.step_us / US_PER_S:.3f} s per step{unfit}"

    @property
    def run(self) -> Run:
        """The step's event graph, run."""
        return self.projection.run

    @functools.cached_property
    def levers(self) -> tuple[Lever, ...]:
        """The three changes of the configuration that save most."""
        return step.levers(self.projection)

    @functools.cached_property
    def energy(self) -> StepEnergy | None:
        """What the devices draw; None where nobody measured energies of their architecture."""
        return step.energy_of(self.projection)

    @property
    def with_facility(self) -> FacilityEnergy | None:
        """The same with hosts and data center, as far as they are known or asked for."""
        found, energy, ranks = self.projection, self.energy, self.projection.parallel.ranks
        if energy is None:
            return None
        host_w = None if found.system.host_w is None else found.system.host_w * ranks
        tokens = found.parallel.global_batch * found.sequence
        return self.facility.of(energy.step_j, host_w, found.step_us / US_PER_S, tokens)

    @property
    def summary(self) -> dict[str, float | str | None]:
        """The figures of the step by name."""
        found, expected, energy = self.projection, self.expected, self.energy
        low, high = (None, None) if expected is None else expected.most
        step_s = found.step_us / US_PER_S
        return {
            "step_time_s": step_s,
            "step_time_s_low": None if low is None else low * step_s,
            "step_time_s_high": None if high is None else high * step_s,
            "tokens_s_gpu": found.tokens_per_s_per_gpu,
            "tflops_gpu": found.tflops_gpu,
            "mfu": found.mfu,
            **(
                {}
                if energy is None
                else {
                    "power_w_gpu": energy.power_w,
                    "energy_j_step": energy.step_j,
                    "energy_j_token": energy.token_j,
                }
            ),
            **_around(self.with_facility),
            "memory_gb": found.peak_memory.peak / BYTES_PER_GB,
            "bubble_share": found.bubble_share,
            "fits": None if found.peak_memory.capacity is None else found.infeasible is None,
            "does_not_fit": found.infeasible,
            **({} if self.split is None else {"split": self.split.words}),
        }

    @property
    def breakdown(self) -> pd.DataFrame:
        """Columns part, time_us, share: what the busiest pipeline rank spends the step on, largest first."""
        parts = sorted(self.projection.breakdown_us.items(), key=lambda item: (-item[1], item[0]))
        rows = [(part, time_us, time_us / self.projection.step_us) for part, time_us in parts]
        return pd.DataFrame(rows, columns=["part", "time_us", "share"])

    @property
    def communication(self) -> pd.DataFrame:
        """Columns stream, time_us, calls, exposed_us of the busiest rank: how long each kind of communication runs,
        and what of it nothing hides. What ranks wait for each other in a transfer is part of its time.
        """
        return pd.DataFrame(self.communication_rows(), columns=["stream", "time_us", "calls", "exposed_us"])

    def communication_rows(self) -> list[tuple[str, float, int, float]]:
        """The rows of ``communication``."""
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
        return [(name, times[name], calls[name], exposed.get(name, 0.0)) for name in _KINDS if calls[name]]

    @property
    def memory(self) -> pd.DataFrame:
        """One row per pipeline rank in GB, by what it is spent on, with its peak and the device's capacity."""
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
        up, sent = self._forward_op("experts.up"), self._forward_op("experts.dispatch")
        if config is None or up is None:
            return None
        product = up.model
        copies = 0.0
        if sent is not None and (wire := sent.model.wire_bytes()) and (width := getattr(sent.model, "dtype", None)):
            copies = wire / width.width_bytes / getattr(sent.model, "hidden", 1)
        rows = product.m / product.groups if isinstance(product, GroupedGEMM) else float(getattr(product, "m", 0))
        return ExpertWork(
            local_experts=config.count // parallel.ep,
            rows_per_expert=rows,
            hidden=config.latent or self.projection.model.hidden,
            ffn=config.ffn // parallel.etp,
            mode="grouped" if isinstance(product, GroupedGEMM) else "sequential",
            tokens=parallel.micro_batch * self.projection.sequence // parallel.cp // parallel.row_share,
            copies=copies,
        )

    def _forward_op(self, name: str) -> RankOp | None:
        blocks = itertools.chain.from_iterable(self.projection.job.built.values())
        ops = (op for block in blocks for op in block.ops)
        return next((op for op in ops if op.name == name and op.phase == "forward"), None)

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
        expected = self.expected
        document["expected_error"] = None if expected is None else dataclasses.asdict(expected)
        document["notes"] = list(self.projection.notes)
        return json.dumps(document, indent=2) + "\n"


@takes(ProjectOptions)
def project(
    model: str | Path | ModelConfig, cluster: str | Path | System, options: ProjectOptions | None = None, **given: Any
) -> Result:
    """Projects one training step, as ``tracelens project`` does with options of the same names.

    ``options`` are what ``given`` keywords change. Degrees are 1 where none are given; the command then takes the best
    split. UsageError for unknown options and those that do not fit.
    """
    asked = build_options(ProjectOptions, given, options)
    config = model if isinstance(model, ModelConfig) else ModelConfig.load(str(model))
    config = config if asked.document is None else replace(config, document=asked.document)
    system = cluster if isinstance(cluster, System) else System.load(cluster)
    system = system.at_clock(asked.gpu_clock_mhz).at_power(asked.power_w)
    ranks = ranks_of(system, cluster, asked.nodes, asked.gpus)
    replicas = max(ranks // (asked.tp * asked.pp * asked.cp), 1)
    parallel = ParallelConfig.of(
        ranks=ranks,
        global_batch=asked.global_batch or 8 * asked.micro_batch * replicas,
        grouped=not asked.sequential_experts,
        skew=Skew.parse(asked.skew),
        **{**asked.training(), "sequence_parallel": asked.tp > 1 and asked.sequence_parallel},
    )
    framework = named(asked.framework)
    late = Straggler.parse(asked.straggler) if asked.straggler else None
    if late is not None and late.stage >= asked.pp:
        raise UsageError(
            f"straggler in pipeline stage {late.stage}: with pp {asked.pp} the stages are 0 to {asked.pp - 1}"
        )
    base = asked.software or framework.software(system, asked.precision, framework.runs(asked.attention))
    hidden = Hidden.parse(asked.fsdp_overlap) if asked.fsdp_overlap else None
    found = step.project(
        config, parallel, system,
        sequence=asked.sequence, schedule=asked.schedule, backends=asked.backend,
        software=replace(base, **constants_of(asked)),
        options=ProjectionOptions(fsdp_hidden=hidden, straggler=late),
    )  # fmt: skip
    tower = config.parameters().vision
    limits = [config.too_long(asked.sequence), unread_weights(model), beyond_design(system.device, asked.power_w)]
    if tower:
        limits.append(f"the step is of text alone, without the vision tower of {tower / 1e9:.2f} B parameters")
    notes = (*found.notes, *config.notes, *filter(None, limits), *asked.unread(config))
    found = replace(found, notes=notes)
    facility = Facility(pue=asked.pue, usd_per_kwh=asked.price_per_kwh, co2_g_per_kwh=asked.co2_per_kwh)
    return Result(projection=found, framework=framework if asked.software is None else None, facility=facility)


def _around(found: FacilityEnergy | None) -> dict[str, float | str | None]:
    """Figures of what stands around the devices, those that are known."""
    if found is None:
        return {}
    figures = {
        "facility_j_token": found.j_per_token, "electricity_usd_per_mtoken": found.usd_per_mtoken,
        "co2_g_per_mtoken": found.co2_g_per_mtoken,
    }  # fmt: skip
    return {name: value for name, value in figures.items() if value is not None}


#: Columns of a sweep besides its options.
SWEPT = ("step_time_s", "tokens_s_gpu", "tflops_gpu", "mfu", "memory_gb", "fits", "does_not_fit", "reason")
#: And where they are known.
OF_ENERGY = (
    "power_w_gpu", "energy_j_token", "facility_j_token", "electricity_usd_per_mtoken", "co2_g_per_mtoken",
)  # fmt: skip


def sweep(
    names: Sequence[str], points: Iterable[Mapping[str, object]], projected: Callable[[Mapping[str, object]], Result]
) -> pd.DataFrame:
    """One row per point: its options, the split where it was chosen, its summary, or the reason why there is none."""
    rows = []
    for point in with_progress(list(points), "projecting", "points"):
        try:
            summary: Mapping[str, object] = projected(point).summary
        except TracelensError as error:
            summary = {"reason": str(error)}
        rows.append({**point, **{name: summary.get(name) for name in ("split", *OF_ENERGY, *SWEPT)}})
    chosen, *drawn = ([name] if any(row[name] for row in rows) else [] for name in ("split", *OF_ENERGY))
    return pd.DataFrame(rows, columns=[*names, *chosen, *SWEPT, *itertools.chain.from_iterable(drawn)])


def constants_of(asked: ProjectOptions) -> dict[str, float]:
    """Single constants that were asked for."""
    given = {
        "products": asked.gemm_factor,
        "attention": asked.attention_factor,
        "memory": asked.memory_factor,
        "host_us_per_op": asked.host_us,
    }
    return {name: value for name, value in given.items() if value is not None}


def ranks_of(system: System, name: object, nodes: int | None, gpus: int | None) -> int:
    """How many devices were asked for. UsageError where that is not said, or said twice."""
    if nodes is None and gpus is None:
        raise UsageError("how many GPUs? Give --gpus N, or --nodes N of the cluster")
    if nodes is not None and gpus is not None:
        raise UsageError("give only one of --nodes and --gpus")
    if gpus is not None:
        return gpus
    per_node = system.topology.ranks_per_node if system.topology is not None else None
    if per_node is None:
        raise UsageError(f"{name}: the number of devices per node is unknown; give --gpus")
    return (nodes or 1) * per_node
