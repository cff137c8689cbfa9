"""rocpd: the SQLite database of rocprofv3 and the ROCm systems profiler, and that of rocmProfileData before them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tracelens.lazy.patterns import lazy_pattern
from tracelens.signature import OpSignature
from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.rocm_words import call_category, copy_name, gpu_properties
from tracelens.trace.reading.row_blocks import Ints, RowBlocks, coded
from tracelens.trace.reading.source import Source
from tracelens.trace.reading.sqlite_rows import ABSENT, MAGIC, Database, opened
from tracelens.trace.table import Recorder, TraceTable

RECORDER = Recorder(
    file="a rocpd database",
    no_shapes="ROCm's profilers record none",
    no_stacks="ROCm's profilers record none",
    shapes_option="torch.profiler with record_shapes=True",
)
# Tables of one process each carry its number; no other text of the file comes into a statement.
_TABLE = lazy_pattern(r"rocpd_(?:kernel_dispatch|region|memory_copy|op|api)((?:_[0-9a-fA-F]{1,40}){0,8})")
_PROCESS_BITS = 32
_SIZES = tuple(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
_PLACE = (
    "start",
    "end",
    "start_id",
    "end_id",
    "track_id",
    "pid",
    "tid",
    "agent_id",
    "queue_id",
    "stream_id",
    "event_id",
)
_MOST_DEVICES = 1024


def _is_rocpd(source: Source) -> bool:
    return source.start.startswith(MAGIC) and b"rocpd_" in source.start


@reader("rocpd", recognizes=_is_rocpd)
def read(source: Source) -> TraceTable:
    """Kernels, copies, calls and ranges of every process of a database."""
    rows = RowBlocks(source.name)
    with opened(source) as database:
        runs = sorted({match[1] for name in database.tables if (match := _TABLE.fullmatch(name))})
        for number, run in enumerate(runs):
            if f"rocpd_op{run}" in database.tables:
                _add_old(rows, database, run)
            else:
                _Run(rows, database, run, number).add()
    return rows.table(RECORDER)


class _Run:
    """The tables of one process."""

    def __init__(self, rows: RowBlocks, database: Database, run: str, number: int) -> None:
        self._rows, self._database, self._run, self._number = rows, database, run, number
        self._devices: dict[int, int] = {}
        known: dict[int, dict[str, Any]] = {}
        agents = self._integers("info_agent", "id", "type_index")
        texts = self._texts("info_agent", "type", "product_name", "name", "extdata")
        for agent, index, (kind, product, name, extdata) in zip(
            agents["id"].tolist(), agents["type_index"].tolist(), texts, strict=False
        ):
            if kind == "GPU":
                number = self._devices[agent] = index if 0 <= index < _MOST_DEVICES else len(self._devices)
                known[number] = _properties(product or name, extdata)
        if known:
            rows.metadata["deviceProperties"] = [{"id": i, **known.get(i, {})} for i in range(max(known) + 1)]
        self._strings = _pairs(database, f"rocpd_string{run}", "string")
        self._correlations = self._correlation_of_events()
        self._names()

    def add(self) -> None:
        self._add_kernels()
        self._add_copies()
        self._add_regions()

    def _names(self) -> None:
        processes, threads = self._integers("info_process", "id", "pid"), self._integers("info_thread", "id", "tid")
        self._processes = dict(zip(processes["id"].tolist(), processes["pid"].tolist(), strict=True))
        self._threads = dict(zip(threads["id"].tolist(), threads["tid"].tolist(), strict=True))
        for pid, (command, name) in zip(
            processes["pid"].tolist(), self._texts("info_process", "command", "name"), strict=False
        ):
            if command or name:
                self._rows.process_names[pid] = name or command.partition(" ")[0].rpartition("/")[2]

    def _add_kernels(self) -> None:
        found = self._placed("kernel_dispatch", "kernel_id", *_SIZES)
        symbols = self._integers("info_kernel_symbol", "id")["id"].tolist()
        texts = self._texts("info_kernel_symbol", "display_name", "kernel_name")
        names = {number: shown or name for number, (shown, name) in zip(symbols, texts, strict=False)}
        block, threads = (np.stack([found[size] for size in sizes], axis=1) for sizes in (_SIZES[:3], _SIZES[3:]))
        name = coded(found["kernel_id"], lambda number: self._code(names.get(number, f"(kernel {number})")))
        details = {"grid": -(-threads // np.maximum(block, 1)), "block": block}
        self._add_device("kernel", found, name, found["agent_id"], details=details)

    def _add_copies(self) -> None:
        found = self._placed("memory_copy", "name_id", "dst_agent_id", "src_agent_id", "size")
        agent = np.where(
            np.isin(found["dst_agent_id"], list(self._devices)), found["dst_agent_id"], found["src_agent_id"]
        )
        code = self._rows.signatures.code_of
        signature = coded(
            found["size"], lambda n: code(OpSignature(name="", attributes=(("bytes", n),))) if n >= 0 else ABSENT
        )
        name = coded(found["name_id"], lambda number: self._code(copy_name(self._strings.get(number, "Copy"))))
        self._add_device("gpu_memcpy", found, name, agent, signature=signature)

    def _add_regions(self) -> None:
        found = self._placed("region", "name_id")
        categories, messages = self._events(found["event_id"])
        texts = [self._strings.get(number, f"(string {number})") for number in found["name_id"].tolist()]
        of_event = np.array([call_category(text) for text in categories], object)
        names = [message or text for message, text in zip(messages, texts, strict=True)]
        process = coded(found["pid"], lambda number: self._processes.get(number, number))
        thread = coded(found["tid"], lambda number: self._threads.get(number, number))
        lane, name, correlation = (
            self._rows.lane_codes(process, thread),
            self._rows.name_codes(names),
            self._correlation(found),
        )
        for category in sorted(set(of_event.tolist())):
            here = of_event == category
            self._rows.add(
                category,
                start_ns=found["start"][here],
                end_ns=found["end"][here],
                name=name[here],
                lane=lane[here],
                correlation=correlation[here],
            )

    def _add_device(self, category: str, found: dict[str, Ints], name: Ints, agent: Ints, **columns: Any) -> None:
        device = coded(agent, lambda number: self._devices.get(number, 0))
        stream = np.maximum(found["stream_id" if (found["stream_id"] > 0).any() else "queue_id"], 0)
        self._rows.add(
            category,
            start_ns=found["start"],
            end_ns=found["end"],
            name=name,
            lane=self._rows.lane_codes(device, stream),
            device=device,
            stream=stream,
            correlation=self._correlation(found),
            **columns,
        )

    def _placed(self, table: str, *wanted: str) -> dict[str, Ints]:
        """Columns of a table of events, with times and places that newer schemas keep in tables of their own."""
        found = self._integers(table, *_PLACE, *wanted)
        if (found["start_id"] > 0).any():
            stamps = self._integers("timestamp", "id", "value")
            time = dict(zip(stamps["id"].tolist(), stamps["value"].tolist(), strict=True))
            for side in ("start", "end"):
                found[side] = coded(found[f"{side}_id"], lambda number: time.get(number, 2**62))
        if (found["track_id"] > 0).any():
            tracks = self._integers("track", "id", "pid", "tid", "agent_id", "queue_id", "stream_id")
            row = {number: i for i, number in enumerate(tracks["id"].tolist())}
            at = coded(found["track_id"], lambda number: row.get(number, ABSENT))
            for key in ("pid", "tid", "agent_id", "queue_id", "stream_id"):
                of_track = np.append(tracks[key], ABSENT)[at]
                found[key] = np.where(found[key] >= 0, found[key], of_track)
        return found

    def _correlation_of_events(self) -> dict[int, int]:
        events = self._integers("event", "id", "stack_id", "correlation_id")
        number = np.where(events["stack_id"] > 0, events["stack_id"], events["correlation_id"])
        return dict(zip(events["id"].tolist(), number.tolist(), strict=True))

    def _correlation(self, found: dict[str, Ints]) -> Ints:
        number = coded(found["event_id"], lambda event: self._correlations.get(event, ABSENT))
        usable = (number > 0) & (number < 1 << _PROCESS_BITS)
        return np.where(usable, number + (self._number << _PROCESS_BITS), ABSENT)

    def _events(self, wanted: Ints) -> tuple[list[str], list[str]]:
        """Category and message of events."""
        events = self._integers("event", "id", "category_id")
        extdata = [text for (text,) in self._texts("event", "extdata")]
        categories = _pairs(self._database, f"rocpd_info_category{self._run}", "name") or self._strings
        row = {number: i for i, number in enumerate(events["id"].tolist())}
        rows = [row.get(number, -1) for number in wanted.tolist()]
        of = [categories.get(int(events["category_id"][i]), "") if i >= 0 else "" for i in rows]
        return of, [_message(extdata[i]) if 0 <= i < len(extdata) else "" for i in rows]

    def _integers(self, table: str, *wanted: str) -> dict[str, Ints]:
        return self._database.integers(f"rocpd_{table}{self._run}", *wanted)

    def _texts(self, table: str, *wanted: str) -> list[tuple[str, ...]]:
        return self._database.texts(f"rocpd_{table}{self._run}", *wanted)

    def _code(self, name: str) -> int:
        return self._rows.names.of([name])[0]


def _add_old(rows: RowBlocks, database: Database, run: str) -> None:
    """rocmProfileData: calls and operations, joined by a table of pairs."""
    strings = _pairs(database, f"rocpd_string{run}", "string")
    calls = database.integers(f"rocpd_api{run}", "id", "pid", "tid", "start", "end", "apiName_id")
    ops = database.integers(f"rocpd_op{run}", "id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    pairs = database.integers(f"rocpd_api_ops{run}", "api_id", "op_id")
    launched = dict(zip(pairs["op_id"].tolist(), pairs["api_id"].tolist(), strict=True))
    rows.add(
        "hip_runtime",
        start_ns=calls["start"],
        end_ns=calls["end"],
        name=rows.name_codes(strings.get(number, f"(string {number})") for number in calls["apiName_id"].tolist()),
        lane=rows.lane_codes(calls["pid"], calls["tid"]),
        correlation=calls["id"],
    )
    kinds = [strings.get(number, "") for number in ops["opType_id"].tolist()]
    names = [
        strings.get(number, "") or kind for number, kind in zip(ops["description_id"].tolist(), kinds, strict=True)
    ]
    of_op = np.array([_op_category(kind) for kind in kinds], object)
    name, correlation = rows.name_codes(names), coded(ops["id"], lambda number: launched.get(number, ABSENT))
    for category in sorted(set(of_op.tolist())):
        here = of_op == category
        device, stream = ops["gpuId"][here], ops["queueId"][here]
        rows.add(
            category,
            start_ns=ops["start"][here],
            end_ns=ops["end"][here],
            name=name[here],
            lane=rows.lane_codes(device, stream),
            device=device,
            stream=stream,
            correlation=correlation[here],
        )


def _pairs(database: Database, table: str, value: str) -> dict[int, str]:
    """A text by number."""
    numbers = database.integers(table, "id")["id"].tolist()
    return dict(zip(numbers, [text for (text,) in database.texts(table, value)], strict=False))


def _op_category(kind: str) -> str:
    return "gpu_memcpy" if kind.startswith("Copy") else "gpu_memset" if kind.startswith("Fill") else "kernel"


def _message(extdata: str) -> str:
    """What a ROCTX range says."""
    if '"message"' not in extdata:
        return ""
    try:
        value = msgspec.json.decode(extdata.encode())
    except (msgspec.DecodeError, RecursionError):
        return ""
    message = value.get("message") if isinstance(value, dict) else None
    return message if isinstance(message, str) else ""


def _properties(name: str, extdata: str) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(extdata.encode() or b"{}")
    except (msgspec.DecodeError, RecursionError):
        said = None
    said = said if isinstance(said, dict) else {}
    return gpu_properties(name, units=said.get("cu_count"), wave=said.get("wave_front_size"))
