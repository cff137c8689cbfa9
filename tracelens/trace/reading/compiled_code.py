"""What torch.compile says of the code it made: the ops and source lines of each kernel, graph breaks, recompilations.

From a log of TORCH_TRACE, from what tlparse makes of one, or from a folder of TORCH_COMPILE_DEBUG; also
``kernel_information.json`` of AOTInductor. Formats: torch/_logging/_internal.py (a line of a log and its payload),
torch/_inductor/debug.py (provenance), torch/_dynamo/symbolic_convert.py and guards.py (breaks, reasons), of PyTorch
2.13; folders as in meta-pytorch/tlparse 0.4.3. Names of files are compared with known ones and never opened as paths.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracelens.errors import InputError
from tracelens.files.memory_limit import reading
from tracelens.types.records import Record

#: Files of a folder that are looked at, at most.
MOST_FILES = 50_000
#: What tlparse copies a log to: all other files of its folder are made from it.
_RAW = "raw.log"
#: Characters kept of a reason, a line of code or a name.
_LONGEST = 300


class CompiledKernel(Record, frozen=True, kw_only=True):
    """``graph``: the compilation (``0/1``), or the folder; ``key``: of the FX graph in Inductor's cache, empty where it
    is not known. ``ops``: ATen ops, else nodes after the graph passes; ``nodes``: before them; ``lines``: of the
    program. ``hash``: of the generated code, as recordings have it; empty where it is not known.
    """

    name: str
    graph: str
    key: str = ""
    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    hash: str = ""


class Compilation(Record, frozen=True, kw_only=True):
    """What a compilation (``graph``) tells. ``line``: of the program, None where it was not said."""

    graph: str
    line: str | None
    reason: str


class GraphBreak(Compilation, frozen=True, kw_only=True):
    """``resumed``: the compilations of what comes after it."""

    resumed: tuple[str, ...] = ()


class Recompilation(Compilation, frozen=True, kw_only=True):
    """``graph``: the new one; ``line``: where its function begins; ``took_s``: as PyTorch measured it."""

    took_s: float | None = None


class CompiledCode(Record, frozen=True, kw_only=True):
    """All of it, as far as the files have it."""

    kernels: tuple[CompiledKernel, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()


class _Mappings(msgspec.Struct):
    """``cppCodeToPost``: also of Triton kernels."""

    code_to_post: dict[str, list[str]] = msgspec.field(default_factory=dict, name="cppCodeToPost")
    post_to_pre: dict[str, list[str]] = msgspec.field(default_factory=dict, name="postToPre")


class _Known(msgspec.Struct):
    stack_traces: list[str] = []
    post_grad_nodes: list[str] = []
    pre_grad_nodes: list[str] = []


class _Metrics(msgspec.Struct):
    compile_id: str | None = None
    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    entire_frame_compile_time_s: float | None = None


class _OfKernel(msgspec.Struct):
    """What is known so far of one kernel."""

    atens: tuple[str, ...] = ()
    post: list[str] = []
    pre: list[str] = []
    stacks: list[str] = []
    hash: str = ""


T = TypeVar("T")
_HANDLE = re.compile(r":\d+$")
_NUMBER = re.compile(r"_\d+$")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?(?:\n\s*([^\n]+))?')
_BREAK_AT = re.compile(r"^Graph break in user code at (.+):(\d+)\s*$", re.MULTILINE)
_BREAK_WHY = tuple(
    re.compile(pattern, re.MULTILINE) for pattern in (r"^\s*Explanation: (.+)$", r"^(?:Graph Break )?Reason: (.+)$")
)
_ATENS = re.compile(r"Source Nodes: \[([^\]\n]*)\], Original ATen: \[([^\]\n]*)\]")
_MADE = re.compile(r"^\s*(?:(\w+) = async_compile\.\w+\(|# \[Provenance debug handles\] ([\w.:, ]+))")
_PATH = re.compile(r"^\s*# kernel path: \S*?(\w+)\.py\s*$")
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
_RECORD = re.compile(rb"^[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ [^\n]*?:\d+\] (?=\{)")
_FOLDER = re.compile(r"^[!-]?[^_/]*_(\d+)_(\d+)_\d+$")
_SUFFIX = re.compile(r"_(\d+)$")


class _Collected:
    """What the artifacts say, in the order in which PyTorch wrote them.

    Of a compilation (``0/0``) the artifacts of a kind come once for each FX graph that Inductor made of it, forward and
    backward: the first of each kind belong together, then the second.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, int], dict[str, _OfKernel]] = defaultdict(lambda: defaultdict(_OfKernel))
        self._keys: dict[tuple[str, int], str] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._metrics: dict[str, _Metrics] = {}
        self._breaks: list[GraphBreak] = []
        self._recompiled: list[tuple[str, str]] = []
        self.known = 0

    def add(self, name: str, graph: str, text: str | bytes, where: str) -> None:
        """An artifact by its name, as far as it is one of those looked for. InputError where it is damaged."""
        for known, method in _METHODS.items():
            if name.startswith(known):
                number = self._seen[known, graph]
                self._seen[known, graph] += 1
                self.known += 1
                method(self, (graph, number), text, where)
                return

    def mappings(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        found = _decoded(text, _Mappings, where)
        for name, nodes in found.code_to_post.items():
            kernel = self._kernel(part, name)
            kernel.post += nodes
            kernel.pre += [pre for node in nodes for pre in found.post_to_pre.get(node, ())]

    def nodes(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        for name, nodes in _decoded(text, dict[str, list[str]], where).items():
            self._kernel(part, name).post += nodes

    def stacks(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        for name, stacks in _decoded(text, dict[str, list[str]], where).items():
            self._kernel(part, name).stacks += stacks

    def kernels(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        for name, known in _decoded(text, dict[str, _Known], where).items():
            kernel = self._kernel(part, name)
            kernel.stacks += known.stack_traces
            kernel.post += known.post_grad_nodes
            kernel.pre += known.pre_grad_nodes

    def cache(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        key = _decoded(text, dict[str, Any], where).get("key")
        if isinstance(key, str):
            self._keys[part] = key

    def code(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        """The comment before each kernel, and before each call, of Inductor's output names its ops."""
        said: re.Match[str] | None = None
        path = ""
        for line in _text(text, where).splitlines():
            if found := _PATH.match(line):
                path = found[1]
            elif found := _ATENS.search(line):
                said = found
            elif said is not None and (made := _MADE.match(line)):
                for name in (made[1] or made[2]).split(","):
                    kernel = self._kernel(part, name.strip())
                    kernel.atens = tuple(each.strip() for each in said[2].split(",") if each.strip())
                    kernel.pre = kernel.pre or [each.strip() for each in said[1].split(",") if each.strip()]
                    kernel.hash = kernel.hash or path
                said, path = None, ""

    def broken(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        said = _text(text, where)
        at = _BREAK_AT.search(said)
        why = next((found[1] for pattern in _BREAK_WHY if (found := pattern.search(said))), said.strip()[:_LONGEST])
        line = None if at is None else f"{_cut(at[1])}:{at[2]}"
        self._breaks.append(GraphBreak(graph=part[0], line=line, reason=_cut(why)))

    def recompiled(self, part: tuple[str, int], text: str | bytes, where: str) -> None:
        said = _text(text, where).strip()
        reasons = _decoded(said, list[str], where) if said.startswith("[") else [said.strip('"')]
        self._recompiled.append((part[0], _cut("; ".join(reasons))))

    def metrics(self, record: Any, where: str) -> None:
        """Of a compilation: its function, and how long it took."""
        try:
            found = msgspec.convert(record, _Metrics)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: compilation_metrics is damaged: {error}") from error
        if found.compile_id:
            self._metrics[found.compile_id] = found

    def _kernel(self, part: tuple[str, int], name: str) -> _OfKernel:
        return self._kernels[part][_HANDLE.sub("", name)]

    def result(self) -> CompiledCode:
        kernels = [
            CompiledKernel(
                name=_cut(name),
                graph=_cut(part[0]),
                key=_cut(self._keys.get(part, "")),
                ops=kernel.atens or _distinct(_NUMBER.sub("", node) for node in kernel.post),
                nodes=_distinct(kernel.pre),
                lines=_distinct(line for stack in kernel.stacks if (line := _line_of(stack))),
                hash=_cut(kernel.hash),
            )
            for part, named in self._kernels.items()
            for name, kernel in named.items()
        ]
        of = [(graph, reason, self._metrics.get(graph, _Metrics())) for graph, reason in self._recompiled]
        recompilations = [
            Recompilation(graph=graph, reason=reason, line=_begin(told), took_s=told.entire_frame_compile_time_s)
            for graph, reason, told in of
        ]
        # The function that goes on where a graph broke is named by its line
        resumed = [
            (f"{each.co_filename}:{found[2]}", graph)
            for graph, each in self._metrics.items()
            if (found := _RESUMED.match(each.co_name or "")) is not None
        ]
        breaks = [
            msgspec.structs.replace(each, resumed=tuple(graph for line, graph in resumed if line == each.line))
            for each in self._breaks
        ]
        return CompiledCode(kernels=tuple(kernels), breaks=tuple(breaks), recompilations=tuple(recompilations))


_METHODS: dict[str, Callable[[_Collected, tuple[str, int], str | bytes, str], None]] = {
    "inductor_provenance_tracking_node_mappings": _Collected.mappings,
    "inductor_triton_kernel_to_post_grad_nodes": _Collected.nodes,
    "inductor_provenance_tracking_kernel_stack_traces": _Collected.stacks,
    "inductor_generated_kernel_stack_traces": _Collected.stacks,
    "kernel_information": _Collected.kernels,
    "fx_graph_cache_": _Collected.cache,
    "inductor_output_code": _Collected.code,
    "output_code": _Collected.code,
    "dynamo_graph_break_reason": _Collected.broken,
    "recompile_reasons": _Collected.recompiled,
}
_WHERE_FROM = (
    "give a log of TORCH_TRACE, the folder that tlparse makes of it, or torch_compile_debug of TORCH_COMPILE_DEBUG=1"
)


def read_compiled_code(path: Path) -> CompiledCode:
    """Of a log or a folder. InputError, in a sentence, where it is damaged or holds nothing of the kind."""
    collected = _Collected()
    if path.is_dir():
        for file, graph in _files(path):
            _add_file(collected, file, graph)
    elif any(path.name.startswith(known) for known in _METHODS) or path.name == "raw.jsonl":
        _add_file(collected, path, path.parent.name)
    else:
        _add_log(collected, path)
    if not collected.known:
        raise InputError(f"{path.name} has no files of torch.compile: {_WHERE_FROM}")
    return collected.result()


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files with the compilation that their folder is named after; links are not followed."""
    count = 0
    for parent, below, names in os.walk(folder):
        if _RAW in names:
            below.clear()
            names = [_RAW]
        below.sort()
        found = _FOLDER.match(Path(parent).name)
        graph = f"{found[1]}/{found[2]}" if found else Path(parent).name
        # The number at the end is the order in which tlparse met them
        for name in sorted(names, key=lambda each: (_last_number(each), each)):
            count += 1
            if count > MOST_FILES:
                raise InputError(f"{folder.name} has more than {MOST_FILES:,} files: {_WHERE_FROM}")
            file = Path(parent, name)
            if not file.is_symlink():
                yield file, graph


def _last_number(name: str) -> int:
    found = _SUFFIX.search(Path(name).stem)
    return int(found[1]) if found and len(found[1]) < 10 else -1


def _add_file(collected: _Collected, file: Path, graph: str) -> None:
    """A file of a folder, by its name."""
    name = file.name
    if name.endswith((".json", ".txt", ".py")) and any(name.startswith(known) for known in _METHODS):
        collected.add(name, graph, b"".join(_lines(file)), name)
    elif name == "raw.jsonl":
        for number, line in enumerate(_lines(file), 1):
            if b'"compilation_metrics"' in line:
                where = f"{name}: line {number}"
                collected.metrics(_decoded(line, dict[str, Any], where).get("compilation_metrics"), where)
    elif name.endswith(".log"):
        _add_log(collected, file)


def _add_log(collected: _Collected, file: Path) -> None:
    """A log of TORCH_TRACE: records, and behind one the lines of its payload, each after a tab. InputError."""
    wanted: tuple[str, str, str] | None = None
    payload: list[bytes] = []
    for number, line in enumerate(_lines(file), 1):
        if line.startswith(b"\t"):
            if wanted is not None:
                payload.append(line[1:])
            continue
        if wanted is not None:
            collected.add(wanted[0], wanted[1], b"".join(payload), wanted[2])
            payload = []
        wanted = _record(collected, line, f"{file.name}: line {number}")
    if wanted is not None:
        collected.add(wanted[0], wanted[1], b"".join(payload), wanted[2])


def _record(collected: _Collected, line: bytes, where: str) -> tuple[str, str, str] | None:
    """Name, compilation and place of the artifact that begins with a line; None where it does not begin a known one."""
    is_artifact = b'"artifact"' in line or b'"inductor_output_code"' in line
    if not (is_artifact or b'"compilation_metrics"' in line) or not (begin := _RECORD.match(line)):
        return None
    record = _decoded(line[begin.end() :], dict[str, Any], where)
    if "compilation_metrics" in record:
        collected.metrics(record["compilation_metrics"], where)
        return None
    artifact = record.get("artifact")
    name = artifact.get("name") if isinstance(artifact, dict) else "inductor_output_code"
    graph = f"{record.get('frame_id', '-')}/{record.get('frame_compile_id', '-')}"
    return (name, graph, f"{where}: {_cut(name)}") if isinstance(name, str) else None


def _lines(file: Path) -> Iterator[bytes]:
    with reading(file), file.open("rb") as lines:
        yield from lines


def _text(text: str | bytes, where: str) -> str:
    try:
        return text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is damaged: {error.reason} at byte {error.start}") from error


def _decoded(text: str | bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{where} is damaged: {error}") from error


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_cut(text) for text in texts))


def _line_of(stack: str) -> str:
    """The innermost frame of a stack: ``file:line in function: code``."""
    frames = _FRAME.findall(stack.replace("\\n", "\n"))
    if not frames:
        return ""
    file, line, function, code = frames[-1]
    return _cut(f"{file}:{line}" + (f" in {function}" if function else "") + (f": {code}" if code else ""))


def _begin(metrics: _Metrics) -> str | None:
    """Where a function begins."""
    if not metrics.co_filename or metrics.co_firstlineno is None:
        return None
    return _cut(f"{metrics.co_filename}:{metrics.co_firstlineno}") + (
        f" in {_cut(metrics.co_name)}" if metrics.co_name else ""
    )
