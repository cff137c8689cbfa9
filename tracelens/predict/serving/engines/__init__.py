"""Serving engines as files: what each adds to the device's work, fitted to published points
(``benchmarks/fit_engines.py``), on NVIDIA and, as ``*-rocm``, on AMD devices.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.files.documents import normalized
from tracelens.hardware import HardwareSpec
from tracelens.predict.serving.deployment import Engine

#: Of an engine that no file names; and nothing fitted.
POOLED, IDEAL = "pooled", "ideal"
_FOLDER = Path(__file__).parent
#: What engines do unless told otherwise. Sizes: SGLang's server_args (up to 512 on devices of 80 GB and more), vLLM's
#: set_cudagraph_sizes, TensorRT-LLM's CudaGraphConfig with padding, ATOM's --cudagraph-capture-sizes. The first three
#: compute shared experts on a stream beside the dispatch. Rows: vLLM's deep_gemm_utils.compute_aligned_M. Padding:
#: get_dp_padding of vLLM 0.11's gpu_model_runner, which 0.12 keeps for engines that capture graphs; later ones do not.
#: Drafts: verifying beside idle ranks is not captured (sglang#6081), and on busy ones as slow: of LMSYS's 53.5 and 59.5
#: ms a step (2025-07-17: 2 and 3 drafts, 16 H200, 2 sequences of 65,536 tokens a rank) graphs would take 38 and 44.
_VLLM_SIZES = "1,2,4,8-256:8,272-512:16"
HABITS: dict[str, dict[str, Any]] = {
    "sglang": {
        "overlap": "shared-experts", "cache_load": "layer", "graph_batches": "1,2,4,8,12,16-256:8,272-512:16",
        "eager_drafts": "ranks", "chance_ranks": "prefill",
    },
    "vllm": {
        "overlap": "shared-experts", "cache_load": "beside", "graph_batches": _VLLM_SIZES, "expert_rows": 128,
        "pads_prompts": True,
    },
    "trtllm": {"overlap": "shared-experts", "graph_batches": "1,2,4,8-128:8,256,512,1024,2048"},
    "atom": {"graph_batches": "1,2,4,8,16,32,48,64,128,256,512"},
    POOLED: {"overlap": "shared-experts", "graph_batches": _VLLM_SIZES},
}  # fmt: skip
_WORDS = {"tensorrt-llm": "trtllm", "trt": "trtllm", "tensorrt": "trtllm", "mori-sglang": "sglang"}


def names() -> tuple[str, ...]:
    """Engines of this package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def engine_name(said: str, device: HardwareSpec) -> str:
    """The file of the engine that a table or an option calls ``said`` on such a device."""
    word = normalized(said)
    word = _WORDS.get(word, word)
    ending = "-rocm" if device.vendor == "amd" else ""
    found = word.removesuffix("-rocm") + ending
    return found if found in names() else POOLED + ending


@functools.cache
def fitted_engine(said: str, device: HardwareSpec) -> Engine:
    """The engine with its fitted constants, and the usual limits. ``ideal``: none."""
    if normalized(said) == IDEAL:
        return Engine(name=IDEAL)
    name = engine_name(said, device)
    return with_habits(Engine.load(_FOLDER / f"{name}.toml").released(None, device), name)


def with_habits(engine: Engine, name: str) -> Engine:
    """``engine`` with what the one called ``name`` does by default, where it says nothing else."""
    habits = HABITS.get(name.removesuffix("-rocm"), {})
    return dataclasses.replace(engine, **{key: getattr(engine, key) or said for key, said in habits.items()})


def named(said: str, device: HardwareSpec) -> Engine:
    """What ``--engine`` says by name. UsageError for one that is neither a file's name nor a known engine."""
    known = {*(name.removesuffix("-rocm") for name in names()), *_WORDS, IDEAL}
    if normalized(said) not in known:
        raise UsageError.unknown("engine", said, sorted(known))
    return fitted_engine(said, device)
