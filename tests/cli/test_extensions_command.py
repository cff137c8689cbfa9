"""``tracelens extensions list|check``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.cli import main


def test_the_bundled_ones_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["extensions", "list"]) == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    names = (
        "aiter", "apex", "bitsandbytes", "deep_ep", "deepspeed", "fbgemm", "flash_attn", "liger", "mamba", "megatron",
        "primus", "quantized_products", "sage_attention", "sgl_kernel", "sglang", "tensorrt_llm", "transformer_engine",
        "vllm",
    )  # fmt: skip
    assert listed[: len(names)] == [[name, "bundled;"] for name in names]


def test_a_file_that_loads_is_shown_with_what_it_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "mine.py"
    path.write_text(
        "from tracelens import EPComm, OpSignature, traced_as\n"
        '@traced_as("my_lib::b", "my_lib::a")\n'
        "def _read(op: OpSignature) -> EPComm:\n"
        "    return EPComm(tokens=1, hidden=1)\n",
        encoding="utf-8",
    )
    assert main(["extensions", "check", str(path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "mine (file mine.py) loads"
    assert [line.split()[:2] for line in rest] == [["traced_as", "my_lib::a"], ["traced_as", "my_lib::b"]]
    assert all(line.endswith("mine.py:2 (_read)") for line in rest)


def test_a_broken_file_exits_with_2_and_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "broken.py"
    path.write_text("\n\nraise RuntimeError('no')\n", encoding="utf-8")
    assert main(["extensions", "check", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: extension {path}:3 does not load: RuntimeError: no  (exit 2)\n"
