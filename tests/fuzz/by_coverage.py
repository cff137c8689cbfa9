"""Inputs of every format, kept and changed further when they reach new code: libFuzzer through atheris (Linux, Python 3.11 to 3.13).

``python -m tests.fuzz.by_coverage FOUND [FLAG ...]`` starts from ``corpus/`` and writes what reaches more into the folder
FOUND; FLAGs are libFuzzer's, such as ``-max_total_time=120``. What fails is in a file beside, ``crash-...``, which
``python -m tests.fuzz.by_coverage FILE`` runs again.

``python -m tests.fuzz.by_coverage minimize FOUND ...`` writes ``corpus/`` anew: the smallest inputs that together reach
each line that any of FOUND and of the old corpus does.

An input is a line ``FORMAT WRITTEN`` and a content: ``bytes`` are the file's own, of a ``document`` the JSON is changed,
and then written in the format.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
#: Longer inputs take long and reach nothing new.
LONGEST_BYTES, SECONDS = 40_000, 10
_TRACED_CALLS = 10
#: Of all kept inputs but the first of each format.
_MOST_BYTES = 200_000
#: Not files: the words of a command, and what an agent asks.
ARGUMENTS, REQUEST = "arguments", "request"
#: Begins the names of kept inputs that once failed: put there by hand.
FAILED = "failed-"


class Target:
    """Runs inputs through the commands that read them, in a folder of its own; the imports are atheris' to watch."""

    def __init__(self, folder: Path) -> None:
        from tests.fuzz import commands, documents
        from tests.fuzz.test_mutated_formats import SAMPLES

        self._commands, self._documents, self._samples = commands, documents, SAMPLES
        folder = folder.resolve() / "a" / "b" / "c"
        #: The current folder that commands are to run in.
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        (folder / "around").mkdir()
        self._around = commands.sound_files(folder / "around")

    @cached_property
    def seeds(self) -> list[bytes]:
        """A sound input of every format, as a document and as bytes."""
        found = []
        for name, (_, written, _, _) in self._documents.FORMATS.items():
            document = self._documents.sound(name, self._around["LAKE"].parent)
            found.append(_written(name, "document", json.dumps(document).encode()))
            if name != "extension":
                found.append(_written(name, "bytes", written(document)))
        for name, make in self._samples.items():
            found.append(_written("kineto", "bytes", make(self.work / name).read_bytes()))
        found += [
            _written(ARGUMENTS, "document", json.dumps(command.split()).encode()) for command in self._commands.VERBS
        ]
        for asked in self._commands.REQUESTS.items():
            found.append(_written(REQUEST, "document", json.dumps(asked).encode()))
        return [each for each in found if len(each) <= LONGEST_BYTES]

    def run(self, content: bytes) -> None:
        """Raises what a command should not: anything but one of its exit codes. What is no input is passed over."""
        parts = parts_of(content)
        if parts is None:
            return
        name, written, content = parts
        if written == "document":
            try:
                document = json.loads(content)
            except (ValueError, RecursionError):
                return
        if name == ARGUMENTS and isinstance(document, list):
            as_bytes = (str(word).replace("\0", "").encode("utf-8", "surrogatepass") for word in document)
            words = map(os.fsdecode, as_bytes)
            given = [str(self._around["TRACE"]) if word == "FILE" else word for word in words]
            self._commands.survives(given, seconds=SECONDS)
        elif name == REQUEST and isinstance(document, list) and len(document) == 2 and isinstance(document[1], dict):
            self._commands.answers(str(document[0]), document[1], self._around["TRACE"].parent, seconds=SECONDS)
        elif name in self._documents.FORMATS:
            data = self._documents.FORMATS[name][1](document) if written == "document" else content
            self._commands.survives(self._commands.command_on(name, data, self._around, self.work), seconds=SECONDS)

    def changed(self, content: bytes, longest: int, seed: int, change_bytes: Callable[[bytes, int], bytes]) -> bytes:
        """An input of the same format, its document or its bytes changed."""
        parts = parts_of(content)
        if parts is None:
            return Random(seed).choice(self.seeds)
        name, written, content = parts
        if written == "document":
            try:
                content = json.dumps(self._documents.changed(json.loads(content), Random(seed))).encode()
            except (ValueError, RecursionError):
                return Random(seed).choice(self.seeds)
        else:
            content = change_bytes(content, longest - 100)
        return _written(name, written, content)[:longest]


