"""Record three training steps of a small transformer with PyTorch's own profiler.

    python -m example_traces.record_transformer_step [FOLDER]

Needs only PyTorch (``pip install "tracelens-perf[record]"``). Runs on a GPU where there is one; the file's name says
which: ``transformer_step_cuda.json.gz`` or ``transformer_step_cpu.json.gz``. The times are measured, so a new run gives
a new file. What identifies the machine (host name, paths, ids) is not written.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

BATCH, SEQUENCE, VOCABULARY = 4, 128, 2048
HIDDEN, HEADS, LAYERS = 256, 4, 2
WAIT, WARMUP, ACTIVE = 1, 2, 3

#: Keys beside traceEvents that say what was recorded, not on which machine
METADATA = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "with_stack",
    "displayTimeUnit",
    "baseTimeNanoseconds",
)


class Block(nn.Module):
    """Pre-norm causal self-attention and a GELU MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.projection = nn.Linear(HIDDEN, HIDDEN)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(b, s, 3, HEADS, h // HEADS)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(b, s, h))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Transformer(nn.Module):
    """Token and position embedding, ``LAYERS`` blocks, a final norm and an untied output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def record(device: str) -> dict[str, Any]:
    """Trains ``WAIT + WARMUP + ACTIVE`` steps on ``device`` and returns the trace of the last ``ACTIVE``."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so that steps on a CPU repeat
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Transformer().to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batches = torch.randint(VOCABULARY, (WAIT + WARMUP + ACTIVE, BATCH, SEQUENCE + 1))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=activities,
            schedule=schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
            record_shapes=True,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for batch in batches:
                batch_on_device = batch.to(device)
                logits = model(batch_on_device[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), batch_on_device[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                profiler.step()
        trace: dict[str, Any] = json.loads(path.read_text())
    return trace


def without_machine(trace: dict[str, Any], device: str) -> dict[str, Any]:
    """The trace with metadata that names what was recorded, and process names without a path."""
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        if event.get("name") in ("process_name", "thread_name") and "/" in str(args.get("name", "")):
            args["name"] = args["name"].rsplit("/", 1)[-1]
    kept = {key: trace[key] for key in METADATA if key in trace}
    recorded = {"traceName": f"example_traces/record_transformer_step.py on {device}, torch {torch.__version__}"}
    return kept | recorded | {"traceEvents": trace["traceEvents"]}


def main() -> None:
    """Records, cleans and writes, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trace = without_machine(record(device), device)
    text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace.pop("traceEvents"))
    head = json.dumps(trace, separators=(",", ":"))[:-1]
    path = folder / f"transformer_step_{device}.json.gz"
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(gzip.compress(f'{head},\n"traceEvents":[\n{text}\n]}}\n'.encode(), 9, mtime=0))
    unfinished.replace(path)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
