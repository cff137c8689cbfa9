"""Commands and requests that read the formats of ``documents``, run in this process; what each must end with."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
from pathlib import Path
from typing import Any

from tests.fuzz.documents import FORMATS, KINETO, as_json
from tests.fuzz.survival import time_limit
from tracelens.cli import main
from tracelens.cli.agents.tools import Roots, answered

#: A sound command of every verb but mcp, which reads standard input; FILE is a trace.
VERBS = (
    "anonymize FILE -o a.json", "baseline save one FILE --baselines b", "baseline list --baselines b", "calibrate FILE --device mi300x -o c.toml", "check FILE",
    "collectives FILE -o c --executor serial", "compare FILE FILE -o c.json", "completion bash", "convert FILE -o c.pftrace", "demo -o d.json", "devices list", "devices show h100-sxm",
    "estimate gemm --m 64 --n 64 --k 64 --device h100-sxm", "estimate sdpa --b 1 --s-q 64 --q-heads 4 --d-qk 64 --device mi300x",
    "estimate collective --op all_reduce --bytes 1MiB --cluster dgx-h100 --ranks 8", "extensions list", "extensions new aten::mm --from FILE", "fuse FILE -o f.json --executor serial",
    "ingest . --to lake --executor serial", "models show gpt2", "ops grouped", "perfetto FILE -o p.json", "query FILE SELECT", "query FILE --ready slowest", "record --for idle",
    "project --model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8 --tp 2", "replay FILE -o r", "report FILE -o r.json", "route --tokens 64 --experts 8 --ranks 2 --topk 2 --seed 1", "score FILE",
    "search --model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8 --executor serial --top 2", "serve --model gpt2 --device h100-sxm --rate 2 --requests 2 --input-tokens 8 --output-tokens 2",
    "skill -o k", "slim FILE -o s.json --steps 3", "whatif FILE --scale aten::mm=0.5",
)  # fmt: skip
#: A sound request to every tool of ``tracelens mcp``.
REQUESTS: dict[str, dict[str, Any]] = {
    "files": {}, "report": {"trace": "t.json"}, "findings": {"trace": "t.json"}, "ops": {"trace": "t.json", "contains": "mm"}, "explain": {"trace": "t.json", "op": "aten::mm"},
    "compare": {"a": "t.json", "b": "t.json", "gate": ["step<+3%"]}, "whatif": {"trace": "t.json", "scale": ["aten::mm=0.5"]}, "collectives": {"trace": "."},
    "query": {"trace": "t.json", "statement": "SELECT name FROM ops"}, "lake": {"trace": "lake", "ready": "runs"}, "check": {"trace": "t.json"},
    "estimate": {"what": "gemm", "m": 512, "n": 512, "k": 512, "device": "h100-sxm"}, "project": {"model": "gpt2", "cluster": "dgx-h100", "nodes": 1, "global_batch": 8},
    "search": {"model": "gpt2", "cluster": "dgx-h100", "gpus": "8", "global_batch": 8, "top": 3},
    "serve": {"model": "gpt2", "cluster": "h100-sxm", "requests": 5, "input_tokens": "100", "output_tokens": "5", "rate": 1.0},
}  # fmt: skip


def sound_files(folder: Path) -> dict[str, Path]:
    """Writes what stands beside a changed file; by the word that stands for each in a command."""
    files = (("TRACE", "t.json"), ("BESIDE", "report.json"), ("LAKE", "lake"), ("BASELINE", "baseline.json"))
    found = {word: folder / file for word, file in files}
    found["TRACE"].write_bytes(as_json(KINETO))
    ended(["report", str(found["TRACE"]), "-o", str(found["BESIDE"])])
    ended(["baseline", "save", "baseline", str(found["TRACE"]), "--baselines", str(folder)])
    found["BASELINE"].write_bytes(gzip.decompress((folder / "baseline.json.gz").read_bytes()))
    ended(["ingest", str(folder), "--to", str(found["LAKE"]), "--executor", "serial"])
    return found


def command_on(name: str, content: bytes, around: dict[str, Path], folder: Path) -> list[str]:
    """The command that reads a file of a format, which is written to ``folder``; what an earlier one made is gone."""
    _, _, file, command = FORMATS[name]
    own = {**around, "HERE": folder, "FOLDER": folder / "written"}
    if file.startswith("LAKE"):
        own["LAKE"] = folder / "LAKE"
        shutil.copytree(around["LAKE"], own["LAKE"], dirs_exist_ok=True)
    path = folder / file
    path.write_bytes(content)
    for left in (path.with_name(f"{path.name}.out.json"), own["FOLDER"]):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return [str(own.get(word, word)) if word in own else word.replace("FILE", str(path)) for word in command]


def ended(arguments: list[str], *, seconds: float = 30) -> tuple[int, str]:
    """The exit code of a command, and what it shows; TimeoutError unless it is done within CPU ``seconds``."""
    shown = io.StringIO()
    with time_limit(seconds), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, shown.getvalue()


def survives(arguments: list[str], *, seconds: float = 30) -> int:
    """The exit code of a command; AssertionError unless it is a documented one, with plain text only and in time."""
    code, text = ended(arguments, seconds=seconds)
    assert code in (0, 1, 2, 3, 5), (arguments, text[-500:])
    assert "Traceback" not in text
    assert "\x1b" not in text
    return code


def answers(tool: str, asked: Any, folder: Path, *, seconds: float = 30) -> None:
    """Asks ``tracelens mcp``; AssertionError for a defect, text of a terminal or too long a time."""
    with time_limit(seconds):
        text, failed = answered(tool, asked, Roots.of([folder]))
    assert not failed or "a defect of tracelens" not in text, (tool, asked, text)
    assert text.isascii()
