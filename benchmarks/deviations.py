"""What each deliberate deviation from the published Primus projection changes, in percent of the step.

    python benchmarks/deviations.py

Each line of the table in docs/projection.md projects one step twice, as tracelens does and with the published rule in
its place, or prices what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.perf_models import GEMM, SDPA, PerfModel, WorkColumns
from tracelens.predict.projection.overheads import Hidden, ProjectionOptions, completed
from tracelens.predict.projection.projection_options import BACKENDS
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import block

SEQUENCE = 8192
LLAMA = ModelConfig.load("llama3.1-70b")
DEEPSEEK = ModelConfig.load("deepseek-v3")
FSDP = ParallelConfig(dp=64, zero=3, micro_batches=8)
EXPERTS = ParallelConfig(pp=8, dp=32, ep=8, micro_batches=32, precision="fp8")
TENSOR = ParallelConfig(tp=8, sequence_parallel=True, pp=4, dp=2, micro_batches=32)


def main() -> None:
    amd, _ = completed(System.load("mi300x"))
    hopper = System.load("dgx-h100")
    fsdp = {how: step(LLAMA, replace(FSDP, recompute=how), amd) for how in ("none", "full")}
    gathered = Hidden(forward_gather=0.0, backward_gather=1.0, scatter=0.0)
    print("| deviation | step | effect of the published rule, % of the step |\n|---|---|---|")
    for how, published in (("full", 0.0), ("none", 1.0)):
        name = f"FSDP gathers per layer: 2; published 1 + recomputed/layers ({how} recomputation: {2 - published:.0f})"
        without = replace(gathered, backward_gather=published)
        alone = step(
            LLAMA,
            replace(FSDP, recompute=how),
            amd,
            ProjectionOptions(fsdp_hidden=replace(gathered, backward_gather=0.0)),
        )
        other = step(LLAMA, replace(FSDP, recompute=how), amd, ProjectionOptions(fsdp_hidden=without))
        line(name, "Llama 70B, 64 MI300X, FSDP, nothing hidden", other, alone)
    for text in ("90,24,34", "0.93"):
        for how, found in fsdp.items():
            fixed = step(LLAMA, replace(FSDP, recompute=how), amd, ProjectionOptions(fsdp_hidden=Hidden.parse(text)))
            line(
                f"FSDP overlap from the timeline; published {text} hidden ({how} recomputation)",
                "the same",
                fixed,
                found,
            )
    ratio = len(LLAMA.layers) * (4 * LLAMA.hidden**2 + 3 * LLAMA.hidden * (LLAMA.ffn or 0)) / LLAMA.parameters().total
    print(
        f"| parameters counted from the model; published 4 h^2 + 3 h F | Llama 70B's FSDP traffic | {ratio - 1:+.1%} |"
    )
    tensor = step(LLAMA, TENSOR, hopper)
    products = [op.model for letter in "*-" for op in block(LLAMA, TENSOR, letter, SEQUENCE).ops]
    sharded = [model for model in products if isinstance(model, GEMM)]
    whole = [replace(model, **unsharded(model)) for model in sharded]
    more = priced(whole, hopper) / priced(sharded, hopper) - 1
    share = tensor.breakdown_us["gemm"] / tensor.step_us
    print(
        "| tensor parallelism divides n or k; published tokens / tp, whole weights | Llama 70B, tp 8, H100 | "
        f"{more * share:+.1%} |"
    )
    attention = [m for m in products if isinstance(m, SDPA)]
    dense = [replace(m, kv_heads=m.q_heads, mask="none") for m in attention]
    more = priced(dense, hopper) / 2 / priced(attention, hopper) - 1
    share = tensor.breakdown_us["attention"] / tensor.step_us
    print(
        "| causal attention by tiles, shared keys; published half of the square, own keys | the same | "
        f"{more * share:+.1%} |"
    )
    left = (("stages' transfers take time", "pp"), ("gradients' reduction is partly exposed", "dp"))
    for what, part in left:
        print(f"| {what}; published none | the same | {-tensor.breakdown_us.get(part, 0.0) / tensor.step_us:+.1%} |")
    experts = step(DEEPSEEK, EXPERTS, hopper)
    line(
        "tokens once per rank and node; published once per expert", "DeepSeek-V3, ep 8, 256 H100, FP8",
        step(DEEPSEEK, replace(EXPERTS, dispatcher="alltoall"), hopper), experts,
    )  # fmt: skip
    quantized = experts.breakdown_us["quantize"] / experts.step_us
    print(f"| quantizing passes of FP8; published none | the same | {-quantized:+.1%} |")


def step(
    model: ModelConfig, parallel: ParallelConfig, system: System, options: ProjectionOptions | None = None
) -> Projection:
    return project(model, parallel, system, sequence=SEQUENCE, options=options or ProjectionOptions())


def unsharded(model: GEMM) -> dict[str, int]:
    """Of a product that tensor ranks divide: its tokens divided instead. Of weights' gradients those are k."""
    tokens = SEQUENCE
    if model.m == tokens:
        narrow = min(("n", "k"), key=lambda side: getattr(model, side))
        return {"m": tokens // 8, narrow: 8 * getattr(model, narrow)}
    narrow = min(("m", "n"), key=lambda side: getattr(model, side))
    return {"k": model.k // 8, narrow: 8 * getattr(model, narrow)}


def priced(models: Iterable[PerfModel], system: System) -> float:
    return float(chain(BACKENDS).estimate_many(WorkColumns.of(models), system).time_us.sum())


def line(what: str, where: str, published: Projection, ours: Projection) -> None:
    print(f"| {what} | {where} | {published.step_us / ours.step_us - 1:+.1%} |")


if __name__ == "__main__":
    main()
