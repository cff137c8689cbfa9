"""Runs two installed versions of tracelens over the same traces and one run of every verb, and compares all they say.

    python -m benchmarks.compare_versions OLD/bin/python NEW/bin/python [TRACES ...] [--jobs 2] [--texts] [--verbs]

OLD may be a file that an earlier run wrote with ``--record FILE``: what its old version said is kept there.
Figures, tables, columns, texts, pages, workbooks, exit codes: what differs is printed side by side, and the exit code
is 1. ``--texts`` says that words may differ, numbers and exit codes not. TRACES: files or folders; default: the
repository's own and those of ../shared, where they are.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = REPOSITORY / "example_traces"
SHARED = REPOSITORY.parent / "shared" / "data" / "traces"
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
#: How long a run took is no figure of the report.
SECONDS = re.compile(r"wall clock .*|in [\d.,]+ s")
MOST_SHOWN = 8

#: One run of every verb; ``{out}`` is a folder of the run's own, ``{moe}`` a generated trace, ``{ranks}`` its job.
RUNS: dict[str, tuple[str, ...]] = {
    "check": ("check", "{moe}"),
    "collectives": ("collectives", "{ranks}", "-o", "{out}/job"),
    "demo": ("demo", "-o", "{out}/demo.report"),
    "devices": ("devices", "show", "h100-sxm"),
    "estimate-gemm": ("estimate", "gemm", "--m", "4096", "--n", "4096", "--k", "8192", "--device", "h100-sxm"),
    "estimate-sdpa": (
        "estimate", "sdpa", "--b", "1", "--s-q", "4096", "--q-heads", "32", "--d-qk", "128", "--device", "mi300x",
    ),
    "estimate-ep": (
        "estimate", "ep", "--ranks", "8", "--experts", "256", "--topk", "8", "--tokens", "4096",
        "--hidden", "7168", "--device", "h100-sxm",
    ),
    "extensions": ("extensions", "list"),
    "fuse": ("fuse", "{ranks}", "-o", "{out}/fused.json.gz"),
    "ops": ("ops", "grouped"),
    "project": (
        "project", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "32",
        "--tp", "8",
    ),
    "report": ("report", "{moe}", "-o", "{out}/steady.report", "--steps", "steady", "--backend", "tile", "--csv"),
    "route": ("route", "--tokens", "1024", "--experts", "64", "--ranks", "8", "--topk", "4", "--seed", "1"),
    "search": (
        "search", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--gpus", "16", "--global-batch", "64",
    ),
    "serve": (
        "serve", "--model", "llama3.1-8b", "--device", "h100-sxm", "--rate", "2", "--requests", "50", "--input", "512",
        "--output", "64", "--seed", "1",
    ),
}  # fmt: skip


@dataclass(slots=True)
class Said:
    """What one version said in one run: the exit code, every text it printed or wrote, and digests of other files."""

    code: int
    texts: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def run(python: str, words: tuple[str, ...], folder: Path) -> Said:
    """One command of one version; its words may name ``{out}``."""
    folder.mkdir(parents=True)
    named = {"out": str(folder), "moe": str(EXAMPLES / "moe_ep8" / "rank0.json.gz"), "ranks": str(EXAMPLES / "moe_ep8")}
    command = [python, "-m", "tracelens", *(word.format(**named) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent)
    said = Said(code=done.returncode)
    for name, text in (("stdout", done.stdout), ("stderr", done.stderr)):
        said.texts[name] = [SECONDS.sub("", line).replace(str(folder), "OUT").rstrip() for line in text.splitlines()]
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".csv", ".json")):
        said.texts[path.relative_to(folder).as_posix()] = _lines(path)
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".html", ".xlsx")):
        said.files[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return said


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return [" | ".join(row) for row in csv.reader(text.splitlines())]
    return json.dumps(json.loads(text), indent=0, ensure_ascii=False).splitlines()


def differences(old: Said, new: Said, *, texts_may_differ: bool) -> list[str]:
    """What differs, as lines for people: ``-`` what the old one says, ``+`` the new one."""
    found = [] if old.code == new.code else [f"exit code {old.code} -> {new.code}"]
    for name in sorted(old.texts.keys() | new.texts.keys()):
        a, b = old.texts.get(name), new.texts.get(name)
        if a is None or b is None:
            found.append(f"{name}: only in the {'new' if a is None else 'old'} version")
        elif a != b and not (texts_may_differ and _numbers(a) == _numbers(b)):
            changed = [
                line for line in difflib.unified_diff(a, b, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
            ]
            found.append(f"{name}: {len(changed)} lines")
            found += [f"    {line[:200]}" for line in changed[:MOST_SHOWN]]
    if not texts_may_differ:
        found += [
            f"{name}: other bytes"
            for name in sorted(old.files.keys() | new.files.keys())
            if old.files.get(name) != new.files.get(name)
        ]
    return found


def _numbers(lines: list[str]) -> list[str]:
    return NUMBER.findall("\n".join(lines))


def traces(given: list[Path]) -> list[Path]:
    """All traces that are files or lie in folders; of capture traces and execution traces none."""
    files = [file for path in given for file in (sorted(path.rglob("*.json.gz")) if path.is_dir() else [path])]
    return [file for file in files if "capture_traces" not in file.parts and "et" not in file.parts]


def main() -> int:
    """Compares, prints, and says by its exit code whether anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--texts", action="store_true", help="only words may differ, numbers may not")
    parser.add_argument("--verbs", action="store_true", help="no traces, only one run of every verb")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what OLD said in FILE (.json.gz)")
    args = parser.parse_args()
    runs = {f"verb {name}": words for name, words in RUNS.items()}
    if not args.verbs:
        files = traces(args.traces or [EXAMPLES, *([SHARED] if SHARED.is_dir() else [])])
        runs |= {f"trace {file.resolve()}": ("report", str(file.resolve()), "-o", "{out}/r", "--csv") for file in files}
    recorded = read_record(Path(args.old)) if args.old.endswith(".json.gz") else None
    differing = 0
    kept = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:

        def both(item: tuple[int, str]) -> tuple[str, Said, Said]:
            number, name = item
            place = Path(folder) / str(number)
            old = recorded[name] if recorded else run(args.old, runs[name], place / "old" / "out")
            new = run(args.new, runs[name], place / "new" / "out")
            shutil.rmtree(place)
            return name, old, new

        for name, old, new in pool.map(both, enumerate(runs)):
            found = differences(old, new, texts_may_differ=args.texts)
            differing += bool(found)
            if args.record:
                kept[name] = asdict(old)
            if found:
                print(name, *(f"  {line}" for line in found), sep="\n", flush=True)
    if args.record:
        args.record.write_bytes(gzip.compress(json.dumps(kept).encode(), 1))
    print(f"{differing} of {len(runs)} runs differ")
    return 1 if differing else 0


def read_record(path: Path) -> dict[str, Said]:
    """What a version said in an earlier run, per run."""
    return {name: Said(**said) for name, said in json.loads(gzip.decompress(path.read_bytes())).items()}


if __name__ == "__main__":
    sys.exit(main())
