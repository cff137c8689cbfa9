"""A trace without the names and paths of who recorded it: the same report, but for names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from tracelens.analysis.attribution.host_time import telling_part
from tracelens.analysis.attribution.steps import telling_word
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.dtypes import DType
from tracelens.excerpts import public_names
from tracelens.extensions import bundled_extensions
from tracelens.lazy.patterns import lazy_pattern
from tracelens.perf_models.kernels import classify
from tracelens.trace.rewriting import microseconds, rewrite
from tracelens.trace.table import Kind, kind_of_category
from tracelens.trace.tree import MODULE_PREFIX

_ENGINE = "autograd::engine::evaluate_function: "
_NUMBER = lazy_pattern(r"(?<!\d)(\d+)(\D*)\Z")
_INSTANCE = lazy_pattern(r"_(\d+)\Z")
_FRAME = lazy_pattern(r"(?P<file>[^()]*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
#: Words by which phases are told apart stay.
_PHASES = lazy_pattern(r"backward|bwd|forward|fwd|\([FBW]\)|w_?grad", re.IGNORECASE)
#: Keys of an event that hold neither names nor arguments.
_KEPT_KEYS = ("ph", "ts", "dur", "id", "bp", "s")
#: Arguments that hold numbers, or texts that PyTorch chose.
_KEPT_ARGUMENTS = frozenset(
    str.split(
        "External id|external id|Record function id|Ev Idx|Sequence number|Fwd thread id|Input Dims|Input dims|"
        "Input Strides|Output dims|Python id|Python parent id|Python module id|correlation|cbid|cid|stream|"
        "device|context|queued|grid|block|registers per thread|shared memory|warps per SM|blocks per SM|"
        "est. achieved occupancy %|bytes|memory bandwidth (GB/s)|kind|size|cuda_sync_kind|wait_on_stream|"
        "wait_on_cuda_event_id|wait_on_cuda_event_record_corr_id|Collective name|dtype|In msg nelems|"
        "Out msg nelems|In split size|Out split size|Group size|Process Group Ranks|Process Group ID|"
        "Global rank start|Global rank stride|Rank|Src Rank|Dst Rank|Seq|src|dst|kernel_backend|kernel_flop|"
        "kernel_num_gb|num_warps|num_stages|graph id|graph node id|Device|Op count|flops|finished|Bytes|"
        "Total Allocated|Total Reserved|Device Type|Device Id|Addr|sort_index|Profiler Event Index|scope|"
        "priority",
        "|",
    )
)
_KEPT_METADATA = frozenset(
    (
        "schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "record_shapes", "with_stack",
        "profile_memory", "with_flops", "with_modules", "cupti_version", "cuda_runtime_version", "cuda_driver_version",
        "roctracer_version", "hip_runtime_version", "hip_driver_version", "pytorch_version", "torch_version",
    )
)  # fmt: skip
_TYPES = frozenset(("", "Scalar", "ScalarList", "TensorList", "GenericList", "Device", "Layout", "Generator", "Dict"))
# A literal: numbers, truth values and lists of them; a word as schemas have it ("tanh", "mean").
_LITERAL = lazy_pattern(
    r"[\d\s.,\[\]()eE+-]*|(?:\[?(?:True|False|None|inf|-inf|nan)[,\s\]]*)+|[a-z]{1,12}|(?:cuda|cpu)(?::\d+)?"
)
_PROCESS = lazy_pattern(r"(?:python|CPU|GPU|Spans|Traces)?(?: ?\d+)?|rank \d+(?: · (?:CPU|GPU \d+))?|Spans|Traces")
_THREAD = lazy_pattern(r"(?:stream|thread) +\d+|rank \d+.*")


def anonymize(trace: Trace, path: str | PathLike[str]) -> int:
    """Writes the trace with placeholders for all names that are not public (see ``public_names``); returns how many.

    Paths, hosts, users, stacks and unknown arguments and metadata are left out. Times, sizes, shapes, identifiers and
    everything else that figures are made of stay.
    """
    names, table = Names(), trace.table

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any]:
        kind = Kind(int(table.kind[row])) if row >= 0 else Kind.OTHER
        made: dict[str, Any] = {key: event[key] for key in _KEPT_KEYS if key in event}
        if row >= 0:
            made |= {"ts": microseconds(int(table.start_ns[row])), "dur": microseconds(int(table.duration_ns[row]))}
        category = event.get("cat")
        if isinstance(category, str):
            known = kind_of_category(category) is not Kind.OTHER or re.fullmatch(r"[a-z0-9_]{1,24}", category)
            made["cat"] = category if known else "other"
        made |= {key: names.identifier(event[key]) for key in ("pid", "tid") if key in event}
        name = event.get("name")
        if event.get("ph") == "M":
            return made | {"name": str(name), "args": names.of_metadata(event.get("args"))}
        if isinstance(name, str):
            made["name"] = names.name(name, kind)
        if isinstance(event.get("args"), dict):
            made["args"] = names.arguments(event["args"])
        return made

    rewrite(table, path, edit, names.metadata(table.metadata))
    return names.count


class Names:
    """Placeholders by name, the same for the same name: ``op1``, ``kernel2``, ``range1 12``, ``file3.py(14): f``."""

    def __init__(self) -> None:
        self._catalog = Catalog(bundled_extensions())
        known = (*self._catalog.bindings, *self._catalog.categories)
        self._known = {name.removeprefix("aten::").replace("_", "").casefold() for name in known}
        self._made: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._names: dict[tuple[str, Kind], str] = {}

    @property
    def count(self) -> int:
        """How many placeholders there are."""
        return len(self._made)

    def name(self, name: str, kind: Kind) -> str:
        """The name itself where it is public."""
        found = self._names.get((name, kind))
        if found is None:
            found = self._names[name, kind] = self._rules.get(kind, Names._op)(self, name)
        return found

    def placeholder(self, word: str, text: str) -> str:
        """``word`` and a number that stands for ``text``."""
        made = self._made.get((word, text))
        if made is None:
            self._counts[word] += 1
            made = self._made[word, text] = f"{word}{self._counts[word]}"
        return made

    def identifier(self, value: Any) -> Any:
        """A process or thread: numbers stay."""
        return value if not isinstance(value, str) or _PROCESS.fullmatch(value) else self.placeholder("process", value)

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an event."""
        made = {key: value for key, value in args.items() if key in _KEPT_ARGUMENTS}
        if "Input type" in args:
            made["Input type"] = _each(args["Input type"], _known_type)
        if "Concrete Inputs" in args:
            made["Concrete Inputs"] = _each(args["Concrete Inputs"], lambda v: v if _LITERAL.fullmatch(v) else "")
        for key in ("Process Group Name", "Process Group Description"):
            if key in args:
                made[key] = self.group(args[key])
        if isinstance(args.get("kernel"), str):
            made["kernel"] = self.name(args["kernel"], Kind.KERNEL)
        return made

    def of_metadata(self, args: Any) -> dict[str, Any]:
        """What names or sorts a process or thread."""
        args = args if isinstance(args, dict) else {}
        made = {key: args[key] for key in ("sort_index",) if key in args}
        for key in ("name", "labels"):
            text = args.get(key)
            if isinstance(text, str):
                public = _PROCESS.fullmatch(text) or _THREAD.match(text)
                made[key] = public[0] if public else self.placeholder("process", text)
        return made

    def group(self, name: Any) -> Any:
        """A process group's name: numbers and the words that say what it is for stay."""
        known = not isinstance(name, str) or public_names.GROUPS.fullmatch(name)
        return name if known else self.placeholder("group", name)

    def metadata(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What stands round the events."""
        made = {key: value for key, value in values.items() if key in _KEPT_METADATA}
        info = values.get("distributedInfo")
        if isinstance(info, dict):
            kept = {
                key: info[key] for key in ("backend", "rank", "world_size", "pg_count", "nccl_version") if key in info
            }
            groups = info.get("pg_config")
            if isinstance(groups, list):
                kept["pg_config"] = [self._group_entry(entry) for entry in groups if isinstance(entry, dict)]
            made["distributedInfo"] = kept
        return made

    def _group_entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: entry[key] for key in ("pg_size", "ranks", "group_count", "group_size") if key in entry}
        return made | {key: self.group(entry[key]) for key in ("pg_name", "pg_desc") if key in entry}

    def _op(self, name: str) -> str:
        if name.startswith(_ENGINE):
            return _ENGINE + self._op(name.removeprefix(_ENGINE))
        known = self._catalog.category_of(name) is not None or name in self._catalog.bindings or self._is_gradient(name)
        if known or public_names.OPS.fullmatch(name) or public_names.ENGINE_STEPS.fullmatch(name):
            return name
        return self.placeholder("op", name) + _phase(name)

    def _is_gradient(self, name: str) -> bool:
        """Whether an autograd node of PyTorch 1.x (``MaxPool2DWithIndicesBackward``) is that of a known op."""
        return name.endswith("Backward") and name.removesuffix("Backward").casefold() in self._known

    def _range(self, name: str) -> str:
        if public_names.OPS.fullmatch(name) or public_names.ENGINE_STEPS.fullmatch(name):
            return name
        number = _NUMBER.search(name)
        stem = name if number is None else f"{name[: number.start()]}#{number[2]}"
        word = "" if number is None else telling_word(name[: number.start()])
        made = self.placeholder("range", stem) + _phase(name) + (f"_{word}" if word else "")
        made += "" if number is None else f" {number[1]}"
        told = telling_part(name)
        return next(
            (text for text in (made, f"{told} {made}", f"{made} {told}", made + told) if _tells(text, told)), made
        )

    def _kernel(self, name: str) -> str:
        if public_names.KERNELS.fullmatch(name) or public_names.OPS.fullmatch(name):
            return name
        made = self.placeholder("kernel", name)
        (pattern,) = classify([name], self._catalog.kernel_patterns)
        found = None if pattern is None else re.search(pattern.regex, name)
        telling = made if found is None else f"{found[0]} {made}"
        return telling if classify([telling], self._catalog.kernel_patterns) == [pattern] else made

    def _frame(self, name: str) -> str:
        if name.startswith(MODULE_PREFIX):
            instance = _INSTANCE.search(name)
            module = name.removeprefix(MODULE_PREFIX)[: None if instance is None else -len(instance[0])]
            shown = module if module in public_names.MODULES else self.placeholder("Module", module)
            return MODULE_PREFIX + shown + ("" if instance is None else instance[0])
        public = public_names.FRAMES.fullmatch(name)
        if public is not None:
            return public["public"] or public["builtin"]
        frame = _FRAME.fullmatch(name)
        if frame is None:
            return self.placeholder("function", name)
        file, function = self.placeholder("file", frame["file"]), self.placeholder("function", frame["function"])
        return f"{file}.py({frame['line']}): {function}"

    def _call(self, name: str) -> str:
        return name if public_names.CALLS.fullmatch(name) else self.placeholder("call", name)

    _rules: Mapping[Kind, Callable[[Names, str], str]] = {
        Kind.RUNTIME: _call,
        Kind.DRIVER: _call,
        Kind.KERNEL: _kernel,
        Kind.USER_ANNOTATION: _range,
        Kind.GPU_USER_ANNOTATION: _range,
        Kind.PYTHON_FUNCTION: _frame,
    }


def _tells(text: str, cause: str) -> bool:
    return telling_part(text) == cause


def _phase(name: str) -> str:
    found = _PHASES.search(name)
    return "" if found is None else f"_{found[0] if found[0].startswith('(') else found[0].lower()}"


def _each(value: Any, made: Callable[[str], str]) -> Any:
    if isinstance(value, list):
        return [_each(part, made) for part in value]
    return made(value) if isinstance(value, str) else value


def _known_type(text: str) -> str:
    return text if text in _TYPES or DType.parse(text) is not None else "unknown"
