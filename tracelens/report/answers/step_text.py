"""A projected step as lines of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.figures import shown_change, shown_percent

if TYPE_CHECKING:
    from tracelens.projection.project import Result


_PARTS = {
    "gemm": "GEMM", "memory": "memory-bound ops", "routing": "routing of tokens", "experts": "GEMM of experts",
    "vocabulary": "embedding, logits, loss", "host": "waiting for the host", "tp": "tensor parallelism (tp)",
    "cp": "context parallelism (cp)", "ep": "expert parallelism (ep)", "dp": "data parallelism (dp)",
    "fsdp": "sharded weights (fsdp)", "pp": "stage to stage (pp)",
}  # fmt: skip


def part_words(name: str) -> str:
    """What a part of a step is, in words."""
    return _PARTS.get(name, name)


def step_text(result: Result) -> str:
    """Time, where it goes, communication, experts, memory per stage, the largest levers, notes."""
    found = result.projection
    p = found.parallel
    mfu = "" if found.mfu is None else f", MFU {shown_percent(found.mfu)} of the {p.computed_in.label} data sheet rate"
    backends = ", ".join(f"{name} {count}" for name, count in found.answered_by.items())
    narrow = "" if p.gradients == "fp32" else f", {p.gradients} gradients"
    routed = "" if found.model.experts is None else f", routing {p.skew}"
    lines = [f"does not fit: {found.infeasible}"] if found.infeasible else []
    lines += [
        f"{found.model.label} on {p.ranks} x {found.system.device.label}: {found.step_us / 1e6:.3f} s per step",
        (
            f"  tp {p.tp} pp {p.pp} vpp {p.vpp} cp {p.cp} dp {p.dp} ep {p.ep} etp {p.etp}, ZeRO {p.zero}, "
            f"{p.micro_batches} micro-batches of {p.micro_batch} x {found.sequence} tokens, {p.precision}{narrow}, "
            f"recompute {p.recompute}, schedule {found.schedule if p.pp > 1 else 'none'}{routed}"
        ),
        f"  {found.tokens_per_s_per_gpu:.0f} tokens/s/GPU, {found.tflops_gpu:.0f} TFLOPS/GPU{mfu}",
        *(f"  {line}" for line in expected_of(result)),
        f"  cost models: {backends}",
        "",
        "where the time goes (busiest pipeline rank; exposed communication only)",
    ]
    for part, time_us in sorted(found.breakdown_us.items(), key=lambda item: -item[1]):
        lines.append(f"  {part_words(part):26} {time_us / 1e3:10,.1f} ms {100 * time_us / found.step_us:6.1f} %")
    communication = result.communication_rows()
    if communication:
        lines += ["", "communication, ms                runs    exposed"]
        for stream, time_us, _, exposed_us in communication:
            lines.append(f"  {part_words(stream):26} {time_us / 1e3:9,.1f} {exposed_us / 1e3:10,.1f}")
    work = result.experts
    if work is not None:
        rows = f"{work.local_experts} per rank, {work.rows_per_expert:.0f} rows each, h {work.hidden}, f {work.ffn}"
        sent = f"{work.tokens} tokens per rank, {work.copies:.0f} copies leave it"
        lines += ["", f"experts: {rows}, {work.mode}; {sent}"]
    lines += ["", *_memory(result)]
    lines += ["", *_levers(result)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def _levers(result: Result) -> list[str]:
    fits = result.projection.infeasible is None
    found = [f"  {lever.change:52} {shown_change(-lever.gain)}" for lever in result.levers]
    if fits:
        return ["largest levers, each alone", *(found or ["  none of the tried changes helps"])]
    none = "  none of the changes that were tried, three at a time; tracelens search finds the splits that fit"
    return ["what would fit, and the time of the step", *(found or [none])]


def expected_of(result: Result) -> list[str]:
    """How far such steps were from their projections, and between which times they were."""
    expected, framework = result.expected, result.framework
    if expected is None or framework is None:
        return []
    step_s = result.projection.step_us / 1e6
    half, most = (f"{low * step_s:.3f} to {high * step_s:.3f} s" for low, high in (expected.half, expected.most))
    median, p90 = 100 * expected.median, 100 * expected.p90
    return [
        f"expected error {median:.0f} %, 9 of 10 below {p90:.0f} % ({framework.name} constants)",
        f"expected within {half} in half of all cases, {most} in 9 of 10",
    ]


def _memory(result: Result) -> list[str]:
    found = result.projection
    room = "" if found.peak_memory.capacity is None else f" of {found.peak_memory.capacity / 1e9:.1f}"
    lines = [f"memory, GB       weights  grads  optim  activ  logits  other   peak{room}"]
    stages = found.stages if len(found.stages) <= 8 else (*found.stages[:3], *found.stages[-3:])
    for stage in stages:
        parts = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.logits, stage.outside)
        figures = " ".join(f"{value / 1e9:6.1f}" for value in (*parts, stage.peak))
        lines.append(f"  stage {stage.stage:<5}    {figures}")
    return lines
