"""A trace to hand on: without its recorder's names and paths, or cut to some steps, ranks or categories."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib.resources import files
from os import PathLike
from typing import Any

import numpy as np

from tracelens.analysis.attribution.host_time import telling_part
from tracelens.analysis.attribution.steps import select_steps, telling_word
from tracelens.analysis.attribution.window import Recording, Window
from tracelens.analysis.intervals import Bools
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.extensions import bundled_extensions
from tracelens.perf_models.kernels import classify, precisions
from tracelens.perf_models.xla import WORK
from tracelens.trace.rewriting import microseconds, rewrite
from tracelens.trace.table import DEVICE_KINDS, HOST_KINDS, Kind, TraceTable, kind_of_category
from tracelens.trace.tree import MODULE_PREFIX
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

_OPTIMIZERS = re.compile(r"Optimizer\.(?P<does>step|zero_grad)#(?P<optimizer>\w+)\.(?P=does)")

_ENGINE = "autograd::engine::evaluate_function: "
_NUMBER = re.compile(r"(?<!\d)(\d+)(\D*)\Z")
_INSTANCE = re.compile(r"_(\d{1,6})\Z")
_FRAME = re.compile(r"(?P<file>[^()]*)\((?P<line>\d{1,6})\): (?P<function>.*)", re.DOTALL)
_LOADS_DATA = re.compile(r"data_?load\w*\Z", re.IGNORECASE)
#: Words by which phases are told apart stay.
_PHASES = re.compile(r"backward|bwd|forward|fwd|\([FBW]\)|w_?grad", re.IGNORECASE)
# A word of a name with the digits behind it, or digits alone: GemmBf16 is Gemm, Bf16. No published name has a letter
# that is not ASCII.
_WORD = re.compile(r"([A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\x00-\x7f]+)(\d*)|\d+")
#: Digits of a number in a name: sizes of tiles, instructions, versions. A longer one may be anybody's.
_DIGITS = 6
#: Where names hold sums of tokens.
_DIGITS_OF_COUNTS = 18
# Of Hopper's and Blackwell's cuBLAS kernels (nvjet_qqtst_...): types of A and B, C, the accumulator, D.
_NVJET = frozenset(f"{ab}{c}s{d}" for ab in ("", "qq", "oo", "qo", "oq") for c in "hstqv" for d in "hstqo")
#: Letters from which a word of a pattern is told apart within another word.
_TELLING = 3
# Literal words of a regular expression.
_NO_LITERALS, _LITERALS = re.compile(r"\\[a-zA-Z]|\(\?(?:[a-z]+[:)]|P?<\w+>|<?[:=!>])"), re.compile(r"[a-zA-Z]{2,}")
_TYPES_OF_PRODUCTS = (None, DType.FP32, DType.FP64)


@cache
def public_names() -> dict[str, Any]:
    """What stands in ``public_names.toml``: lists, texts of words, and patterns."""
    return tomllib.loads(files(__package__).joinpath("public_names.toml").read_text(encoding="utf-8"))


_SETS = {name: frozenset(words) for name, words in public_names()["sets"].items()}
PUBLIC_OPS, PUBLIC_EVENTS, PUBLIC_CALLS, PUBLIC_ENGINE_STEPS, PUBLIC_KERNELS, PUBLIC_FRAMES, PUBLIC_GROUPS = (
    re.compile("".join(public_names()["patterns"][name]))
    for name in ("ops", "events", "calls", "engine_steps", "kernels", "frames", "groups")
)


class Words:
    """Words that published names are made of, and a placeholder for each other word: ``anon1``, the same for the same.

    ``known``: further names whose words are published; ``patterns``: of kernels, whose words stay within others, too,
    so that a kernel stays in its category.
    """

    def __init__(self, known: Iterable[str], patterns: Iterable[str], placeholder: Callable[[str, str], str]) -> None:
        lists = public_names()
        said = {word.lower() for text in patterns for word in _LITERALS.findall(_NO_LITERALS.sub(" ", text))}
        own = {match[1].lower() for name in known for match in _WORD.finditer(name) if match[1]}
        self._names = frozenset({*lists["names"].split(), *said, *own, *_NVJET})
        self._files = self._names.union(lists["files"].split())
        telling = sorted((word for word in said if len(word) >= _TELLING), key=len, reverse=True)
        self._telling = re.compile(f"({'|'.join(telling)})", re.IGNORECASE)
        self._placeholder = placeholder

    def published(self, text: str, *, of_files: bool = False, digits: int = _DIGITS) -> str:
        """``text`` with its private words, and numbers of more than ``digits`` digits, replaced."""
        known = self._files if of_files else self._names

        def made(match: re.Match[str]) -> str:
            word, number = match[1], match[2]
            if word is None:
                return self._number(match[0], digits)
            if word.lower() in known or (len(word) == 1 and word.isascii()):
                return word + self._number(number, digits)
            *parts, last = (part for part in self._telling.split(word) if part)
            shown = [part if part.lower() in known else self._placeholder("anon", part) for part in parts]
            if last.lower() in known:
                return "".join(shown) + last + self._number(number, digits)
            return "".join(shown) + self._placeholder("anon", last + number)

        return _WORD.sub(made, text)

    def _number(self, number: str, digits: int) -> str:
        return number if len(number) <= digits else self._placeholder("anon", number)


#: Keys of an event that hold a letter, and which; those that hold a time; those that say what belongs together.
_LETTERS = {"ph": frozenset("XBEbnesftiICMPNODRcv"), "bp": frozenset("e"), "s": frozenset("gpt")}
_TIMES, _IDENTIFIERS = ("ts", "dur"), {"pid": "process", "tid": "process", "id": "flow"}
#: Categories in which nothing is of a kind, beside those of ``kind_of_category``.
_OTHER = "other"
_NUMBER_TEXT = re.compile(
    r"(?:grid|block)?(?:0x[0-9a-fA-F]{1,16}|(?>[\s\[\](),]|\.\.\.|(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?(?!\w)"
    r"|(?<!\w)[-+]?(?:inf|nan|NaN|Infinity)(?!\w))*+)"
)
#: Lists within lists; deeper ones are nobody's sizes.
_DEEPEST = 8
_TILE = re.compile(r"\b(?:[XYZ]|R\d?_?)BLOCK=\d{1,6}\b")
#: How truth values, devices and lists of them are spelled among arguments.
_LITERAL = re.compile(r"(?:\[?(?:True|False|None)[,\s\]]*)+|(?:cuda|cpu|hip|xpu|mps|meta)(?::\d{1,3})?")
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,4}(?:\.?(?:a|b|rc|post|dev)\d{0,8})?(?:\+(?:cu|rocm|cpu)[\d.]{0,8})?")
_PROCESS = re.compile(r"(?:python3?|CPU|GPU)?(?: ?\d{1,12})?|Spans|Traces|PyTorch Profiler|rates")
_RANK = re.compile(r"rank \d{1,6}")
_OF_RANK = re.compile(r"(?P<rank>rank \d{1,6} · )(?P<process>.*)", re.DOTALL)
_THREAD = re.compile(r"(?:stream|thread) +\d{1,12}\b")


def anonymize(trace: Trace, path: str | PathLike[str]) -> int:
    """Writes the trace with placeholders for all names that are not public; returns how many.

    Paths, hosts, users, stacks, and arguments and metadata that are unknown or not of their type are left out. Times,
    sizes, shapes, identifiers and everything else that figures are made of stay.
    """
    table = trace.table
    names = Names(table.names)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        kind = Kind(int(table.kind[row])) if row >= 0 else Kind.OTHER
        made = names.around(event)
        if row >= 0:
            made |= {"ts": microseconds(int(table.start_ns[row])), "dur": microseconds(int(table.duration_ns[row]))}
        name, args = event.get("name"), event.get("args")
        if event.get("ph") == "M":
            known = is_one_of(name, _SETS["metadata_events"])
            return made | {"name": name, "args": names.of_metadata(args)} if known else None
        if isinstance(name, str):
            made["name"] = names.name(name, kind)
        if isinstance(args, dict):
            made["args"] = names.arguments(args)
        return made

    rewrite(table, path, edit, names.metadata(table.metadata))
    return names.count


def is_one_of(value: Any, known: Collection[str]) -> bool:
    return isinstance(value, str) and value in known


def is_number(value: Any, depth: int = 0) -> bool:
    """Whether it is a number, a text of numbers, or a list of such values, lists within lists up to 8 deep."""
    kind = type(value)
    if kind is int or kind is float or kind is bool or value is None:
        return True
    if kind is list:
        return depth < _DEEPEST and all(is_number(each, depth + 1) for each in value)
    return kind is str and _NUMBER_TEXT.fullmatch(value) is not None


class Names:
    """Placeholders by name, the same for the same name: ``op1``, ``kernel2``, ``range1 12``, ``file3.py(14): f``.

    ``recorded``: names of a trace. Numbers of its ranges that are not those of steps, layers and the like become their
    rank among those of ranges of the same name.
    """

    def __init__(self, recorded: Iterable[str] = ()) -> None:
        self._catalog = Catalog(bundled_extensions())
        known = (*self._catalog.bindings, *self._catalog.categories)
        self._known = {name.removeprefix("aten::").replace("_", "").casefold() for name in known}
        self._words = Words(known, (pattern.regex for pattern in self._catalog.kernel_patterns), self.placeholder)
        self._numbers = _numbers_by_stem(recorded)
        public = public_names()
        self._events, self._literals = frozenset(public["events"]), frozenset(public["literals"].split())
        self._optimizers = frozenset(public["optimizers"].split())
        self._categories: dict[str, str] = {}
        self._named: dict[str, str] = {}
        self._made: dict[tuple[str, str], str] = {}
        self._counts: Counter[str] = Counter()
        self._names: dict[tuple[str, Kind], str] = {}

    @property
    def count(self) -> int:
        return len(self._made)

    def name(self, name: str, kind: Kind) -> str:
        """The name itself where it is public."""
        found = self._names.get((name, kind))
        if found is None:
            found = self._names[name, kind] = self._rules.get(kind, Names._op)(self, name)
        return found

    def placeholder(self, word: str, text: str) -> str:
        made = self._made.get((word, text))
        if made is None:
            self._counts[word] += 1
            made = self._made[word, text] = f"{word}{self._counts[word]}"
        return made

    def around(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """What is neither the name of an event nor its arguments."""
        made = {key: event[key] for key, known in _LETTERS.items() if key in event and is_one_of(event[key], known)}
        made |= {key: event[key] for key in _TIMES if key in event and is_number(event[key])}
        if "cat" in event:
            made["cat"] = self.category(event["cat"])
        return made | {key: self.identifier(event[key], word) for key, word in _IDENTIFIERS.items() if key in event}

    def category(self, text: Any) -> str:
        """A category that profilers write; ``other`` for another, or that of the host calls of another vendor."""
        found = self._categories.get(text) if isinstance(text, str) else _OTHER
        if found is None:
            vendor, _, calls = text.lower().rpartition("_")
            if calls in ("runtime", "driver") and vendor:
                found = text if vendor in _SETS["vendors"] else f"privateuse1_{calls}"
            else:
                known = text in _SETS["categories"] or kind_of_category(text) is not Kind.OTHER
                found = text if known else _OTHER
            self._categories[text] = found
        return found

    def identifier(self, value: Any, word: str = "process") -> Any:
        """A process, thread or flow: numbers, and what profilers call them, stay."""
        if not isinstance(value, str):
            return value if isinstance(value, int | float) else None
        is_public = _PROCESS.fullmatch(value) or _THREAD.fullmatch(value) or is_number(value)
        return value if is_public else self.placeholder(word, value)

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of an event that are known, each where its value is of its type."""
        made = {}
        for key, value in args.items():
            if key in _SETS["numbers"]:
                if is_number(value):
                    made[key] = value
            elif key in _OTHER_ARGUMENTS:
                made[key] = _OTHER_ARGUMENTS[key](self, value)
        return made

    def word(self, value: Any) -> Any:
        """A word, or several, of which private ones are replaced; numbers stay."""
        if isinstance(value, str):
            found = self._named.get(value)
            if found is None:
                found = self._named[value] = value if DType.parse(value) is not None else self._words.published(value)
            return found
        return value if is_number(value) else None

    def types(self, value: Any) -> Any:
        """Types of inputs: those of PyTorch."""
        return _each(value, lambda text: text if text in _SETS["types"] or DType.parse(text) is not None else "unknown")

    def literals(self, value: Any) -> Any:
        """Inputs as they were given: numbers, truth values and words of schemas."""
        known = self._literals
        return _each(value, lambda text: text if is_number(text) or text in known or _LITERAL.fullmatch(text) else "")

    def tiles(self, value: Any) -> Any:
        """The sizes of tiles that a Triton kernel was compiled with; what an op of XLA computes and moves."""
        if not isinstance(value, list):
            return ",".join(_TILE.findall(value)) if isinstance(value, str) else ""
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2 and pair[0] in WORK]
        return [[key, _each(part, lambda text: text if _OF_HLO.fullmatch(text) else "")] for key, part in pairs] or ""

    def of_kernel(self, value: Any) -> Any:
        return self.name(value, Kind.KERNEL) if isinstance(value, str) else None

    def of_metadata(self, args: Any) -> dict[str, Any]:
        """What names or sorts a process or thread."""
        args = args if isinstance(args, dict) else {}
        made = {key: args[key] for key in ("sort_index",) if key in args and is_number(args[key])}
        return made | {key: self._of_process(args[key]) for key in ("name", "labels") if isinstance(args.get(key), str)}

    def _of_process(self, text: str) -> str:
        of_rank = _OF_RANK.fullmatch(text)
        rank, process = (of_rank["rank"], of_rank["process"]) if of_rank else ("", text)
        if public := _PROCESS.fullmatch(process) or _RANK.fullmatch(process) or _THREAD.match(process):
            return rank + public[0]
        return rank + self.placeholder("process", process)

    def group(self, name: Any) -> Any:
        """A process group's name: numbers and the words that say what it is for stay."""
        if not isinstance(name, str):
            return name if is_number(name) else None
        return name if PUBLIC_GROUPS.fullmatch(name) else self.placeholder("group", name)

    def metadata(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What stands round the events."""
        made = {key: value for key, value in values.items() if key in _SETS["metadata_numbers"] and is_number(value)}
        made |= {key: value for key, value in values.items() if key in _SETS["versions"] and _is_version(value)}
        if is_one_of(values.get("displayTimeUnit"), ("ms", "ns")):
            made["displayTimeUnit"] = values["displayTimeUnit"]
        if isinstance(devices := values.get("deviceProperties"), list):
            made["deviceProperties"] = [self._device(entry) for entry in devices if isinstance(entry, dict)]
        if isinstance(info := values.get("distributedInfo"), dict):
            made["distributedInfo"] = self._job(info)
        return made

    def _device(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: value for key, value in entry.items() if key in _SETS["of_a_device"] and is_number(value)}
        return made | ({"name": self.word(entry["name"])} if isinstance(entry.get("name"), str) else {})

    def _job(self, info: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: value for key, value in info.items() if key in _SETS["of_the_job"] and is_number(value)}
        made |= {key: value for key, value in info.items() if key in _SETS["versions"] and _is_version(value)}
        if isinstance(info.get("backend"), str):
            made["backend"] = self.word(info["backend"])
        if isinstance(groups := info.get("pg_config"), list):
            made["pg_config"] = [self._group_entry(entry) for entry in groups if isinstance(entry, dict)]
        return made

    def _group_entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        made = {key: value for key, value in entry.items() if key in _SETS["of_a_group"] and is_number(value)}
        return made | {key: self.group(entry[key]) for key in ("pg_name", "pg_desc") if key in entry}

    def _op(self, name: str) -> str:
        if name.startswith(_ENGINE) and not name.startswith(2 * _ENGINE):
            return _ENGINE + self._op(name.removeprefix(_ENGINE))
        catalog = self._catalog
        if name in catalog.bindings or name in catalog.categories or self._is_event(name):
            return name
        # An autograd node of PyTorch 1.x (``MaxPool2DWithIndicesBackward``) is that of a known op
        if name.endswith("Backward") and name.removesuffix("Backward").casefold() in self._known:
            return name
        if PUBLIC_ENGINE_STEPS.match(name):
            return self._words.published(name, digits=_DIGITS_OF_COUNTS)
        if PUBLIC_OPS.match(name) or catalog.category_of(name) is not None:
            return self._words.published(name)
        return self.placeholder("op", name) + _phase(name)

    def _is_event(self, name: str) -> bool:
        """Whether everybody's traces have this name."""
        optimizer = _OPTIMIZERS.fullmatch(name)
        of_one = optimizer is not None and optimizer["optimizer"] in self._optimizers
        return of_one or name in self._events or PUBLIC_EVENTS.fullmatch(name) is not None

    def _range(self, name: str) -> str:
        if PUBLIC_OPS.match(name) or PUBLIC_ENGINE_STEPS.match(name) or self._is_event(name):
            return self._op(name)
        number = _NUMBER.search(name)
        stem = name if number is None else f"{name[: number.start()]}#{number[2]}"
        word = "" if number is None else telling_word(name[: number.start()])
        made = self.placeholder("range", stem) + _phase(name) + (f"_{word}" if word else "")
        if number is not None:
            ranks = self._numbers.get(stem) or {_as_number(number[1]): 1}
            kept = word and all(length <= _DIGITS for length, _ in ranks)
            made += f" {number[1] if kept else ranks[_as_number(number[1])]}"
        told = telling_part(name)
        spelled = (made, f"{told} {made}", f"{made} {told}", made + told)
        return next((text for text in spelled if telling_part(text) == told), made)

    def _kernel(self, name: str) -> str:
        if PUBLIC_KERNELS.match(name) or PUBLIC_OPS.match(name):
            return self._words.published(name)
        made = self.placeholder("kernel", name)
        said = self._said(name)
        (pattern,) = classify([name], self._catalog.kernel_patterns)
        found = None if pattern is None else re.search(pattern.regex, name)
        published, told = self._words.published(name), "" if found is None else self._words.published(found[0])
        telling = (f"{told} {made}", f"{made}_{told}", f"{published} {made}")
        return next((text for text in (made, *telling) if self._said(text) == said), made)

    def _said(self, kernel: str) -> tuple[object, ...]:
        """What a kernel's name says: its pattern, and what it computes in by the type of its tensors."""
        types = (precisions([kernel], dtype)[0] for dtype in _TYPES_OF_PRODUCTS)
        return *classify([kernel], self._catalog.kernel_patterns), *types

    def _frame(self, name: str) -> str:
        if name.startswith(MODULE_PREFIX):
            instance = _INSTANCE.search(name)
            module = name.removeprefix(MODULE_PREFIX)[: None if instance is None else -len(instance[0])]
            shown = module if module in _SETS["modules"] else self.placeholder("Module", module)
            return MODULE_PREFIX + shown + ("" if instance is None else instance[0])
        if (public := PUBLIC_FRAMES.fullmatch(name)) is not None:
            if public["collect"]:
                return f"{public['collect']}>"
            told = self._words.published(public["method"] or public["public"], of_files=True)
            return f"<built-in method {told} of {public['type']} object>" if public["method"] else told
        frame = _FRAME.fullmatch(name)
        if frame is None:
            return self.placeholder("function", name)
        file, function = self.placeholder("file", frame["file"]), self.placeholder("function", frame["function"])
        told = "_data_load" if _LOADS_DATA.search(frame["function"]) else ""
        return f"{file}.py({frame['line']}): {function}{told}"

    def _call(self, name: str) -> str:
        return self._words.published(name) if PUBLIC_CALLS.match(name) else self.placeholder("call", name)

    def _copy(self, name: str) -> str:
        return self._words.published(name)

    _rules: Mapping[Kind, Callable[[Names, str], str]] = {
        Kind.RUNTIME: _call, Kind.DRIVER: _call, Kind.KERNEL: _kernel, Kind.MEMCPY: _copy, Kind.MEMSET: _copy,
        Kind.USER_ANNOTATION: _range, Kind.GPU_USER_ANNOTATION: _range, Kind.PYTHON_FUNCTION: _frame,
    }  # fmt: skip


#: Arguments that are not numbers, and what of their values stays.
_OTHER_ARGUMENTS: Mapping[str, Callable[[Names, Any], Any]] = {
    **dict.fromkeys(("kind", "cuda_sync_kind", "Collective name", "kernel_backend", "scope", "dtype"), Names.word),
    **dict.fromkeys(("Process Group Name", "Process Group Description"), Names.group),
    "Input type": Names.types,
    "kernel_kwargs": Names.tiles,
    "Concrete Inputs": Names.literals,
    "kernel": Names.of_kernel,
}

#: Opcodes, types, categories and the custom calls of libraries.
_OF_HLO = re.compile(r"[a-z][a-z0-9 _-]{0,40}|[A-Z_]{1,40}|__cu(?:dnn|blas)[\w$]{0,60}")


def _phase(name: str) -> str:
    found = _PHASES.search(name)
    return "" if found is None else f"_{found[0] if found[0].startswith('(') else found[0].lower()}"


def _as_number(digits: str) -> tuple[int, str]:
    """What sorts as the number does; Python makes none of thousands of digits."""
    significant = digits.lstrip("0")
    return len(significant), significant


def _numbers_by_stem(names: Iterable[str]) -> dict[str, dict[tuple[int, str], int]]:
    """By name without its last number: the ranks of its numbers, from 1 on."""
    found: dict[str, set[tuple[int, str]]] = {}
    for name in names:
        if (number := _NUMBER.search(name)) is not None:
            found.setdefault(f"{name[: number.start()]}#{number[2]}", set()).add(_as_number(number[1]))
    return {stem: {number: rank for rank, number in enumerate(sorted(numbers), 1)} for stem, numbers in found.items()}


def _is_version(value: Any) -> bool:
    return is_number(value) or (isinstance(value, str) and _VERSION.fullmatch(value) is not None)


def _each(value: Any, made: Callable[[str], str], depth: int = 0) -> Any:
    if isinstance(value, list):
        return [_each(part, made, depth + 1) for part in value] if depth < _DEEPEST else None
    return made(value) if isinstance(value, str) else value if is_number(value) else None


_SLICES, _FLOWS = ("X", "B", "E"), ("s", "t", "f")
_ALWAYS = -math.inf, math.inf


class Cut(Record, frozen=True, kw_only=True):
    """What stays. ``steps``: ``3``, ``3-5`` or ``steady``; ``rank``: of a merged file; ``categories`` as recorded."""

    steps: str | None = None
    rank: int | None = None
    categories: tuple[str, ...] = ()


def slim(trace: Trace, path: str | PathLike[str], cut: Cut) -> tuple[int, int]:
    """Writes what stays to ``path``; returns (events written, events of the file).

    Of steps: what runs on the host in them, what they launched, and what the device still did of earlier work as they
    began: as if recording had begun there. UsageError for steps or a category that the trace does not have.
    """
    recording = Recording.of(trace, AnalysisOptions(rank=cut.rank, cpu=True))
    table = recording.recorded.table
    kept = np.ones(len(table), bool)
    window: tuple[int, int] | None = None
    if cut.steps is not None:
        kept, window = _of_steps(recording, cut.steps)
    if cut.categories:
        unknown = set(cut.categories) - set(table.categories)
        if unknown:
            raise UsageError.unknown("category", min(unknown), table.categories)
        kept &= np.isin(table.category, [i for i, name in enumerate(table.categories) if name in cut.categories])
    if not kept.any():
        raise NothingToAnalyzeError(f"{table.source}: no event matches everything asked for; give fewer conditions")
    others = _Others(table, kept, None if cut.categories else window or _ALWAYS)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        return others.edit(event) if row < 0 else event if kept[row] else None

    return rewrite(table, path, edit), table.events_total


class _Others:
    """Which events stay that are no rows: names of processes that stay, and what happens on their lanes meanwhile."""

    def __init__(self, table: TraceTable, kept: Bools, window: tuple[float, float] | None) -> None:
        """``window``: None leaves out all but names."""
        self._window = window
        self._lanes = {table.lanes[lane] for lane in np.unique(table.lane[kept]).tolist()}
        self._pids = {pid for pid, _ in self._lanes}
        self._left_out = set(table.correlation[~kept].tolist()) - set(table.correlation[kept].tolist())

    def edit(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event, or None."""
        phase = event.get("ph")
        try:
            if phase == "M":
                return event if event.get("pid") in self._pids else None
            here = (event.get("pid"), event.get("tid")) in self._lanes
            if phase in _SLICES or not here or (phase in _FLOWS and event.get("id") in self._left_out):
                return None
        except TypeError:  # a list or an object where a number belongs
            return None
        time, window = event.get("ts"), self._window
        inside = window is not None and isinstance(time, int | float) and window[0] <= time * 1000 < window[1]
        return event if inside else None


def _of_steps(recording: Recording, steps: str) -> tuple[Bools, tuple[int, int]]:
    """(rows that stay, from when to when)."""
    table: TraceTable = recording.recorded.table
    window = Window.of_file(recording, AnalysisOptions())
    window = window.within(tuple(select_steps(steps, window.times, window.steady)))
    if not len(window.activity):
        raise NothingToAnalyzeError(f"{table.source}: steps {steps} launched no GPU work; choose others")
    chosen = [window.times.steps[i] for i in window.selected]
    following = [s.start_ns for s in window.times.steps if s.start_ns >= chosen[-1].end_ns]
    span = chosen[0].start_ns, min(following, default=chosen[-1].end_ns)
    start, end = table.start_ns, table.start_ns + table.duration_ns
    kept = (start < span[1]) & (end > span[0])
    others = {(s.start_ns, s.end_ns) for s in window.times.steps} - {(s.start_ns, s.end_ns) for s in chosen}
    annotations = np.flatnonzero(kept & (table.kind == Kind.USER_ANNOTATION)).tolist()
    kept[[row for row in annotations if (int(start[row]), int(end[row])) in others]] = False
    launched = np.zeros(len(table), bool)
    launched[window.activity.rows[window.activity.rows < len(table)]] = True
    last = max(span[1], int(end[launched].max(initial=span[1])))
    # The device may be far behind: what was launched earlier runs as the steps begin, what was launched later does not
    device = np.flatnonzero(table.is_of(DEVICE_KINDS))
    launch = recording.recorded.tree.launch[device]
    earlier = (launch < 0) | (start[launch] < span[0])
    kept[device] = launched[device] | (earlier & (end[device] > span[0]) & (start[device] < last))
    other = ~np.isin(table.kind, (*HOST_KINDS, *DEVICE_KINDS))
    kept[other] = (start[other] < last) & (end[other] > span[0])
    return kept, (span[0], last)
