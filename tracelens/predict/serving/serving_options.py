"""What a served load can be asked, as keywords and as options of the command."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files import option_fields
from tracelens.files.option_fields import BACKENDS, integer, option

if TYPE_CHECKING:
    from tracelens.predict.serving.deployment import Engine
    from tracelens.predict.serving.requests import Lengths, Requests

_SERVED, _HOW, _LOAD, _ASKED = "model and engine", "replicas and simulation", "requests", "results"
_served, _how, _load, _asked = (functools.partial(option, group=title) for title in (_SERVED, _HOW, _LOAD, _ASKED))
_served_count, _how_count, _load_count = (functools.partial(each, kind=integer) for each in (_served, _how, _load))
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
    max_num_seqs: int | None = _served_count("maximum number of sequences that decode at once, per data-parallel rank")
    max_batched_tokens: int | None = _served_count("maximum number of new tokens per step and data-parallel rank")
    kv_tokens: int | None = _served_count("KV cache size of a data-parallel rank in tokens; default: from free memory")
    block_tokens: int | None = _served_count("tokens per KV cache block")
    preemption: str | None = _served(
        "how to preempt a sequence when the KV cache is full", choices=("recompute", "swap")
    )
    overlap: str | None = _served(
        "what hides the exchange with experts: shared-experts (beside the dispatch), two-batch (the other half of the "
        "batch) or none; default: the engine's",
        choices=("none", "shared-experts", "two-batch"),
    )  # fmt: skip
    recv_interval: int | None = _served_count(
        "SGLang: decode steps between looks for new requests; default: every step",
        flags=("--scheduler-recv-interval",), metavar="STEPS",
    )  # fmt: skip
    backend: str = option_fields.cost_model(BACKENDS, group=_SERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions(EngineOptions):
    """What is served, and what its steps cost."""

    tp: int = _served_count("tensor-parallel GPUs", 1)
    pp: int = _served_count("pipeline-parallel GPUs", 1)
    dp: int = _served_count("attention data-parallel GPUs", 1)
    ep: int = _served_count("expert-parallel GPUs", 1)
    redundant_experts: int = _served_count("copies of experts beyond one each; default: as many as fill --ep evenly", 0)
    skew: str | None = option_fields.skew_of_experts(
        None, "distribution of tokens over experts, as in route; default: as unequal as DeepSeek-R1's were counted",
        group=_SERVED,
    )  # fmt: skip
    imbalance: float = _served("routed tokens of the busiest GPU over the mean, on top of --skew", 1.0, kind=float)
    weights: str | None = _served(
        "element type of the weights: fp8, fp4, bf16 ...; default: as released", metavar="TYPE"
    )
    kv: str | None = _served("element type of the KV cache; default: the model's", metavar="TYPE")
    speculate: str | None = _served(
        "speculative decoding, e.g. 4:0.7, or 3:0.85,0.7 by position; mtp, mtp:3 ...: by the model's own layers",
        metavar="TOKENS:ACCEPTANCE|mtp",
    )  # fmt: skip
    draft_model: str | None = _served("draft model for --speculate", metavar="NAME", names="known")
    lora: int = _served_count(
        "rank of LoRA adapters beside the products of attention and dense feed-forward; default: no adapters",
        0, metavar="RANK",
    )  # fmt: skip
    adapters: int | None = _served_count("different adapters, of which requests choose with equal chance; default: 1")
    max_loras: int | None = _served_count(
        "adapters in memory and in one batch, per data-parallel rank; default: --adapters, at most 8"
    )
    collective: str = _served("all-reduce algorithm: ring, tree ..., seed_simple, or auto", "ring")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig(DeploymentOptions):
    """What ``tracelens.serve`` takes beside a model and a cluster."""

    policy: str | None = _how(
        "batching policy: static, continuous, chunked-prefill, prefill-first; default: the engine's, else "
        "chunked-prefill"
    )
    replicas: int = _how_count("servers behind the router", 1)
    prefill_replicas: int = _how_count("replicas that only prefill; --replicas then only decode", 0)
    prefill_cluster: str | None = _how(
        "cluster of the prefill replicas, or a device in its standard node; default: --cluster",
        flags=("--prefill-cluster", "--prefill-device"), metavar="NAME|FILE", names="known",
    )  # fmt: skip
    prefill_tp: int | None = _how_count("tensor-parallel GPUs of a prefill replica; default: --tp")
    prefill_dp: int | None = _how_count(
        "attention data-parallel GPUs of a prefill replica; default: --dp, or 1 with --prefill-tp, -dp or -pp"
    )
    prefill_ep: int | None = _how_count(
        "expert-parallel GPUs of a prefill replica; default: --ep, at most all of its GPUs"
    )
    prefill_pp: int | None = _how_count(
        "pipeline stages of a prefill replica; default: --pp, or 1 with --prefill-tp, -dp or -pp"
    )
    prefill_weights: str | None = _how(
        "element type of a prefill replica's weights; default: --weights", metavar="TYPE"
    )
    prefill_engine: Engine | Path | str | None = option(
        "engine of prefill replicas; default: --engine", metavar="NAME|engine.toml", group=_HOW, names="known"
    )
    prefill_max_batched_tokens: int | None = _how_count(
        "maximum number of new tokens per step of a prefill replica; default: --max-batched-tokens"
    )
    cpu_cache: float = _how(
        "host memory per replica for prefixes evicted from the GPUs; default: none", 0.0, kind=float, metavar="GIB"
    )
    disk_cache: str | float | None = _how(
        "disks per replica for prefixes evicted from host memory (--cpu-cache), and their rate; default: none; "
        "the rate of a cluster file of yours, no bundled one has it",
        metavar="GIB[@GB/s]",
    )  # fmt: skip
    kv_link: float | None = _how(
        "bandwidth from prefill to decode for KV caches; default: the network's", kind=float, metavar="GB/s"
    )
    kv_transfer: str = _how(
        "when a prompt's KV cache leaves: whole after the prompt, or by chunk or layer while the rest is computed",
        "whole", choices=("whole", "chunk", "layer"),
    )  # fmt: skip
    router: str = _how(
        "routing policy: round-robin, random, least-loaded, prefix-aware, session-affinity", "round-robin"
    )
    order: str = _how("queue order: fcfs, sjf, priority", "fcfs")
    lod: str = _how(
        "level of detail: high, medium or low, for all replicas or one each", "medium", metavar="LEVEL[,LEVEL]"
    )
    contention: bool = _how("make collectives and pipeline transfers wait for the GPUs' ports", False)
    jitter: float = _how(
        "standard deviation over mean of a layer's time; at --lod high every layer waits for its slowest device, at "
        "medium every step, at low nothing varies",
        0.0, kind=float,
    )  # fmt: skip
    profile: Path | None = option(
        "take step times from an aggregated profile", kind=Path, metavar="FILE.json", group=_HOW, names="file"
    )

    rate: float | None = _load("arrivals per second", kind=float)
    arrivals: str = _load("arrival process: poisson, gamma, constant, burst", "poisson")
    variation: float = _load("gamma: coefficient of variation; burst: requests at once", 1.0, kind=float)
    concurrency: int | None = _load_count("requests in flight, as a closed loop instead of a rate")
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
    duration: str | None = _load("time in which requests arrive, e.g. 1h; all of them are finished", metavar="TIME")
    seed: int = _load_count("seed of the random numbers", 0)
    shared_prefix: int = _load_count("length of the prefix that prompts share", 0, metavar="TOKENS")
    shared_groups: int = _load_count("number of different shared prefixes", 1)
    turns: int | str | Lengths = option(
        "requests of a session: each says all before it again, --input-tokens are what it adds, --rate and "
        "--concurrency are of sessions",
        "1", metavar="N|KIND:MEAN:SPREAD", group=_LOAD,
    )  # fmt: skip
    think_time: str | None = _load(
        "pause between an answer and the session's next request, e.g. 10s; default: none", metavar="TIME"
    )
    replay: Path | None = option(
        "replay the requests of a file (formats: docs/serving.md)", kind=Path, metavar="FILE", group=_LOAD, names="file"
    )
    run_name: str | None = _load("run to replay, if the file has several", flags=("--run",), metavar="GPU")

    slo: str | None = _asked("limits for goodput", metavar="ttft=500ms,tpot=50ms")
    price_per_gpu_hour: float | None = option_fields.price_per_gpu_hour(kind=float, group=_ASKED)
    pue: float | None = option_fields.pue(group=_ASKED)
    price_per_kwh: float | None = option_fields.price_per_kwh(group=_ASKED)
    co2_per_kwh: float | None = option_fields.co2_per_kwh(group=_ASKED)


def names_of(options: type) -> frozenset[str]:
    """The options of one of these classes."""
    return frozenset(each.name for each in fields(options))
