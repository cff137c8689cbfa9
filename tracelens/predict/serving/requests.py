"""Requests: when they arrive, how long prompt and answer are; generated from a seed, or replayed from public traces
and files of serving benchmarks.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import FIRST_ROW, Number, place, read_rows
from tracelens.files.documents import expected, json_of, text_of
from tracelens.types import units
from tracelens.types.records import Record

FS_PER_S = 10**15
#: Tokens of a prompt or answer: far above every model's context.
LONGEST = 10_000_000
#: Requests per second: one in thirty years, and as many as femtoseconds can tell apart.
SLOWEST, FASTEST = 1e-9, 1e12
#: A run's requests are all in memory, some hundred bytes each.
MOST_REQUESTS = 100_000_000
_MOST_VARIATION = 1e6
#: Numbers for the pieces of a session: more than it may have.
_NAMES = 4 * LONGEST
_MOST_SPREAD = 1000
_LONGEST_PAUSE_S = 86_400


class Requests(Record, frozen=True, kw_only=True, eq=False):
    """Columns, one entry per request in the order of arrival.

    ``arrival_fs`` is None in a closed loop: ``concurrency`` requests are in flight at any time, the next arrives when
    one ends. ``pieces`` are hashes of a prompt's consecutive beginnings, each ``piece_tokens`` long, empty where
    nothing is shared. ``priority``: lower is served first where the order is by priority.

    ``sessions``: the number of each request's conversation, and ``repeated`` how many tokens at the start of its prompt
    are the prompt and answer of that session's request before, which may still be cached. ``after``: the request that
    must be answered before this one comes, ``think_fs`` later, -1: it comes by itself; those that do not, stand last
    and have no ``arrival_fs``. ``openings``: the number of the text that a session begins with, ``repeated`` tokens of
    its first prompt. ``answered``: as ``pieces`` of prompt and answer, as far as they are known. ``adapters``: the
    number of each request's LoRA adapter; empty where there is one at most.
    """

    arrival_fs: Sequence[int] | None
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    concurrency: int | None = None
    pieces: Sequence[Sequence[int]] = ()
    piece_tokens: int = 0
    priority: Sequence[int] = ()
    source: str = "generated"
    sessions: Sequence[int] = ()
    repeated: Sequence[int] = ()
    after: Sequence[int] = ()
    think_fs: int = 0
    openings: Sequence[int] = ()
    answered: Sequence[Sequence[int]] = ()
    adapters: Sequence[int] = ()

    def __post_init__(self) -> None:
        if len(self.input_tokens) != len(self.output_tokens):
            raise UsageError(f"{len(self.input_tokens)} prompt lengths but {len(self.output_tokens)} output lengths")
        if (self.arrival_fs is None) == (self.concurrency is None):
            raise UsageError("requests need either arrival times or a concurrency, not both")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.arrival_fs and (self.arrival_fs[0] < 0 or list(self.arrival_fs) != sorted(self.arrival_fs)):
            raise UsageError("requests need to be in the order of their arrival, from 0 on")
        if len(self) and (min(self.input_tokens) < 1 or min(self.output_tokens) < 1):
            raise UsageError("a request needs at least one prompt token and one output token")

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def comes_by_itself(self) -> int:
        """How many requests wait for no other's answer."""
        return self.after.count(-1) if self.after else len(self)

    def choosing(self, adapters: int, seed: int) -> Requests:
        """With an adapter of so many for each request that has none."""
        if self.adapters or adapters < 2:
            return self
        chosen = np.random.default_rng(seed).integers(0, adapters, len(self)).tolist()
        return dataclasses.replace(self, adapters=chosen)

    def in_blocks(self, block_tokens: int) -> Requests:
        """With what sessions say again as pieces of a block; as it is where pieces are known, or no session."""
        if self.pieces or not self.repeated:
            return self
        last: dict[int, Sequence[int]] = {}
        pieces, answered = [], []
        for index, (session, repeated) in enumerate(zip(self.sessions, self.repeated, strict=True)):
            given, said = self.input_tokens[index], repeated // block_tokens
            # Of an answer's last token no key is computed
            whole = (given + self.output_tokens[index] - 1) // block_tokens
            before = last.get(session)
            if before is None:
                start = -(self.openings[session] + 1) * _NAMES if self.openings else 0
                known: Sequence[int] = range(start, start + said)
            else:
                known = before[:said]
            if isinstance(before, range) and len(known) == len(before):
                found: Sequence[int] = range(before.start, before.start + whole)
            else:
                first = (index + 1) * _NAMES
                found = range(first + len(known), first + whole)
                found = (*known, *found) if known else found
            last[session] = found
            pieces.append(found[: given // block_tokens])
            answered.append(found)
        return dataclasses.replace(self, pieces=pieces, answered=answered, piece_tokens=block_tokens)


def _mean(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(units.count(text))


class Lengths(Record, frozen=True, kw_only=True):
    """A distribution of token counts: ``fixed``, ``uniform``, ``lognormal``, ``zipf`` or ``empirical``.

    ``mean`` is the mean (of ``zipf``: the largest value); ``spread`` the half width over the mean (``uniform``), the
    coefficient of variation (``lognormal``) or the exponent (``zipf``). ``values`` are drawn from with equal chance.
    """

    kind: str = "fixed"
    mean: float = 1.0
    spread: float = 0.0
    values: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """``512``, ``uniform:512:0.5``, ``lognormal:512:1.2`` or ``zipf:4096:1.5``."""
        kind, _, rest = text.partition(":")
        try:
            if not rest:
                return cls(mean=float(units.count(text)))
            mean, *more = rest.split(":")
            numbers = [_mean(mean), *map(float, more)]
        except (ValueError, UsageError):
            raise UsageError(f"a length takes N or KIND:MEAN:SPREAD, not {text!r}") from None
        if kind not in ("fixed", "uniform", "lognormal", "zipf") or len(numbers) > 2:
            raise UsageError.unknown("length distribution", kind, ("fixed", "uniform", "lognormal", "zipf"))
        return cls(kind=kind, mean=numbers[0], spread=numbers[1] if len(numbers) > 1 else 0.0)

    @classmethod
    def of(cls, given: int | str | Lengths) -> Lengths:
        """A number, a text as ``parse`` reads it, or lengths."""
        return cls(mean=given) if isinstance(given, int) else cls.parse(given) if isinstance(given, str) else given

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths, at least 1 each."""
        if not 1 <= self.mean <= LONGEST or not 0 <= self.spread <= _MOST_SPREAD:
            raise UsageError(
                f"a length needs a mean from 1 to {LONGEST:,} and a spread from 0 to {_MOST_SPREAD}, "
                f"not {self.mean:g}, {self.spread:g}"
            )
        if self.kind == "fixed":
            return [round(self.mean)] * count
        if self.kind == "uniform":
            drawn = rng.uniform(self.mean * (1 - self.spread), self.mean * (1 + self.spread), count)
        elif self.kind == "lognormal":
            variance = np.log1p(self.spread**2)
            drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)
        elif self.kind == "zipf":
            ranks = np.arange(1, int(self.mean) + 1, dtype=float)
            weights = ranks ** -(self.spread or 1.0)
            drawn = rng.choice(ranks, size=count, p=weights / weights.sum())
        elif self.kind == "empirical" and self.values:
            drawn = rng.choice(np.array(self.values), size=count)
        else:
            raise UsageError.unknown("length distribution", self.kind, ("fixed", "uniform", "lognormal", "zipf"))
        return [max(1, round(value)) for value in drawn.tolist()]


class Arrivals(Record, frozen=True, kw_only=True):
    """When requests come: ``poisson``, ``gamma`` (``variation`` is its coefficient of variation), ``constant`` or
    ``burst`` (groups of ``variation`` requests at once), at ``rate`` per second on average; or ``closed`` at
    ``concurrency``.
    """

    kind: str = "poisson"
    rate: float | None = None
    variation: float = 1.0
    concurrency: int | None = None

    def draw(self, rng: np.random.Generator, count: int) -> list[int] | None:
        """Arrival times in fs; None in a closed loop."""
        if self.kind == "closed":
            return None
        if self.rate is None or not SLOWEST <= self.rate <= FASTEST:
            raise UsageError(f"{self.kind} arrivals need a rate from {SLOWEST:g} to {FASTEST:g} per second")
        if not 1 / _MOST_VARIATION <= self.variation <= _MOST_VARIATION:
            raise UsageError(f"a variation of arrivals must be from {1 / _MOST_VARIATION:g} to {_MOST_VARIATION:g}")
        gaps: npt.NDArray[np.float64]
        if self.kind == "constant":
            return [round(index * FS_PER_S / self.rate) for index in range(count)]
        if self.kind == "poisson":
            gaps = rng.exponential(1 / self.rate, count)
        elif self.kind == "gamma":
            shape = 1 / self.variation**2
            gaps = rng.gamma(shape, 1 / (self.rate * shape), count)
        elif self.kind == "burst":
            size = max(1, round(self.variation))
            starts = np.cumsum(rng.exponential(size / self.rate, -(-count // size)))
            return [round(value * FS_PER_S) for value in np.repeat(starts, size)[:count].tolist()]
        else:
            raise UsageError.unknown("arrival process", self.kind, ("poisson", "gamma", "constant", "burst", "closed"))
        return [round(value * FS_PER_S) for value in np.cumsum(gaps).tolist()]


class Workload(Record, frozen=True, kw_only=True):
    """What ``generate`` makes requests from: ``count`` of them, or as many as arrive in ``duration_s``.

    ``shared_tokens``: every prompt begins with one of ``shared_groups`` texts of that length. ``turns``: requests of a
    session, each of which says all before it again and comes ``think_s`` after the answer; ``arrivals`` are then those
    of sessions, ``input`` is what each request adds. ``adapters``: how many LoRA adapters requests, or sessions, choose
    from with equal chance; no two of them share a cached prefix.
    """

    arrivals: Arrivals = msgspec.field(default_factory=Arrivals)
    input: Lengths = msgspec.field(default_factory=Lengths)
    output: Lengths = msgspec.field(default_factory=Lengths)
    count: int | None = None
    duration_s: float | None = None
    seed: int = 0
    shared_tokens: int = 0
    shared_groups: int = 1
    adapters: int = 1
    turns: Lengths = msgspec.field(default_factory=Lengths)
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"a seed must be 0 or more, not {self.seed}")
        if self.shared_tokens < 0 or self.shared_groups < 1:
            raise UsageError(
                f"shared prefixes need at least 1 group and 0 tokens, not {self.shared_groups} and {self.shared_tokens}"
            )
        if not 0 <= self.think_s <= _LONGEST_PAUSE_S:
            raise UsageError(f"the pause between a session's requests must be 0 s to a day, not {self.think_s:g} s")

    def generate(self) -> Requests:
        """The requests. Arrivals, prompts, answers, shared texts, turns and adapters have a stream of random numbers
        each.
        """
        streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(self.seed).spawn(6)]
        count = self._count()
        if count > MOST_REQUESTS:
            raise UsageError(f"a run has at most {MOST_REQUESTS:,} requests")
        arrival = self.arrivals.draw(streams[0], count)
        if arrival is not None and self.duration_s is not None:
            end = round(self.duration_s * FS_PER_S)
            arrival = list(itertools.takewhile(lambda time: time < end, arrival))
            if self.count is not None:
                arrival = arrival[: self.count]
            count = len(arrival)
        if self.turns != Lengths():
            return self._sessions(arrival, count, streams)
        inputs = self.input.draw(streams[1], count)
        pieces: list[tuple[int, ...]] = []
        if self.shared_tokens:
            groups = streams[3].integers(0, self.shared_groups, count).tolist()
            inputs = [max(length, self.shared_tokens + 1) for length in inputs]
            pieces = [(group,) for group in groups]
        adapters = self._adapters(streams[5], count)
        if adapters and pieces:
            pieces = [(group * self.adapters + adapter,) for (group,), adapter in zip(pieces, adapters, strict=True)]
        return Requests(
            arrival_fs=arrival,
            input_tokens=inputs,
            output_tokens=self.output.draw(streams[2], count),
            concurrency=self.arrivals.concurrency if arrival is None else None,
            pieces=pieces,
            piece_tokens=self.shared_tokens,
            adapters=adapters,
        )

    def _adapters(self, rng: np.random.Generator, count: int) -> list[int]:
        return rng.integers(0, self.adapters, count).tolist() if self.adapters > 1 else []

    def _sessions(self, arrival: list[int] | None, count: int, streams: Sequence[np.random.Generator]) -> Requests:
        """Sessions that arrive then, of ``count`` requests in all where that many were asked for: the first of each
        session, then the others.
        """
        turns = np.array(self.turns.draw(streams[4], count), dtype=np.int64)
        ends = np.cumsum(turns)
        if self.count is not None:
            turns = np.minimum(turns, np.maximum(self.count - (ends - turns), 0))
            turns = turns[turns > 0]
        sessions, total = len(turns), int(turns.sum())
        if total > MOST_REQUESTS:
            raise UsageError(f"a run has at most {MOST_REQUESTS:,} requests")
        # Stable by turn: all first ones, all second ones ...
        session = np.repeat(np.arange(sessions), turns)
        turn = np.arange(total) - np.repeat(np.cumsum(turns) - turns, turns)
        order = np.argsort(turn, kind="stable")
        inputs, outputs = self.input.draw(streams[1], total), self.output.draw(streams[2], total)
        last, said, after, repeated = [-1] * sessions, [0] * sessions, [], []
        for index, each in enumerate(session[order].tolist()):
            if last[each] < 0:
                inputs[index] = max(inputs[index], self.shared_tokens + 1)
            after.append(last[each])
            repeated.append(said[each] or self.shared_tokens)
            inputs[index] += said[each]
            last[each], said[each] = index, inputs[index] + outputs[index]
        openings = streams[3].integers(0, self.shared_groups, sessions).tolist() if self.shared_tokens else ()
        chosen = self._adapters(streams[5], sessions)
        if chosen and openings:
            openings = [group * self.adapters + adapter for group, adapter in zip(openings, chosen, strict=True)]
        return Requests(
            arrival_fs=None if arrival is None else arrival[:sessions],
            input_tokens=inputs,
            output_tokens=outputs,
            concurrency=self.arrivals.concurrency if arrival is None else None,
            sessions=session[order].tolist(),
            repeated=repeated,
            after=after,
            think_fs=round(self.think_s * FS_PER_S),
            openings=openings,
            adapters=[chosen[each] for each in session[order].tolist()] if chosen else (),
        )

    def _count(self) -> int:
        if self.count is not None and self.count < 0:
            raise UsageError(f"the number of requests must not be negative: {self.count}")
        if self.duration_s is None:
            if self.count is None:
                raise UsageError("give a number of requests or a duration")
            return self.count
        if self.arrivals.rate is None:
            raise UsageError("a duration needs an arrival rate; a closed loop needs a number of requests")
        expected = min(self.arrivals.rate * self.duration_s, 2.0 * MOST_REQUESTS)
        # Six standard deviations of the count, so that the draw does not end before the duration does
        spread = max(self.arrivals.variation, 1.0)
        return int(expected + 6 * spread * (expected**0.5) + 100 * spread)


#: Tokens per hash in Mooncake's traces (FAST'25 artifact README).
MOONCAKE_PIECE_TOKENS = 512
#: Characters per token where a conversation's texts carry no counts: English text under byte-pair encodings.
CHARACTERS_PER_TOKEN = 4


_WHAT = "a request file"
#: Up to 300 years after 1970; durations too.
_ARRIVAL_S, _ARRIVAL_NS = Number(least=-1e10, most=1e13), Number(least=-1e19, most=1e19)
#: Keys of arrivals in JSON, and how many of their units a second has.
_ARRIVALS = (("arrival_time_ns", _ARRIVAL_NS, 1e9), ("arrival_time", _ARRIVAL_S, 1.0), ("arrival_s", _ARRIVAL_S, 1.0))
#: Rows of cancelled requests have none.
_TOKENS = Number(least=0, most=LONGEST)
#: Columns and keys that name a request's session, and its LoRA adapter.
_SESSION, _ADAPTER = ("session_id", "Session ID", "session"), ("adapter", "lora_name", "lora_id")
_NONE: Mapping[str, Any] = {}
#: Columns of public traces in CSV: arrival, prompt, answer.
_CSV_COLUMNS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
)


class MeasuredRequests(Record, frozen=True, kw_only=True):
    """Requests of a real run with what was measured, seconds from the run's start; None where it was not."""

    requests: Requests
    scheduled_s: tuple[float, ...] | None = None
    first_s: tuple[float, ...] | None = None
    last_s: tuple[float, ...] | None = None
    facts: tuple[tuple[str, str], ...] = ()


class _Row(Record, frozen=True, kw_only=True):
    arrival_s: float
    input_tokens: int
    output_tokens: int
    pieces: tuple[int, ...] = ()
    session: str = ""
    adapter: str = ""


def read_requests(path: str | os.PathLike[str], *, run: str | None = None) -> MeasuredRequests:
    """Requests of a file, by its columns or keys.

    CSV: vLLM request logs (``arrival_s, input_toks, output_toks`` and times; ``run`` picks a ``gpu`` of several), Azure
    (``TIMESTAMP, ContextTokens, GeneratedTokens``, or ``arrived_at, num_prefill_tokens, num_decode_tokens``), BurstGPT
    (``Timestamp, Request tokens, Response tokens``). JSONL: Mooncake (``timestamp`` in ms, ``input_length``,
    ``output_length``, ``hash_ids``), LLMServingSim (``arrival_time_ns``, or ``arrival_time`` in s, ``input_toks``,
    ``output_toks``). A column or key ``session_id`` (BurstGPT: ``Session ID``) says to which conversation a request
    belongs: where its prompt is as long as the prompt and answer before it, it begins with both, where it is longer
    than that prompt alone, with it; else it begins anew. JSON: vLLM's benchmark result (``input_lens``,
    ``output_lens``, ``ttfts``, ``itls``), ShareGPT conversations (lengths only, everything arrives at once). InputError
    for anything else, and for requests that do not say when they arrive. Rows without tokens (cancelled requests) are
    left out.
    """
    file = Path(path)
    if file.suffix == ".jsonl":
        return _plain(_json_lines(file), file)
    if file.suffix == ".json":
        document = json_of(file, _WHAT)
        with expected(file, _WHAT):
            return _json(document, file)
    return _csv(file, run)


def _csv(file: Path, run: str | None) -> MeasuredRequests:
    rows, names = read_rows(file)
    if not rows:
        raise InputError(f"{file} has no rows")
    columns = tuple(names)
    if "input_toks" in columns and "arrival_s" in columns:
        return _vllm_log(rows, file, run)
    for stamp, given, made in _CSV_COLUMNS:
        if given in columns:
            _need(file, columns, (stamp, made))
            of_file = (
                _row(
                    _seconds(row[stamp], place(str(file), at, stamp)), row[given], row[made],
                    f"{file}, row {at + FIRST_ROW}", named=row,
                )
                for at, row in enumerate(rows)
            )  # fmt: skip
            return _plain(of_file, file)
    raise InputError(f"{file} has none of the known columns: {', '.join(columns)}")


def _need(file: Path, columns: Sequence[str], names: Iterable[str]) -> None:
    for name in names:
        if name not in columns:
            raise InputError(f"{file} has no column {name!r}; it has {', '.join(columns)}")


def _row(
    arrival: object,
    given: object,
    made: object,
    where: str,
    pieces: Sequence[int] = (),
    named: Mapping[str, Any] = _NONE,
) -> _Row:
    """InputError, beginning with ``where``, for what is no time or number of tokens."""
    return _Row(
        arrival_s=_ARRIVAL_S.of(arrival, f"{where}: the arrival"),
        input_tokens=_TOKENS.count(given, f"{where}: the number of prompt tokens"),
        output_tokens=_TOKENS.count(made, f"{where}: the number of output tokens"),
        pieces=tuple(pieces),
        session=_name_of(named, _SESSION),
        adapter=_name_of(named, _ADAPTER),
    )


def _name_of(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """Empty where a row names none."""
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), "")


def _seconds(stamp: str, where: str) -> float:
    try:
        # Azure writes seven digits of a second, Python reads six
        return datetime.fromisoformat(stamp.strip()[:26]).timestamp()
    except (OverflowError, OSError, ValueError):
        return _ARRIVAL_S.of(stamp, where)


def _plain(rows: Iterable[_Row], file: Path) -> MeasuredRequests:
    kept = sorted(
        (row for row in rows if row.input_tokens > 0 and row.output_tokens > 0), key=lambda row: row.arrival_s
    )
    if not kept:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    start = kept[0].arrival_s
    has_pieces = any(row.pieces for row in kept)
    return MeasuredRequests(
        requests=Requests(
            arrival_fs=[round((row.arrival_s - start) * FS_PER_S) for row in kept],
            input_tokens=[row.input_tokens for row in kept],
            output_tokens=[row.output_tokens for row in kept],
            # The last hash may cover a part of a piece, which is not found again
            pieces=[row.pieces[: row.input_tokens // MOONCAKE_PIECE_TOKENS] for row in kept] if has_pieces else (),
            piece_tokens=MOONCAKE_PIECE_TOKENS if has_pieces else 0,
            source=file.name,
            **_named(kept),
        )
    )


def _named(rows: Sequence[_Row]) -> dict[str, Any]:
    """``Requests.sessions``, ``repeated`` and ``adapters`` of rows in the order of arrival; nothing where none names a
    session or an adapter. A row without a session is one of its own.
    """
    found: dict[str, Any] = {}
    if any(row.adapter for row in rows):
        known: dict[str, int] = {}
        found["adapters"] = [known.setdefault(row.adapter, len(known)) for row in rows]
    if not any(row.session for row in rows):
        return found
    numbers: dict[str, int] = {}
    last: dict[str, _Row] = {}
    sessions, repeated = [], []
    for at, row in enumerate(rows):
        name = row.session or f"\n{at}"
        sessions.append(numbers.setdefault(name, len(numbers)))
        before = last.get(name)
        given, made = (0, 0) if before is None else (before.input_tokens, before.output_tokens)
        whole, longer = row.input_tokens >= given + made, row.input_tokens > given
        repeated.append(given + made if whole else given if longer else 0)
        last[name] = row
    return found | {"sessions": sessions, "repeated": repeated}


def _json_lines(file: Path) -> Iterator[_Row]:
    for number, line in enumerate(text_of(file, _WHAT).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        with expected(Path(where), _WHAT):
            item = json.loads(line)
            if "input_length" in item:
                arrival, pieces = _ARRIVAL_S.of(item["timestamp"], where) / 1e3, item.get("hash_ids", ())
                yield _row(arrival, item["input_length"], item["output_length"], where, pieces, item)
            else:
                arrival = _arrival_s(item, where)
                yield _row(arrival, item["input_toks"], item["output_toks"], where, named=item)


def _arrival_s(item: Mapping[str, Any], where: str) -> float:
    """InputError where no key says it: requests that all come at once are another load."""
    for key, number, per_s in _ARRIVALS:
        if key in item:
            return number.of(item[key], f"{where}: {key}") / per_s
    raise InputError(f"{where}: no {', '.join(key for key, _, _ in _ARRIVALS)}, so when it arrives is unknown")


def _json(text: Any, file: Path) -> MeasuredRequests:
    if isinstance(text, dict) and "input_lens" in text:
        return _vllm_benchmark(text, file)
    if isinstance(text, list):
        read = (_conversation(item, f"{file}, entry {number}") for number, item in enumerate(text, 1))
        return _plain((row for row in read if row is not None), file)
    raise InputError(f"{file} is neither a list of conversations nor a benchmark result")


def _conversation(item: Mapping[str, Any], where: str) -> _Row | None:
    """The first question and answer; counts where they are given, else characters over their usual number per token."""
    if "input_tokens" in item or "prompt_len" in item:
        given, made = (
            item.get("input_tokens", item.get("prompt_len")),
            item.get("output_tokens", item.get("output_len")),
        )
        timed = any("arriv" in key or "timestamp" in key for key in item)
        return _row(_arrival_s(item, where) if timed else 0.0, given, made, where)
    turns = item.get("conversations") or item.get("conversation") or []
    if len(turns) < 2:
        return None
    lengths = [math.ceil(len(turn.get("value", "")) / CHARACTERS_PER_TOKEN) for turn in turns[:2]]
    return _row(0.0, lengths[0], lengths[1], where)


def _vllm_benchmark(text: Mapping[str, Any], file: Path) -> MeasuredRequests:
    """``vllm bench serve --save-detailed``: without ``start_times`` all requests arrive at once."""
    inputs, outputs = (
        [_TOKENS.count(each, f"{file}: {name}") for each in text[name]] for name in ("input_lens", "output_lens")
    )
    starts = _times(text, "start_times", file) or [0.0] * len(inputs)
    order = [i for i in sorted(range(len(inputs)), key=lambda i: starts[i]) if inputs[i] > 0 and outputs[i] > 0]
    if not order:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    base = starts[order[0]]
    arrivals = [starts[i] - base for i in order]
    first, last = _benchmark_times(text, file, dict(zip(order, arrivals, strict=True)))
    return MeasuredRequests(
        requests=Requests(
            arrival_fs=[round(arrival * FS_PER_S) for arrival in arrivals],
            input_tokens=[inputs[i] for i in order],
            output_tokens=[outputs[i] for i in order],
            source=file.name,
        ),
        first_s=first,
        last_s=last,
    )


def _benchmark_times(
    text: Mapping[str, Any], file: Path, arrivals: Mapping[int, float]
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """First and last tokens of the requests that arrived, by their place in the file."""
    ttfts, itls = _times(text, "ttfts", file), text.get("itls")
    if ttfts is None:
        return None, None
    first = tuple(arrival + ttfts[i] for i, arrival in arrivals.items())
    if itls is None:
        return first, None
    gaps = [_times({"itls": itls[i]}, "itls", file) or () for i in arrivals]
    return first, tuple(start + sum(each) for start, each in zip(first, gaps, strict=True))


def _times(text: Mapping[str, Any], name: str, file: Path) -> list[float] | None:
    """Seconds under a key; None where there are none."""
    given = text.get(name)
    return None if given is None else [_ARRIVAL_S.of(each, f"{file}: {name}") for each in given]


def _of_one_run(rows: list[dict[str, str]], file: Path, run: str | None) -> list[tuple[_Row, int]]:
    """Its requests with prompt and output tokens and their row, by arrival."""
    names = list(dict.fromkeys(row.get("gpu", "") for row in rows))
    wanted = run if run is not None else names[0]
    if wanted not in names or (run is None and len(names) > 1):
        raise InputError(f"{file} contains runs on {', '.join(names)}; choose one with --run")
    _need(file, tuple(rows[0]), ("output_toks",))
    kept = []
    for at, row in enumerate(rows):
        if row.get("gpu", "") == wanted:
            where = f"{file}, row {at + FIRST_ROW}"
            read = _row(row["arrival_s"], row["input_toks"], row["output_toks"], where, named=row)
            if read.input_tokens > 0 and read.output_tokens > 0:
                kept.append((read, at))
    if not kept:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    return sorted(kept, key=lambda found: found[0].arrival_s)


def _vllm_log(rows: list[dict[str, str]], file: Path, run: str | None) -> MeasuredRequests:
    kept = _of_one_run(rows, file, run)
    start = kept[0][0].arrival_s

    def times(name: str) -> tuple[float, ...] | None:
        if not all(rows[at].get(name) for _, at in kept):
            return None
        return tuple(_ARRIVAL_S.of(rows[at][name], place(str(file), at, name)) - start for _, at in kept)

    facts = ("gpu", "model", "tp", "max_num_seqs", "max_batched_tokens", "num_kv_tokens")
    return MeasuredRequests(
        requests=Requests(
            arrival_fs=[round((read.arrival_s - start) * FS_PER_S) for read, _ in kept],
            input_tokens=[read.input_tokens for read, _ in kept],
            output_tokens=[read.output_tokens for read, _ in kept],
            source=file.name,
            **_named([read for read, _ in kept]),
        ),
        scheduled_s=times("scheduled_s"),
        first_s=times("first_token_s"),
        last_s=times("last_token_s"),
        facts=tuple((name, first[name]) for name in facts if (first := rows[kept[0][1]]).get(name)),
    )
