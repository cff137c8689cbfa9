"""Tables, documents and arguments with any cell or key replaced: a documented exit code and no traceback.

``TRACELENS_FUZZ_CASES`` sets how many cases of each format run; by default few.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.survival import time_limit
from tracelens.cli import main

CASES = int(os.environ.get("TRACELENS_FUZZ_CASES", "25"))
BAD: tuple[Any, ...] = (
    "", None, "abc", "1.5", "-1", "0", "1e18", "1e-320", "inf", "nan", "1e400", "x" * 5000, "true", "[1]", "=1+1",
    "\x1b]52;c;x\x07", "9" * 5000, 10**30, -1, 0, 1.5, True, [], {}, [[]], float("inf"), float("nan"), "../../x.toml", "\ud800",
)  # fmt: skip
TABLES: dict[str, tuple[dict[str, str], list[str]]] = {
    "estimate": ({"m": "128", "n": "128", "k": "128", "gemm_dtype": "bf16", "device": "h200"}, ["estimate", "gemm", "--batch"]),
    "collective": ({"op": "all_reduce", "size": "1048576", "num_nodes": "2", "gpus_per_node": "4", "cluster": "perlmutter"}, ["estimate", "collective", "--batch"]),
    "moe": ({"num_tokens": "128", "hidden_size": "4096", "inter_size": "1024", "topk": "2", "num_experts": "8", "moe_tp_size": "1", "moe_ep_size": "1", "distribution": "balanced", "device": "h200"}, ["estimate", "moe", "--batch"]),
    "routing": ({"a": "0", "b": "1"}, ["route", "--topk", "2", "--ranks", "1", "--routing"]),
    "replay": ({"arrival_s": "0", "input_toks": "8", "output_toks": "4"}, ["serve", "--model", "llama3.1-8b", "--cluster", "h200", "--replay"]),
}  # fmt: skip


def survives(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with time_limit(30):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    shown = capsys.readouterr()
    assert code in (0, 1, 2, 3, 5), (arguments, shown.err[-500:])
    assert "Traceback" not in shown.out + shown.err
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_a_table_with_any_cell_replaced_is_answered(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(kind)
    row, command = TABLES[kind]
    for _ in range(CASES):
        rows = [dict(row) for _ in range(3)]
        for _ in range(rng.randint(1, 2)):
            rng.choice(rows)[rng.choice(list(row))] = str(rng.choice(BAD))
        lines = [",".join(row), *(",".join(each.values()) for each in rows)][kind == "routing" :]
        path = tmp_path / "in.csv"
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        survives([*command, str(path)], capsys)


CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16", "rope_scaling": {"type": "x"},
}  # fmt: skip


def test_a_config_with_any_key_replaced_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path = random.Random(1), tmp_path / "config.json"
    for _ in range(CASES):
        path.write_text(json.dumps({**CONFIG, rng.choice(list(CONFIG)): rng.choice(BAD)}))
        survives(["models", "show", str(path)], capsys)
