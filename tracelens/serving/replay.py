"""Requests from files: public traces, and what serving benchmarks write."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.serving.requests import FS_PER_S, Requests

#: Tokens per hash in Mooncake's traces (FAST'25 artifact README).
MOONCAKE_PIECE_TOKENS = 512
#: Characters per token where a conversation's texts carry no counts: English text under byte-pair encodings.
CHARACTERS_PER_TOKEN = 4


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
    ``output_length``, ``hash_ids``), LLMServingSim (``arrival_time_ns``, ``input_toks``, ``output_toks``). JSON: vLLM's
    benchmark result (``input_lens``, ``output_lens``, ``ttfts``, ``itls``), ShareGPT conversations (lengths only,
    everything arrives at once). InputError for anything else. Rows without tokens (cancelled requests) are left out.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    try:
        if file.suffix == ".jsonl":
            return _plain(_json_lines(text), file)
        if file.suffix == ".json":
            return _json(json.loads(text), file)
        return _csv(text, file, run)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a request file: {error}") from error


def _csv(text: str, file: Path, run: str | None) -> Measured:
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise InputError(f"{file} has no rows")
    columns = rows[0].keys()
    readers: tuple[tuple[str, Callable[[Mapping[str, str]], _Row]], ...] = (
        ("ContextTokens", lambda r: _row(_seconds(r["TIMESTAMP"]), r["ContextTokens"], r["GeneratedTokens"])),
        ("num_prefill_tokens", lambda r: _row(r["arrived_at"], r["num_prefill_tokens"], r["num_decode_tokens"])),
        ("Request tokens", lambda r: _row(r["Timestamp"], r["Request tokens"], r["Response tokens"])),
    )
    if "input_toks" in columns and "arrival_s" in columns:
        return _vllm_log(rows, file, run)
    for key, reader in readers:
        if key in columns:
            return _plain((reader(row) for row in rows), file)
    raise InputError(f"{file} has none of the known columns: {', '.join(columns)}")


def _row(arrival: str | float, given: str | int, made: str | int, pieces: Sequence[int] = ()) -> _Row:
    return _Row(
        arrival_s=float(arrival), input_tokens=int(float(given)), output_tokens=int(float(made)), pieces=tuple(pieces)
    )


def _seconds(stamp: str) -> float:
    try:
        return float(stamp)
    except ValueError:
        # Azure writes seven digits of a second, Python reads six
        return datetime.fromisoformat(stamp.strip()[:26]).timestamp()


def _plain(rows: Iterator[_Row] | list[_Row], file: Path) -> Measured:
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


def _json_lines(text: str) -> Iterator[_Row]:
    for line in text.splitlines():
        if not line.strip():
            continue
        item = json.loads(line)
        if "input_length" in item:
            yield _row(item["timestamp"] / 1e3, item["input_length"], item["output_length"], item.get("hash_ids", ()))
        else:
            yield _row(item.get("arrival_time_ns", 0) / 1e9, item["input_toks"], item["output_toks"])


def _json(text: Any, file: Path) -> Measured:
    if isinstance(text, dict) and "input_lens" in text:
        return _vllm_benchmark(text, file)
    if isinstance(text, list):
        return _plain([row for item in text if (row := _conversation(item)) is not None], file)
    raise InputError(f"{file} is neither a list of conversations nor a benchmark result")


def _conversation(item: Mapping[str, Any]) -> _Row | None:
    """The first question and answer; counts where they are given, else characters over their usual number per token."""
    if "input_tokens" in item or "prompt_len" in item:
        given, made = (
            item.get("input_tokens", item.get("prompt_len")),
            item.get("output_tokens", item.get("output_len")),
        )
        return _row(item.get("arrival_s", 0.0), given, made)
    turns = item.get("conversations") or item.get("conversation") or []
    if len(turns) < 2:
        return None
    lengths = [math.ceil(len(turn.get("value", "")) / CHARACTERS_PER_TOKEN) for turn in turns[:2]]
    return _row(0.0, lengths[0], lengths[1])


def _vllm_benchmark(text: Mapping[str, Any], file: Path) -> Measured:
    """``vllm bench serve --save-detailed``: without ``start_times`` all requests arrive at once."""
    inputs, outputs = text["input_lens"], text["output_lens"]
    starts = text.get("start_times") or [0.0] * len(inputs)
    ttfts, itls = text.get("ttfts"), text.get("itls")
    order = [i for i in sorted(range(len(inputs)), key=lambda i: starts[i]) if inputs[i] > 0 and outputs[i] > 0]
    if not order:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    base = starts[order[0]]
    arrivals = [starts[i] - base for i in order]
    first = None if ttfts is None else tuple(arrival + ttfts[i] for arrival, i in zip(arrivals, order, strict=True))
    last = None
    if first is not None and itls is not None:
        last = tuple(start + sum(itls[i]) for start, i in zip(first, order, strict=True))
    return Measured(
        requests=Requests(
            arrival_fs=[round(arrival * FS_PER_S) for arrival in arrivals],
            input_tokens=[int(inputs[i]) for i in order],
            output_tokens=[int(outputs[i]) for i in order],
            source=file.name,
        ),
        first_s=first,
        last_s=last,
    )


def _of_one_run(rows: list[dict[str, str]], file: Path, run: str | None) -> list[dict[str, str]]:
    """Its requests with prompt and output tokens, by arrival."""
    names = list(dict.fromkeys(row.get("gpu", "") for row in rows))
    wanted = run if run is not None else names[0]
    if wanted not in names or (run is None and len(names) > 1):
        raise InputError(f"{file} contains runs on {', '.join(names)}; choose one with --run")
    kept = [
        row
        for row in rows
        if row.get("gpu", "") == wanted and int(row["input_toks"]) > 0 and int(row["output_toks"]) > 0
    ]
    if not kept:
        raise InputError(f"{file} has no requests with prompt and output tokens")
    return sorted(kept, key=lambda row: float(row["arrival_s"]))


def _vllm_log(rows: list[dict[str, str]], file: Path, run: str | None) -> Measured:
    kept = _of_one_run(rows, file, run)
    start = float(kept[0]["arrival_s"])

    def times(name: str) -> tuple[float, ...] | None:
        return tuple(float(row[name]) - start for row in kept) if all(row.get(name) for row in kept) else None

    facts = ("gpu", "model", "tp", "max_num_seqs", "max_batched_tokens", "num_kv_tokens")
    return Measured(
        requests=Requests(
            arrival_fs=[round((float(row["arrival_s"]) - start) * FS_PER_S) for row in kept],
            input_tokens=[int(row["input_toks"]) for row in kept],
            output_tokens=[int(row["output_toks"]) for row in kept],
            source=file.name,
        ),
        scheduled_s=times("scheduled_s"),
        first_s=times("first_token_s"),
        last_s=times("last_token_s"),
        facts=tuple((name, kept[0][name]) for name in facts if kept[0].get(name)),
    )
