"""What a served load can be asked, as keywords and as options of the command."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files import option_fields
from tracelens.files.option_fields import BACKENDS, integer, option

if TYPE_CHECKING:
    from tracelens.predict.serving.deployment import Engine
    from tracelens.predict.serving.requests import Lengths, Requests

_SERVED, _HOW, _LOAD, _ASKED = "model and engine", "replicas and simulation", "requests", "results"
#: A number of tokens, or a distribution of them.
TOKENS = r"\d+[kKMi]*|[a-z]+:\d[\d.:ekKMi+-]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The engine of a deployment."""

    engine: Engine | Path | str | None = option(
        "constants fitted to vllm, sglang, trtllm or atom; ideal: none; or a file from --calibrate; default: pooled "
        "over all",
        metavar="NAME|engine.toml",
        group=_SERVED,
        names="known",
    )
    max_num_seqs: int | None = option(
        "maximum number of sequences that decode at once, per data-parallel rank", kind=integer, group=_SERVED
    )
    max_batched_tokens: int | None = option(
        "maximum number of new tokens per step and data-parallel rank", kind=integer, group=_SERVED
    )
    kv_tokens: int | None = option(
        "KV cache size of a data-parallel rank in tokens; default: from free memory", kind=integer, group=_SERVED
    )
    block_tokens: int | None = option("tokens per KV cache block", kind=integer, group=_SERVED)
    preemption: str | None = option(
        "how to preempt a sequence when the KV cache is full", choices=("recompute", "swap"), group=_SERVED
    )
    overlap: str | None = option(
        "what hides the exchange with experts: shared-experts (beside the dispatch), two-batch (the other half of the "
        "batch) or none; default: the engine's",
        choices=("none", "shared-experts", "two-batch"), group=_SERVED,
    )  # fmt: skip
    recv_interval: int | None = option(
        "SGLang: decode steps between looks for new requests; default: every step",
        flags=("--scheduler-recv-interval",), kind=integer, metavar="STEPS", group=_SERVED,
    )  # fmt: skip
    backend: str = option_fields.cost_model(BACKENDS, group=_SERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions(EngineOptions):
    """What is served, and what its steps cost."""

    tp: int = option("tensor-parallel GPUs", 1, kind=integer, group=_SERVED)
    pp: int = option("pipeline-parallel GPUs", 1, kind=integer, group=_SERVED)
    dp: int = option("attention data-parallel GPUs", 1, kind=integer, group=_SERVED)
    ep: int = option("expert-parallel GPUs", 1, kind=integer, group=_SERVED)
    redundant_experts: int = option(
        "copies of experts beyond one each; default: as many as fill --ep evenly", 0, kind=integer, group=_SERVED
    )
    skew: str | None = option_fields.skew_of_experts(
        None, "distribution of tokens over experts, as in route; default: as unequal as DeepSeek-R1's were counted",
        group=_SERVED,
    )  # fmt: skip
    imbalance: float = option(
        "routed tokens of the busiest GPU over the mean, on top of --skew", 1.0, kind=float, group=_SERVED
    )
    weights: str | None = option(
        "element type of the weights: fp8, fp4, bf16 ...; default: as released", metavar="TYPE", group=_SERVED
    )
    kv: str | None = option("element type of the KV cache; default: the model's", metavar="TYPE", group=_SERVED)
    speculate: str | None = option(
        "speculative decoding, e.g. 4:0.7, or 3:0.85,0.7 by position; mtp, mtp:3 ...: by the model's own layers",
        metavar="TOKENS:ACCEPTANCE|mtp", group=_SERVED,
    )  # fmt: skip
    draft_model: str | None = option("draft model for --speculate", metavar="NAME", group=_SERVED, names="known")
    lora: int = option(
        "rank of LoRA adapters beside the products of attention and dense feed-forward; default: no adapters",
        0, kind=integer, metavar="RANK", group=_SERVED,
    )  # fmt: skip
    adapters: int | None = option(
        "different adapters, of which requests choose with equal chance; default: 1", kind=integer, group=_SERVED
    )
    max_loras: int | None = option(
        "adapters in memory and in one batch, per data-parallel rank; default: --adapters, at most 8",
        kind=integer, group=_SERVED,
    )  # fmt: skip
    collective: str = option("all-reduce algorithm: ring, tree ..., seed_simple, or auto", "ring", group=_SERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig(DeploymentOptions):
    """What ``tracelens.serve`` takes beside a model and a cluster."""

    policy: str | None = option(
        "batching policy: static, continuous, chunked-prefill, prefill-first; default: the engine's, else "
        "chunked-prefill",
        group=_HOW,
    )
    replicas: int = option("servers behind the router", 1, kind=integer, group=_HOW)
    prefill_replicas: int = option(
        "replicas that only prefill; --replicas then only decode", 0, kind=integer, group=_HOW
    )
    prefill_cluster: str | None = option(
        "cluster of the prefill replicas, or a device in its standard node; default: --cluster",
        flags=("--prefill-cluster", "--prefill-device"), metavar="NAME|FILE", group=_HOW, names="known",
    )  # fmt: skip
    prefill_tp: int | None = option(
        "tensor-parallel GPUs of a prefill replica; default: --tp", kind=integer, group=_HOW
    )
    prefill_dp: int | None = option(
        "attention data-parallel GPUs of a prefill replica; default: --dp, or 1 with --prefill-tp, -dp or -pp",
        kind=integer, group=_HOW,
    )  # fmt: skip
    prefill_ep: int | None = option(
        "expert-parallel GPUs of a prefill replica; default: --ep, at most all of its GPUs", kind=integer, group=_HOW
    )
    prefill_pp: int | None = option(
        "pipeline stages of a prefill replica; default: --pp, or 1 with --prefill-tp, -dp or -pp",
        kind=integer, group=_HOW,
    )  # fmt: skip
    prefill_weights: str | None = option(
        "element type of a prefill replica's weights; default: --weights", metavar="TYPE", group=_HOW
    )
    prefill_engine: Engine | Path | str | None = option(
        "engine of prefill replicas; default: --engine", metavar="NAME|engine.toml", group=_HOW, names="known"
    )
    prefill_max_batched_tokens: int | None = option(
        "maximum number of new tokens per step of a prefill replica; default: --max-batched-tokens",
        kind=integer,
        group=_HOW,
    )
    cpu_cache: float = option(
        "host memory per replica for prefixes evicted from the GPUs; default: none",
        0.0, kind=float, metavar="GIB", group=_HOW,
    )  # fmt: skip
    disk_cache: str | float | None = option(
        "disks per replica for prefixes evicted from host memory (--cpu-cache), and their rate; default: none; "
        "the rate of a cluster file of yours, no bundled one has it",
        metavar="GIB[@GB/s]", group=_HOW,
    )  # fmt: skip
    kv_link: float | None = option(
        "bandwidth from prefill to decode for KV caches; default: the network's",
        kind=float,
        metavar="GB/s",
        group=_HOW,
    )
    kv_transfer: str = option(
        "when a prompt's KV cache leaves: whole after the prompt, or by chunk or layer while the rest is computed",
        "whole", choices=("whole", "chunk", "layer"), group=_HOW,
    )  # fmt: skip
    router: str = option(
        "routing policy: round-robin, least-loaded, prefix-aware, session-affinity", "round-robin", group=_HOW
    )
    order: str = option("queue order: fcfs, sjf, priority", "fcfs", group=_HOW)
    lod: str = option(
        "level of detail: high, medium or low, for all replicas or one each",
        "medium",
        metavar="LEVEL[,LEVEL]",
        group=_HOW,
    )
    contention: bool = option("make collectives and pipeline transfers wait for the GPUs' ports", False, group=_HOW)
    jitter: float = option(
        "standard deviation over mean of a layer's time; at --lod high every layer waits for its slowest device, at "
        "medium every step, at low nothing varies",
        0.0, kind=float, group=_HOW,
    )  # fmt: skip
    profile: Path | None = option(
        "take step times from an aggregated profile", kind=Path, metavar="FILE.json", group=_HOW, names="file"
    )

    rate: float | None = option("arrivals per second", kind=float, group=_LOAD)
    arrivals: str = option("arrival process: poisson, gamma, constant, burst", "poisson", group=_LOAD)
    variation: float = option("gamma: coefficient of variation; burst: requests at once", 1.0, kind=float, group=_LOAD)
    concurrency: int | None = option(
        "requests in flight, as a closed loop instead of a rate", kind=integer, group=_LOAD
    )
    input_tokens: int | str | Lengths = option(
        "prompt tokens, e.g. 1024 or lognormal:1024:0.8", "1024", metavar="N|KIND:MEAN:SPREAD",
        flags=("--input-tokens", "--input"), also=("input",), group=_LOAD,
    )  # fmt: skip
    output_tokens: int | str | Lengths = option(
        "output tokens", "128", metavar="N|KIND:MEAN:SPREAD", also=("output",), group=_LOAD
    )
    requests: int | Requests | None = option(
        "number of requests; default: 1000 without --duration", kind=integer, group=_LOAD
    )
    duration: str | None = option(
        "time in which requests arrive, e.g. 1h; all of them are finished", metavar="TIME", group=_LOAD
    )
    seed: int = option("seed of the random numbers", 0, kind=integer, group=_LOAD)
    shared_prefix: int = option(
        "length of the prefix that prompts share", 0, kind=integer, metavar="TOKENS", group=_LOAD
    )
    shared_groups: int = option("number of different shared prefixes", 1, kind=integer, group=_LOAD)
    turns: int | str | Lengths = option(
        "requests of a session: each says all before it again, --input-tokens are what it adds, --rate and "
        "--concurrency are of sessions",
        "1", metavar="N|KIND:MEAN:SPREAD", group=_LOAD,
    )  # fmt: skip
    think_time: str | None = option(
        "pause between an answer and the session's next request, e.g. 10s; default: none", metavar="TIME", group=_LOAD
    )
    replay: Path | None = option(
        "replay the requests of a file (formats: docs/serving.md)", kind=Path, metavar="FILE", group=_LOAD, names="file"
    )
    run_name: str | None = option(
        "run to replay, if the file has several", flags=("--run",), metavar="GPU", group=_LOAD
    )

    slo: str | None = option("limits for goodput", metavar="ttft=500ms,tpot=50ms", group=_ASKED)
    price_per_gpu_hour: float | None = option_fields.price_per_gpu_hour(kind=float, group=_ASKED)
    pue: float | None = option_fields.pue(group=_ASKED)
    price_per_kwh: float | None = option_fields.price_per_kwh(group=_ASKED)
    co2_per_kwh: float | None = option_fields.co2_per_kwh(group=_ASKED)


def names_of(options: type) -> frozenset[str]:
    """The options of one of these classes."""
    return frozenset(each.name for each in fields(options))
