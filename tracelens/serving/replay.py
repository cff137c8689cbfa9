"""Requests from files: public traces, and what serving benchmarks write."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.files.data_table import FIRST_ROW, Number, place, read_rows
from tracelens.files.documents import expected, json_of, text_of
from tracelens.lazy.records import dataclass
from tracelens.serving.requests import FS_PER_S, LONGEST, Requests

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
#: Columns of public traces in CSV: arrival, prompt, answer.
_CSV_COLUMNS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Requests of a real run with what was measured, seconds from the run's start; None where it was not."""

    requests: Requests
    scheduled_s: tuple[float, ...] | None = None
    first_s: tuple[float, ...] | None = None
    last_s: tuple[float, ...] | None = None
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    pieces: tuple[int, ...] = ()


def read_requests(path: str | os.PathLike[str], *, run: str | None = None) -> Measured:
    """Requests of a file, by its columns or keys.

    CSV: vLLM request logs (``arrival_s, input_toks, output_toks`` and times; ``run`` picks a ``gpu`` of several), Azure
    (``TIMESTAMP, ContextTokens, GeneratedTokens``, or ``arrived_at, num_prefill_tokens, num_decode_tokens``), BurstGPT
    (``Timestamp, Request tokens, Response tokens``). JSONL: Mooncake (``timestamp`` in ms, ``input_length``,
    ``output_length``, ``hash_ids``), LLMServingSim (``arrival_time_ns``, or ``arrival_time`` in s, ``input_toks``,
    ``output_toks``). JSON: vLLM's benchmark result (``input_lens``, ``output_lens``, ``ttfts``, ``itls``), ShareGPT
    conversations (lengths only, everything arrives at once). InputError for anything else, and for requests that do
    not say when they arrive. Rows without tokens (cancelled requests) are left out.
    """
    file = Path(path)
    if file.suffix == ".jsonl":
        return _plain(_json_lines(file), file)
    if file.suffix == ".json":
        document = json_of(file, _WHAT)
        with expected(file, _WHAT):
            return _json(document, file)
    return _csv(file, run)


def _csv(file: Path, run: str | None) -> Measured:
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
                _row(_seconds(row[stamp], place(str(file), at, stamp)), row[given], row[made], f"{file}, row {number}")
                for at, (number, row) in enumerate(enumerate(rows, FIRST_ROW))
            )
            return _plain(of_file, file)
    raise InputError(f"{file} has none of the known columns: {', '.join(columns)}")


def _need(file: Path, columns: Sequence[str], names: Iterable[str]) -> None:
    for name in names:
        if name not in columns:
            raise InputError(f"{file} has no column {name!r}; it has {', '.join(columns)}")


def _row(arrival: object, given: object, made: object, where: str, pieces: Sequence[int] = ()) -> _Row:
    """InputError, beginning with ``where``, for what is no time or number of tokens."""
    return _Row(
        arrival_s=_ARRIVAL_S.of(arrival, f"{where}: the arrival"),
        input_tokens=_TOKENS.count(given, f"{where}: the number of prompt tokens"),
        output_tokens=_TOKENS.count(made, f"{where}: the number of output tokens"),
        pieces=tuple(pieces),
    )


def _seconds(stamp: str, where: str) -> float:
    try:
        # Azure writes seven digits of a second, Python reads six
        return datetime.fromisoformat(stamp.strip()[:26]).timestamp()
    except (OverflowError, OSError, ValueError):
        return _ARRIVAL_S.of(stamp, where)


def _plain(rows: Iterable[_Row], file: Path) -> Measured:
    kept = sorted(
        (row for row in rows if row.input_tokens > 0 and row.output_tokens > 0), key=lambda row: row.arrival_s
    )
    if not kept:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    start = kept[0].arrival_s
    has_pieces = any(row.pieces for row in kept)
    return Measured(
        requests=Requests(
            arrival_fs=[round((row.arrival_s - start) * FS_PER_S) for row in kept],
            input_tokens=[row.input_tokens for row in kept],
            output_tokens=[row.output_tokens for row in kept],
            # The last hash may cover a part of a piece, which is not found again
            pieces=[row.pieces[: row.input_tokens // MOONCAKE_PIECE_TOKENS] for row in kept] if has_pieces else (),
            piece_tokens=MOONCAKE_PIECE_TOKENS if has_pieces else 0,
            source=file.name,
        )
    )


def _json_lines(file: Path) -> Iterator[_Row]:
    for number, line in enumerate(text_of(file, _WHAT).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        with expected(Path(where), _WHAT):
            item = json.loads(line)
            if "input_length" in item:
                arrival, pieces = _ARRIVAL_S.of(item["timestamp"], where) / 1e3, item.get("hash_ids", ())
                yield _row(arrival, item["input_length"], item["output_length"], where, pieces)
            else:
                yield _row(_arrival_s(item, where), item["input_toks"], item["output_toks"], where)


def _arrival_s(item: Mapping[str, Any], where: str) -> float:
    """InputError where no key says it: requests that all come at once are another load."""
    for key, number, per_s in _ARRIVALS:
        if key in item:
            return number.of(item[key], f"{where}: {key}") / per_s
    raise InputError(f"{where}: no {', '.join(key for key, _, _ in _ARRIVALS)}, so when it arrives is unknown")


def _json(text: Any, file: Path) -> Measured:
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


def _vllm_benchmark(text: Mapping[str, Any], file: Path) -> Measured:
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
    return Measured(
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
            read = _row(row["arrival_s"], row["input_toks"], row["output_toks"], f"{file}, row {at + FIRST_ROW}")
            if read.input_tokens > 0 and read.output_tokens > 0:
                kept.append((read, at))
    if not kept:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    return sorted(kept, key=lambda found: found[0].arrival_s)


def _vllm_log(rows: list[dict[str, str]], file: Path, run: str | None) -> Measured:
    kept = _of_one_run(rows, file, run)
    start = kept[0][0].arrival_s

    def times(name: str) -> tuple[float, ...] | None:
        if not all(rows[at].get(name) for _, at in kept):
            return None
        return tuple(_ARRIVAL_S.of(rows[at][name], place(str(file), at, name)) - start for _, at in kept)

    facts = ("gpu", "model", "tp", "max_num_seqs", "max_batched_tokens", "num_kv_tokens")
    return Measured(
        requests=Requests(
            arrival_fs=[round((read.arrival_s - start) * FS_PER_S) for read, _ in kept],
            input_tokens=[read.input_tokens for read, _ in kept],
            output_tokens=[read.output_tokens for read, _ in kept],
            source=file.name,
        ),
        scheduled_s=times("scheduled_s"),
        first_s=times("first_token_s"),
        last_s=times("last_token_s"),
        facts=tuple((name, first[name]) for name in facts if (first := rows[kept[0][1]]).get(name)),
    )
