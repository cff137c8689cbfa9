"""Small traces cut from recorded ones, and damage done to their text at known places."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from tracelens.trace.table import DEVICE_KINDS, kind_of_category

#: (start in ns, name) of a complete event: what of it can be looked for in what was read.
Row = tuple[int, str]

_KERNELS, _OTHERS = 10, 50
_LARGEST_EVENT = 4000
_SEPARATORS = (", ", ",", ",\n  ", "\n,\n", ", \r\n\t")
# What damage, hosts and other writers put where it does not belong.
_TOKENS = (
    b"NaN", b"-Infinity", b"nan", b"null", b"true", b'"', b"\\", b"\\u", b"\\ud800", b"\\x", b"]", b"[", b"}", b"{",
    b",", b",,", b":", b"]}", b"}]", b"},{", b'},{"ph":', b'], "traceEvents": [', b"\x00", b"\x00" * 40, b"\xff",
    b"\xed\xa0\x80", b"\x1b[31m", b"\n", b"\t", b" " * 5000, b"9" * 40, b"1e999", b"-1", b"0x7", b"/* */",
    b"[" * 10_000, b'{"a":' * 10_000, b"\xef\xbb\xbf", b'"a\\"', b"'", b"1 2", b"=1+1",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """``text[start:stop]`` becomes ``new``."""

    start: int
    stop: int
    new: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The text of a trace, where each of its events stands in it, and the rows that the whole ones of them are.

    ``kernels``: which of them keep a device busy.
    """

    name: str
    text: bytes
    spans: tuple[tuple[int, int], ...]
    rows: tuple[Row | None, ...]
    kernels: tuple[bool, ...]

    @property
    def list_end(self) -> int:
        return self.spans[-1][1]

    def edited(self, edits: Sequence[Edit]) -> bytes:
        """The text with edits that do not overlap."""
        text = self.text
        for edit in sorted(edits, key=lambda e: e.start, reverse=True):
            text = text[: edit.start] + edit.new + text[edit.stop :]
        return text

    def readable(self, edits: Sequence[Edit]) -> Counter[Row]:
        """The rows that no edit can have hurt: neither in the event, nor at its border to a neighbor."""
        hurt = self._hurt(edits)
        return Counter(row for i, row in enumerate(self.rows) if row is not None and i not in hurt)

    def readable_kernels(self, edits: Sequence[Edit]) -> Counter[str]:
        """How often each kernel (copy, memset) is among those rows."""
        hurt = self._hurt(edits)
        rows = zip(self.rows, self.kernels, strict=True)
        return Counter(row[1] for i, (row, kernel) in enumerate(rows) if row and kernel and i not in hurt)

    def _hurt(self, edits: Sequence[Edit]) -> set[int]:
        hurt: set[int] = set()
        starts = [start for start, _ in self.spans]
        for edit in edits:
            # An edit between two events takes both down at most; one inside an event, that and its neighbors.
            first = bisect_right(starts, edit.start) - 1
            last = bisect_right(starts, max(edit.stop - 1, edit.start)) - 1
            hurt.update(range(first - 1, last + 2))
        return hurt


def sampled(path: Path, random: Random) -> Sample:
    """Some kernels of a recorded trace with their launches and the ops above, other events, and all metadata keys."""
    trace = dict(_loaded(path))
    events: list[dict[str, Any]] = trace.pop("traceEvents")
    correlated = [e for e in events if e.get("ph") == "X" and "correlation" in e.get("args", ())]
    launched = [e for e in correlated if "runtime" not in e["cat"]]
    wanted = {e["args"]["correlation"] for e in random.sample(launched, min(_KERNELS, len(launched)))}
    linked = [e for e in correlated if e["args"]["correlation"] in wanted]
    launches: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for each in sorted(linked, key=itemgetter("ts")):
        launches[each["pid"], each["tid"]].append(each["ts"])
    picked = {id(e) for e in (*linked, *random.sample(events, min(_OTHERS, len(events))))}
    picked |= {id(e) for e in events if e.get("ph") == "X" and _is_above(e, launches.get((e["pid"], e["tid"]), []))}
    picked |= {id(e) for e in events if e.get("cat") == "ac2g" and e.get("id") in wanted}
    kept = [e for e in events if id(e) in picked and len(json.dumps(e)) < _LARGEST_EVENT]
    trace["traceEvents"] = []
    head, tail = json.dumps(trace).rsplit("[]", 1)
    if random.random() < 0.3:
        # As Kineto writes it: more keys behind the list.
        head, tail = '{"schemaVersion": 1, "traceEvents": ', ', "traceName": "x", "displayTimeUnit": "ms"}'
    separator = random.choice(_SEPARATORS)
    text, spans = bytearray(f"{head}[".encode()), []
    for number, event in enumerate(kept):
        text += separator.encode() if number else b""
        line = json.dumps(event).encode()
        spans.append((len(text), len(text) + len(line)))
        text += line
    text += f"]{tail}".encode()
    rows = tuple((round(Decimal(str(e["ts"])) * 1000), e["name"]) if e.get("ph") == "X" else None for e in kept)
    kernels = tuple(
        row is not None and kind_of_category(e.get("cat", "")) in DEVICE_KINDS
        for row, e in zip(rows, kept, strict=True)
    )
    return Sample(name=path.name, text=bytes(text), spans=tuple(spans), rows=rows, kernels=kernels)


