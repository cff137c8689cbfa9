"""Find and load what adds to tracelens from outside: bundled, a file, an installed package, an object in a notebook.

On floor 0 beside ``registry``, because every room above takes extensions the same way: ``Extension.sources`` goes into
``Registry.overlaid``. It knows no room: what an extension holds is only known by its marks.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import itertools
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.machinery import SourceFileLoader
from os import PathLike
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias

from tracelens.errors import UsageError
from tracelens.files.memory_limit import raise_at_limit
from tracelens.registry import Registry, marked_in, marks_of
from tracelens.types.records import Record

ENTRY_POINT_GROUP = "tracelens.extensions"
#: What a command line says instead of a name so that no bundled extension switches itself on.
NONE = "none"

#: What a caller may give: a bundled or installed name, a path, a module, or a marked object.
ExtensionSpec: TypeAlias = str | PathLike[str] | ModuleType | object

_PACKAGE = "tracelens_extensions"
# Kinds of marks whose keys are op names.
_NAMED_BY = ("traced_as", "category", "holds_ops", "backward_of")
_SEPARATORS = {"/", os.sep}
#: What changes the tree of calls in a file written for TraceLens, and the kind of mark under which it is found.
TREE_HOOK = "tree_postprocess_extension"
#: What a file written for TraceLens assigns; ``tracelens.laboratory.amd_tracelens`` reads them.
_FOREIGN_HOOKS = ("perf_model_extension", "dict_cat2names_extension", "op_category_extension", TREE_HOOK)
#: What else such a file may assign, which nothing here uses.
_UNUSED_HOOKS = ("op_models", "external_op_model", "kernel_filters")
_numbers = itertools.count(1)
_EXAMPLE = """\
    from tracelens import GEMM, OpSignature, traced_as
    @traced_as("my_lib::gemm")
    def _read(op: OpSignature) -> GEMM:  # or EPComm, SDPA, GroupedGEMM, Normalization ...
        (m, k), (_, n) = op.shape(0, rank=2), op.shape(1, rank=2)
        return GEMM(m=m, n=n, k=k, dtype=op.dtype(0), dtype_out=op.dtype(0))"""
#: How many times its limit foreign code may take where it does not work: it sleeps, or others have the processor.
_WAITING = 12


class Extension(Record, frozen=True, kw_only=True):
    """Something that adds to one report.

    ``sources`` are what ``Registry.collect`` and ``overlay`` take. ``origin`` says where it came from, without a folder
    of this machine: ``bundled``, ``file my_ops.py``, ``installed by my-package``, ``module``, ``object``.
    ``traced_names`` are the op names it gives a perf model or a category, sorted; ``name_patterns`` regular expressions
    of further op names, and of the step annotations it reads. ``note``: what of it is not used.
    """

    name: str
    sources: tuple[object, ...]
    origin: str
    traced_names: tuple[str, ...]
    name_patterns: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_bundled(self) -> bool:
        return self.origin == "bundled"

    def additions(self) -> tuple[tuple[str, str, str], ...]:
        """(kind of mark, key, ``file.py:12 (name)``) of everything it adds, sorted."""
        kinds = {found.kind for source in self.sources for target in marked_in(source) for found in marks_of(target)}
        claims = [(kind, claim) for kind in kinds for claim in Registry.collect(kind, self.sources).values()]
        return tuple(sorted((kind, claim.key, claim.origin) for kind, claim in claims))

    @classmethod
    def of(cls, source: object, *, name: str, origin: str, where: str) -> Extension:
        """From a module or a marked object; UsageError naming ``where`` when nothing in it is marked.

        A module that marks nothing but has the hooks of TraceLens adds what they amount to.
        """
        sources, note = (source,), ""
        if not marked_in(source):
            held = vars(source) if isinstance(source, ModuleType) else {}
            if not any(hook in held for hook in _FOREIGN_HOOKS):
                none = "has no function marked with @traced_as or such"
                raise UsageError(f"extension {where} {none}; write for example\n{_EXAMPLE}")
            sources = _amd_tracelens().adapted(held, where=where)
            if unused := [hook for hook in _UNUSED_HOOKS if hook in held]:
                note = f"extension {name}: {', '.join(unused)} not used: here `--backend` says what times an op"
        claims = {key for kind in _NAMED_BY for key in Registry.collect(kind, sources)}
        prefixes = (re.escape(prefix) for prefix in Registry.collect("annotated_as", sources))
        patterns = tuple(sorted((*Registry.collect("traced_as_pattern", sources), *prefixes)))
        names = tuple(sorted(claims))
        return cls(name=name, sources=sources, origin=origin, traced_names=names, name_patterns=patterns, note=note)


def load_extension(spec: ExtensionSpec) -> Extension:
    """The extension that ``spec`` means.

    In this order: a module or marked object as it is; a bundled name; an installed entry point of the group
    ``tracelens.extensions``; a path (ends in ``.py`` or holds a slash); an importable module's dotted name. So a file
    of the current folder is run only where the text says that a file is meant.

    A file is executed anew each time, so that an edit counts in the next report, and under a module name of its own.
    UsageError (exit 2), naming file and line, when it does not load, marks nothing, or claims one name twice.
    """
    if isinstance(spec, ModuleType):
        return Extension.of(spec, name=spec.__name__.rpartition(".")[2], origin="module", where=spec.__name__)
    if not isinstance(spec, str | PathLike):
        name = str(getattr(spec, "__name__", None) or type(spec).__name__)
        return Extension.of(spec, name=name, origin="object", where=name)
    text = os.fspath(spec)
    if text in bundled_names():
        return _load_bundled(text)
    if (installed := _load_installed(text)) is not None:
        return installed
    if isinstance(spec, PathLike) or text.endswith(".py") or not _SEPARATORS.isdisjoint(text):
        return _load_file(Path(text))
    if _is_importable(text):
        return Extension.of(_imported(text, shown=text), name=text, origin="module", where=text)
    known = {*bundled_names(), *(installed_name for installed_name, _ in installed_extensions())}
    raise UsageError(f"{UsageError.unknown('extension', text, known)} (or give the path of a .py file)")


def bundled_extensions() -> tuple[Extension, ...]:
    """All extensions that ship with tracelens, by name."""
    return tuple(_load_bundled(name) for name in bundled_names())


def installed_extensions() -> tuple[tuple[str, str], ...]:
    """(name, distribution) of every installed entry point, sorted. Loads none of them."""
    from importlib.metadata import entry_points

    found = {(p.name, p.dist.name if p.dist else "?") for p in entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(sorted(found))


def detect_bundled(names: Iterable[str]) -> list[str]:
    """The bundled extensions that know one of these op names, or read one of them as a step annotation, by name."""
    present = frozenset(names)
    bundled = bundled_extensions()
    described = tuple(filter(_any_of(e.name_patterns for e in bundled).match, present))
    return [
        extension.name
        for extension in bundled
        if not present.isdisjoint(extension.traced_names)
        or (described and any(map(_any_of([extension.name_patterns]).match, described)))
    ]


def _any_of(patterns: Iterable[tuple[str, ...]]) -> re.Pattern[str]:
    """One expression for all; without patterns, one that nothing matches."""
    return re.compile("|".join(f"(?:{text})" for group in patterns for text in group) or r"(?!)")


class TimeLimitError(BaseException):
    """Foreign code ran longer than it may. No ``Exception``, so that code which swallows those does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the block with TimeLimitError after ``seconds`` of processor time, which a busy machine does not lengthen.

    What waits instead of working ends after ``_WAITING`` times as long.
    Signals reach the main thread of a POSIX process only; elsewhere nothing is limited. A timer that was running before
    goes on afterwards with what is left of it.
    """
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        left_s = seconds - (time.thread_time() - worked_before)
        waiting_s = most_s - (time.monotonic() - began)
        if left_s > 0 and waiting_s > 0:
            signal.setitimer(signal.ITIMER_REAL, max(min(left_s, waiting_s), 1e-3))
            return
        # Again every second: a bare except swallows even this.
        signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
        done_in = f"{most_s:g} s" if left_s > 0 else f"{seconds:g} s of processor time"
        raise TimeLimitError(f"not done after {done_in}")

    began, worked_before, most_s = time.monotonic(), time.thread_time(), _WAITING * seconds
    # A timer from outside must not reach this handler
    outer_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer_s:
            signal.setitimer(signal.ITIMER_REAL, max(outer_s - (time.monotonic() - began), 1e-6), interval_s)


def overlay(registry: Registry, extensions: Iterable[Extension]) -> Registry:
    """``registry`` with what the extensions add or replace; the given registry stays as it is.

    Bundled ones first, then the rest, so that a user's reading replaces a bundled one. Within each of the two, one name
    claimed twice is a UsageError.
    """
    extensions = list(extensions)
    for layer in (True, False):
        sources = [source for e in extensions if e.is_bundled is layer for source in e.sources]
        if sources:
            registry = registry.overlaid(sources)
    return registry


def bundled_names() -> tuple[str, ...]:
    """Names of the bundled extensions: one file each."""
    return tuple(sorted(path.stem for path in _bundled_folder().glob("*.py") if path.stem != "__init__"))


@functools.cache
def _bundled_folder() -> Path:
    """The wheel's ``tracelens_extensions``, or in a checkout ``extensions/`` beside the package.

    In a checkout the folder comes first even where an editable install left a stale copy in site-packages.
    """
    root = Path(__file__).resolve().parent.parent
    for folder in (root / _PACKAGE, root / "extensions"):
        if (folder / "__init__.py").is_file():
            return folder
    raise UsageError(f"the bundled extensions are missing next to {root / 'tracelens'}; reinstall tracelens-perf")


@functools.cache
def _load_bundled(name: str) -> Extension:
    if _PACKAGE not in sys.modules:
        folder = _bundled_folder()
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise UsageError(f"{folder} is not a package; reinstall tracelens-perf")
        package = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
    module = _imported(f"{_PACKAGE}.{name}", shown=name)
    return Extension.of(module, name=name, origin="bundled", where=name)


def _load_file(path: Path) -> Extension:
    if not path.is_file():
        raise UsageError(f"there is no extension file {path}")
    imports = _amd_tracelens().stand_ins() if _has_foreign_hooks(path) else nullcontext()
    module_name = f"_tracelens_extension_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_FreshSource(module_name, str(path)))
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and type hints look their module up by name, so it stays there, under a name no import can mean.
    sys.modules[module_name] = module
    try:
        with imports:
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # foreign code runs here, and may fail in any way
        del sys.modules[module_name]
        raise_at_limit(error)
        raise UsageError(_failure(str(path), str(path), error)) from error
    return Extension.of(module, name=path.stem, origin=f"file {path.name}", where=str(path))


def _load_installed(name: str) -> Extension | None:
    """The extension that an installed package offers under this name."""
    from importlib.metadata import entry_points

    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if len({point.value for point in points}) > 1:
        offers = " and ".join(sorted(f"{p.dist.name if p.dist else '?'} ({p.value})" for p in points))
        raise UsageError(f"extension {name!r} is installed twice: by {offers}; uninstall one")
    if not points:
        return None
    point = points[0]
    module_name, _, attribute = point.value.partition(":")
    source: Any = _imported(module_name.strip(), shown=name)
    where = f"{name} ({point.value})"
    try:
        for part in filter(None, attribute.strip().split(".")):
            source = getattr(source, part)
    except AttributeError as error:
        raise UsageError(f"extension {where} does not load: {error}") from error
    distribution = point.dist.name if point.dist else "an unnamed package"
    return Extension.of(source, name=name, origin=f"installed by {distribution}", where=where)


def _imported(module_name: str, *, shown: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # foreign code runs here, and may fail in any way
        raise_at_limit(error)
        raise UsageError(_failure(shown, None, error)) from error


def _is_importable(name: str) -> bool:
    try:
        return all(part.isidentifier() for part in name.split(".")) and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class _FreshSource(SourceFileLoader):
    """Compiles the file as it is now.

    A cached ``.pyc`` is trusted while second and size agree, so an edit from a notebook could go unseen, and it would
    be written into the user's folder.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def _failure(shown: str, path: str | None, error: BaseException) -> str:
    """``extension my_ops.py:12 does not load: ImportError: No module named 'x'``."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"extension {_at(error.filename, path, shown)}:{error.lineno} does not load: {kind}: {error.msg}"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [f for f in frames if f[0] == path] or [f for f in frames if not f[0].startswith("<frozen")]
    place = f"{_at(own[-1][0], path, shown)}:{own[-1][1]}" if own and own[-1][0] != __file__ else shown
    detail = traceback.format_exception_only(error)[-1].strip()
    return f"extension {place} does not load: {detail}"


def _at(filename: str, path: str | None, shown: str) -> str:
    """The user's spelling of the file; for one that failed further down, both."""
    return shown if filename == path else f"{shown}: {filename}"


def _has_foreign_hooks(path: Path) -> bool:
    """Whether a file assigns the hooks of TraceLens; read from its text, for it may not import without help."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return False
    names = (
        node.name if isinstance(node, ast.FunctionDef) else getattr(target, "id", None)
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    )
    return any(name in _FOREIGN_HOOKS for name in names)


def _amd_tracelens() -> Any:
    """The module that makes perf models of such a file, by name: it stands above this floor."""
    return importlib.import_module("tracelens.laboratory.amd_tracelens")
