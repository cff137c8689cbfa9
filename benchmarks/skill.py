"""Whether who follows the skill files is told the cause, and in how many tokens: python -m benchmarks.skill

Thirty bottlenecks are planted: 18 kinds in a simulated program, six late ranks, six changes between two recordings.
For each the script does what the skill says first: the first command of that step of the skill file, and the MCP tool
of the same name. It counts tokens of the answer (two characters each, fewer than any tokenizer puts into one) and looks
for the planted cause in the first sentences, else anywhere in the answer. No language model is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import shlex
import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from tests.analysis.findings.labelled.program import PROPERTIES, Program
from tests.analysis.findings.labelled.test_planted import (
    attention,
    cases,
    communication,
    copies,
    pause,
    slow_gemm,
    synchronized,
)
from tests.ranks.planted import Job
from tracelens.cli import main as command
from tracelens.cli.agents.tools import CHARACTERS_PER_TOKEN, Roots, answered
from tracelens.types.records import Record

Plant = Callable[[Program], object]
_STEPS = 4


class Planted(Record, frozen=True, kw_only=True):
    """``skill``, the ``number`` of its step, what stands for its ``files``, and the ``cause`` as an answer says it."""

    name: str
    skill: str
    number: int
    files: dict[str, str]
    cause: str


def write(program: Program, path: Path) -> None:
    path.write_text(json.dumps({"traceEvents": program.built.events, "deviceProperties": [PROPERTIES[program.device]]}))


def single(folder: Path) -> Iterator[Planted]:
    """One case of each kind, between healthy products; the sentence names the finding."""
    kinds: dict[str, object] = {}
    for case in cases():
        if case.kind in kinds:
            continue
        kinds[case.kind] = case
        program = Program(case.device)
        program.healthy()
        case.plant(program)
        program.healthy()
        program.wait()
        file = f"one{len(kinds)}.json"
        write(program, folder / file)
        said = case.kind.replace("_", " ")
        yield Planted(name=case.kind, skill="tracelens-read", number=1, files={"trace.json.gz": file},
                      cause=rf"Fix finding 1 \({re.escape(said)}\)")  # fmt: skip


def late_ranks(folder: Path) -> Iterator[Planted]:
    for number, (ranks, late, late_us) in enumerate(
        [(4, 1, 300), (4, 3, 150), (8, 0, 300), (8, 5, 100), (8, 7, 600), (2, 1, 200)]
    ):
        job = folder / f"job{number}"
        job.mkdir()
        Job(ranks=ranks, ranks_per_host=ranks, straggler=late, late_us=late_us, seed=number).write(job)
        yield Planted(name=f"rank {late} of {ranks} late by {late_us} µs", skill="tracelens-read", number=2,
                      files={"traces/": job.name}, cause=rf"rank {late} is late on its own")  # fmt: skip


def nothing(program: Program) -> None:
    del program


#: What is in every step before, and after, and how the sentence names the difference.
CHANGES: tuple[tuple[str, Plant, Plant, str], ...] = (
    ("Python between launches", nothing, pause("python_function", "train.py(31): augment", 2000.0), "idle .*Python"),
    ("values read back", lambda program: program.healthy(20), synchronized(20), "idle .*synchronization"),
    ("an all-reduce", nothing, communication(3.0), "exposed communication .*AllReduce.* is new, 1 call"),
    ("a copy from pageable memory", nothing, copies(3.0), "Memcpy HtoD is new, 1 call"),
    ("a slow product", slow_gemm(1.0), slow_gemm(3.0), "GEMM .*3 times as long, kernels of the same name, 4 calls"),
    ("attention from parts", nothing, attention(32, 2048), "bmm is new, 2 calls"),
)


def changes(folder: Path) -> Iterator[Planted]:
    for number, (name, *plants, cause) in enumerate(CHANGES):
        for file, plant in zip(("a", "b"), plants, strict=True):
            program = Program("h100-sxm")
            for _ in range(_STEPS):
                program.healthy(20)
                plant(program)
                program.healthy(20)
                program.wait()
                program.step()
            write(program, folder / f"{file}{number}.json")
        yield Planted(name=f"since before: {name}", skill="tracelens-compare", number=1, cause=cause,
                      files={"before.json.gz": f"a{number}.json", "after.json.gz": f"b{number}.json"})  # fmt: skip


def every(folder: Path) -> list[Planted]:
    """All thirty, whose files are in ``folder``."""
    return [*single(folder), *late_ranks(folder), *changes(folder)]


def step_of(skill: str, number: int) -> list[str]:
    """The words of the first command of a step of a skill file."""
    text = resources.files("tracelens.cli.agents").joinpath(f"skills/{skill}.md").read_text(encoding="utf-8")
    (step,) = re.findall(rf"^{number}\. .*?(?=^\d\. |^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return shlex.split(next(line for line in step.splitlines() if line.strip().startswith("tracelens ")))[1:]


class Answered(Record, frozen=True, kw_only=True):
    """``where``: ``first``, ``answer`` or nowhere (empty)."""

    tokens: int
    where: str


def by_command(planted: Planted, folder: Path) -> Answered:
    """What the command prints; first is what stands above its first figures."""
    words = [planted.files.get(word, word) for word in step_of(planted.skill, planted.number)]
    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out):
        command(words)
    text = out.getvalue()
    head, _, rest = text.partition("\n\n")
    if words[0] != "report":
        # Who is late, and what changed most, stand below what was read
        head += "\n" + rest.partition("\n\n" if words[0] == "collectives" else "\n")[0]
    return _found(planted, len(text), " ".join(head.split()), " ".join(text.split()))


def by_tool(planted: Planted, folder: Path) -> Answered:
    """What the tool of the same name answers, with the files as its arguments."""
    verb, *words = step_of(planted.skill, planted.number)
    files = [planted.files[word] for word in words if word in planted.files]
    arguments = dict(zip(("a", "b") if verb == "compare" else ("trace",), files, strict=True))
    text, failed = answered(verb, arguments, Roots.of([folder]))
    assert not failed, text
    lines = [line.removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    says, whole = (part.encode().decode("unicode_escape") for part in (lines[0], " ".join(lines)))
    return _found(planted, len(text), says, whole)


def _found(planted: Planted, characters: int, first: str, whole: str) -> Answered:
    where = next((name for name, text in (("first", first), ("answer", whole)) if re.search(planted.cause, text)), "")
    return Answered(tokens=characters // CHARACTERS_PER_TOKEN, where=where)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the skill files lead to, on 30 planted bottlenecks")
    parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for planted in every(folder):
            rows.append((planted, by_command(planted, folder), by_tool(planted, folder)))
            name, command_, tool = rows[-1][0].name, *rows[-1][1:]
            print(
                f"{name:<48} {command_.where or 'NO':<16}{command_.tokens:>6}  {tool.where or 'NO':<16}{tool.tokens:>6}"
            )
    for title, at in (("command", 1), ("MCP tool", 2)):
        answers = [row[at] for row in rows]
        tokens = [each.tokens for each in answers]
        first = sum(each.where == "first" for each in answers)
        named = sum(bool(each.where) for each in answers)
        print(f"{title}: cause in the first sentences {first} of {len(rows)}, in the first answer {named}; "
              f"{statistics.median(tokens):g} tokens in the median, {max(tokens)} at most")  # fmt: skip


if __name__ == "__main__":
    main()