@lru_cache(maxsize=1)
def _loaded(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def _is_above(event: dict[str, Any], starts: list[float]) -> bool:
    """Whether a launch of its thread starts within it."""
    first = bisect_left(starts, event["ts"])
    return first < len(starts) and starts[first] <= event["ts"] + event.get("dur", 0)


def byte_edits(sample: Sample, random: Random) -> list[Edit]:
    """One to three edits at places of their own."""
    edits: list[Edit] = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        edit = random.choice(_MUTATORS)(sample, random)
        if all(edit.stop < other.start or other.stop < edit.start for other in edits):
            edits.append(edit)
    return edits


def _place(sample: Sample, random: Random) -> int:
    """Mostly inside the list; also in the metadata around it."""
    if random.random() < 0.9:
        return random.randrange(sample.spans[0][0], sample.list_end)
    return random.randrange(len(sample.text))


def _flipped_bit(sample: Sample, random: Random) -> Edit:
    at = _place(sample, random)
    return Edit(start=at, stop=at + 1, new=bytes([sample.text[at] ^ (1 << random.randrange(8))]))


def _changed_byte(sample: Sample, random: Random) -> Edit:
    at = _place(sample, random)
    return Edit(start=at, stop=at + 1, new=bytes([random.randrange(256)]))


def _structure(sample: Sample, random: Random) -> Edit:
    """A quote, bracket, colon or comma becomes another one, or goes."""
    at = _place(sample, random)
    while at < len(sample.text) - 1 and sample.text[at : at + 1] not in b'"{}[]:,':
        at += 1
    return Edit(start=at, stop=at + 1, new=random.choice((b"", b'"', b"{", b"}", b"[", b"]", b":", b",", b" ")))


def _removed(sample: Sample, random: Random) -> Edit:
    at = _place(sample, random)
    return Edit(start=at, stop=min(at + random.choice((1, 5, 50, 500, 3000)), len(sample.text)), new=b"")


def _inserted(sample: Sample, random: Random) -> Edit:
    at = _place(sample, random)
    return Edit(start=at, stop=at, new=random.choice(_TOKENS))


def _replaced_value(sample: Sample, random: Random) -> Edit:
    """What stands behind a colon, up to the next comma or brace."""
    start = sample.text.find(b": ", _place(sample, random)) + 2
    ends = [end for mark in (b",", b"}") if (end := sample.text.find(mark, start)) > 0]
    stop = min(ends, default=start)
    return Edit(start=start, stop=stop, new=random.choice(_TOKENS))


def _repeated(sample: Sample, random: Random) -> Edit:
    at = _place(sample, random)
    return Edit(start=at, stop=at, new=sample.text[at : at + random.choice((3, 40, 900))])


def _zeroed(sample: Sample, random: Random) -> Edit:
    """A block that the disk lost."""
    at = _place(sample, random)
    stop = min(at + random.choice((16, 512)), len(sample.text))
    return Edit(start=at, stop=stop, new=b"\x00" * (stop - at))


def _cut(sample: Sample, random: Random) -> Edit:
    return Edit(start=_place(sample, random), stop=len(sample.text), new=b"")


def _prefixed(_: Sample, random: Random) -> Edit:
    return Edit(start=0, stop=0, new=random.choice((b"\xef\xbb\xbf", b"\n\n", b"\x00", b"x", b"[")))


_MUTATORS: tuple[Callable[[Sample, Random], Edit], ...] = (
    _flipped_bit, _changed_byte, _structure, _structure, _removed, _inserted, _inserted, _replaced_value, _repeated,
    _zeroed, _cut, _prefixed,
)  # fmt: skip
