"""An option of ``project`` changes the step, or the step says that it does not read it."""

from __future__ import annotations

from typing import Any

import pytest

import tracelens as tl
from tracelens.errors import UsageError
from tracelens.predict.projection.project import Result

STEPS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama3.1-8b", "cluster": "dgx-h100", "gpus": 16, "tp": 2, "pp": 2, "global_batch": 64},
    "fsdp": {"model": "llama3.1-8b", "cluster": "dgx-h100", "gpus": 16, "zero": 3, "global_batch": 64},
    "experts": {"model": "deepseek-v2-lite", "cluster": "dgx-h100", "gpus": 16, "ep": 8, "global_batch": 64},
}
OTHERWISE: dict[str, Any] = {
    "vpp": 2, "etp": 2, "sequence_parallel": False, "tp_overlap": "all", "ep_overlap": True, "precision": "fp8",
    "bf16_layers": (1, 1), "gradients": "bf16", "recompute_modules": "mlp,layernorm", "recompute_layers": 4, "lora": 16,
    "fused_loss": True, "offload_layers": 2, "graphs": "full", "dispatcher": "alltoall", "attention": "unfused",
    "document": 512, "fsdp_overlap": "0.5", "straggler": "1.2", "sequential_experts": True, "skew": "zipf:1.1",
    "schedule": "gpipe", "gpu_clock_mhz": 1000, "power_w": 400, "framework": "torchtitan", "host_us": 30,
    "gemm_factor": 1.3, "attention_factor": 1.3, "memory_factor": 1.3, "micro_batch": 2, "sequence": 2048,
}  # fmt: skip


def figures(step: Result) -> tuple[str, ...]:
    return str(step.summary), step.breakdown.to_csv(), step.memory.to_csv()


@pytest.mark.parametrize(
    "name", ["experts", *(pytest.param(each, marks=pytest.mark.sweep) for each in ("dense", "fsdp"))]
)
def test_an_option_changes_the_step_or_is_said_not_to(name: str) -> None:
    plain = figures(tl.project(**STEPS[name]))
    refused = []
    for option, value in OTHERWISE.items():
        try:
            step = tl.project(**STEPS[name], **{option: value})
        except UsageError:
            refused.append(option)
            continue
        flag = "--no-sequence-parallel" if option == "sequence_parallel" else f"--{option.replace('_', '-')}"
        is_said = any(note.startswith("not read: ") and flag in note for note in step.projection.notes)
        assert is_said == (figures(step) == plain), option
    assert len(refused) < 5
