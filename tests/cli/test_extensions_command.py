"""``tracelens extensions list|check|new``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelens
from tracelens import OpSignature
from tracelens.cli import main
from tracelens.extensions import load_extension
from tracelens.report.excerpts.op_scripts import extension_stub


def test_the_bundled_ones_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["extensions", "list"]) == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    names = (
        "aiter", "apex", "bitsandbytes", "deep_ep", "deepspeed", "fbgemm", "flash_attn", "flash_linear_attention", "liger", "mamba", "megatron",
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


HOSTILE = 'my_lib::op"""\nraise SystemExit(7)\n#'


def _trace(path: Path, name: str, **args: object) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 5, "args": args}
    path.write_text(json.dumps({"traceEvents": [event, {**event, "ts": 10}]}), encoding="utf-8")
    return path


def test_a_new_one_loads_and_counts_the_recorded_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """[4, 6] BF16 and [6] FP32 read, [4, 6] BF16 written: 48 + 24 + 48 bytes. The scalar between them is none."""
    shapes = {"Input Dims": [[4, 6], [], [6]], "Input type": ["c10::BFloat16", "Scalar", "float"]}
    trace = _trace(tmp_path / "t.json", "my_lib::op", **shapes)
    path = tmp_path / "mine.py"
    assert main(["extensions", "new", "my_lib::op", "--from", str(trace), "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}\n"
    assert "#   2 x ((4, 6), (), (6,))" in path.read_text(encoding="utf-8")
    extension = load_extension(str(path))
    assert set(extension.traced_names) == {"my_lib::op"}
    op = OpSignature(name="my_lib::op", shapes=((4, 6), (), (6,)), dtypes=("c10::BFloat16", "Scalar", "float"))
    assert extension.sources[0].read(op).hbm_bytes() == 48 + 24 + 48


def test_names_of_a_trace_never_become_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = _trace(tmp_path / "t.json", HOSTILE, **{"Input Dims": [[2]], "Input type": ["float\nraise SystemExit(8)"]})
    assert main(["extensions", "new", HOSTILE, "--from", str(trace)]) == 0
    text = capsys.readouterr().out
    assert not any(line.startswith("raise") for line in text.splitlines())
    path = tmp_path / "hostile.py"
    path.write_text(text, encoding="utf-8")
    assert load_extension(str(path)).traced_names


@pytest.mark.parametrize(
    ("op", "args", "said"),
    [
        (
            "my_lib::oq",
            {"Input Dims": [[2]], "Input type": ["float"]},
            "no CPU op named 'my_lib::oq'; did you mean my_lib::op?",
        ),
        ("my_lib::op", {}, "'my_lib::op' has no recorded tensor shapes; record with record_shapes=True"),
    ],
)
def test_what_cannot_be_begun_says_why(
    op: str, args: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    trace = _trace(tmp_path / "t.json", "my_lib::op", **args)
    assert main(["extensions", "new", op, "--from", str(trace), "-o", str(tmp_path / "mine.py")]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "mine.py").exists()


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = _trace(tmp_path / "t.json", "my_lib::op", **{"Input Dims": [[2]], "Input type": ["float"]})
    mine = tmp_path / "mine.py"
    mine.write_text("MINE = 1\n", encoding="utf-8")
    assert main(["extensions", "new", "my_lib::op", "--from", str(trace), "-o", str(mine)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == "MINE = 1\n"


@pytest.mark.shared
def test_every_op_that_a_report_cannot_see_can_be_begun(shared_traces: Path, tmp_path: Path) -> None:
    """Also those whose calls differ in what they record, such as a tensor in the place of a number."""
    trace = tracelens.load(shared_traces / "hta/trace_filter/sampled_rank-0.json.gz")
    rows = tracelens.report(trace).result.frames["unified_perf_summary"]
    unseen = rows[~rows["has_perf_model"] & ~rows["name"].str.contains("->")]
    told = unseen[unseen["input_types"].astype(str).str.contains("float|int|long")]
    paths = []
    for number, op in enumerate(dict.fromkeys(told["name"])):
        paths.append(tmp_path / f"op{number}.py")
        paths[-1].write_text(extension_stub(trace, op), encoding="utf-8")
    assert len(paths) >= 3
    seen = tracelens.report(trace, extensions=paths).result.frames["unified_perf_summary"]
    begun = seen[seen["name"].isin(told["name"]) & seen["input_types"].astype(str).str.contains("float|int|long")]
    assert begun["hbm_mb"].notna().all()