def _written(name: str, written: str, content: bytes) -> bytes:
    return f"{name} {written}\n".encode() + content


def parts_of(content: bytes) -> tuple[str, str, bytes] | None:
    """Format, how it is written, content; None where it is no input, or would be code to run."""
    head, _, rest = content.partition(b"\n")
    name, _, written = head.decode("ascii", "replace").rpartition(" ")
    if written not in ("document", "bytes") or (written == "bytes" and name in ("extension", ARGUMENTS, REQUEST)):
        return None
    return name, written, rest


def fuzz(found: Path, flags: list[str]) -> None:
    """Changes inputs until one fails or the flags end it; what reaches new code is written into ``found``. A file is run."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    found = found.resolve()
    with tempfile.TemporaryDirectory() as folder, atheris.instrument_imports(include=["tracelens"]):
        target = Target(Path(folder))
        os.chdir(target.work)
        inputs = [found]
        if not found.is_file():
            inputs += [CORPUS, Path(folder) / "seeds"]
            for each in inputs:
                each.mkdir(parents=True, exist_ok=True)
            for number, content in enumerate(target.seeds):
                inputs[-1].joinpath(str(number)).write_bytes(content)

        def mutator(content: bytes, longest: int, seed: int) -> bytes:
            return target.changed(content, longest, seed, atheris.Mutate)

        limits = [
            f"-max_len={LONGEST_BYTES}",
            f"-artifact_prefix={found}.",
            "-report_slow_units=600",
            f"-timeout={60 * SECONDS}",
            *flags,
        ]
        atheris.Setup([sys.argv[0], *limits, *map(str, inputs)], target.run, custom_mutator=mutator)
        atheris.Fuzz()


def minimize(folders: Iterable[Path]) -> None:
    """Keeps one input of each format and, the small ones first, those that reach a line which none before did."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = {path.read_bytes() for each in (*folders, CORPUS) for path in each.resolve().iterdir()}
        target = Target(Path(folder))
        os.chdir(target.work)
        reached: set[object] = set()
        kept = []
        for content in sorted(inputs | {*target.seeds}, key=lambda each: (len(each), each)):
            name = (parts_of(content) or ("",))[0]
            try:
                found = {*_lines_of(partial(target.run, content)), name}
            except AssertionError as error:
                sys.stdout.write(f"left out, it fails: {content[:2000]!r}: {error}\n")
                continue
            is_first = name not in reached
            if is_first or (not found <= reached and sum(map(len, kept)) + len(content) < _MOST_BYTES):
                reached |= found
                kept.append(content)
    for path in CORPUS.iterdir():
        if not path.name.startswith(FAILED):
            path.unlink()
    for content in kept:
        CORPUS.joinpath(sha256(content).hexdigest()[:16]).write_bytes(content)
    sys.stdout.write(
        f"{len(kept)} of {len(inputs)} inputs, {sum(map(len, kept)) / 1e3:.0f} kB, reach {len(reached)} lines\n"
    )


def _lines_of(run: Callable[[], None]) -> set[tuple[str, int]]:
    """The lines of tracelens that run, in the first calls of each function."""
    lines: set[tuple[str, int]] = set()
    calls: Counter[CodeType] = Counter()

    def traced(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event == "call":
            calls[code] += 1
            if calls[code] > _TRACED_CALLS or "/tracelens/" not in code.co_filename:
                return None
        lines.add((code.co_filename, frame.f_lineno))
        return traced

    sys.settrace(traced)
    try:
        run()
    finally:
        sys.settrace(None)
    return lines


if __name__ == "__main__":
    if sys.argv[1] == "minimize":
        minimize(map(Path, sys.argv[2:]))
    else:
        fuzz(Path(sys.argv[1]), sys.argv[2:])
