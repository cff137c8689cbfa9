"""What keeps the package easy to walk through, measured on its syntax trees; exceptions are named and may only shrink."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.structure.conftest import walked
from tracelens.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tracelens"

#: The most that each measure allows.
MOST = {"lines": 60, "complexity": 15, "parameters": 6, "stem": 1, "class": 1, "circle": 0}
#: Lines of a module at least, but of a package's front door; of the middle one; files of the package; import lines in 100.
FLOOR, MIDDLE, FILES, IMPORTS = 60, 200, 320, 5.4
#: What is whole with fewer lines.
SMALL = {
    "compiled.py": "what every C file is loaded with, without numpy",
    "__main__.py": "python -m tracelens",
    "verbs.py": "read before anything else is imported",
    "testing.py": "a front door of tests of extensions",
    "errors.py": "below everything",
}

#: What users call with many named options; the options of one front door stand in one place.
FRONT_DOORS = {
    "ParallelConfig.of",
    "Result.of",
    "estimate",
    "fuse_ranks",
    "load",
    "project",
    "project_from",
    "report",
    "route",
    "search",
    "serve",
}
#: Stems that mean the same everywhere: what is added in a folder derives from its base.
SHARED_STEMS = {"__init__", "base"}
#: Pages that are written from declarations, never by hand.
GENERATED_PAGES = {"designs.md", "differences.md", "columns.md", "findings.md", "query.md"}

#: A binding reads as the op's signature: ``conv_of(op, bias=3, stride=4, padding=5)``.
SLOTS = "names the slots of a recorded signature, one keyword each"

#: By room: (measure, subject, today's value, reason). A subject is named after its module, not its folder, so that it
#: can move. Remove a line when its reason has gone: the test says so.
EXCEPTIONS: dict[str, tuple[tuple[str, str, int, str], ...]] = {
    "perf_models": (
        ("parameters", "conv.conv_of", 10, SLOTS),
        ("parameters", "gemm.times_transposed", 10, SLOTS),
        ("parameters", "moe.fused_experts", 7, SLOTS),
        ("parameters", "amd_tracelens._GEMM.bytes_func", 8, "the signature that TraceLens gives its classes"),
    ),
}


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    complexity: int
    parameters: int


@dataclass(frozen=True)
class Module:
    """What is measured of one file, without its syntax tree: a package's trees would keep the collector busy."""

    path: Path
    functions: tuple[Function, ...]
    classes: tuple[str, ...]
    imports: frozenset[str]
    marks: dict[str, list[str]]
    categories: tuple[str, ...]
    count: int
    import_lines: int

    @property
    def stem(self) -> str:
        """A package is called as its folder."""
        return self.path.parent.name if self.path.stem == "__init__" else self.path.stem


@functools.cache
def modules() -> tuple[Module, ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    known = {dotted(path, ROOT) for path in paths}
    return tuple(module(path, path.read_text(encoding="utf-8"), known) for path in paths)


def module(path: Path, source: str, known: set[str]) -> Module:
    nodes = walked(source)
    tree = nodes[0]
    assert isinstance(tree, ast.Module)
    lines = sum((n.end_lineno or n.lineno) - n.lineno + 1 for n in nodes if isinstance(n, ast.Import | ast.ImportFrom))
    return Module(
        path, tuple(functions(tree)), public_classes(tree), imports(tree, known), marks(tree), tuple(categories(tree)),
        source.count("\n"), lines,
    )  # fmt: skip


def dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


FUNCTION = {ast.FunctionDef, ast.AsyncFunctionDef}
DECISION = {ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp}
#: Syntax in which nothing is decided.
LEAF = {ast.Name, ast.Constant, ast.alias, ast.arg, ast.Import, ast.ImportFrom}


def functions(tree: ast.Module) -> list[Function]:
    """With McCabe's complexity, every decision counted: branches, loops, handlers, ``and``, ``x if y else z``, ``for``."""
    found = []

    def decisions(node: Any, inside: str) -> int:
        kind, count = type(node), 0
        if kind in FUNCTION or kind is ast.ClassDef:
            name = inside + node.name
            inside = f"{name}."
        elif kind in DECISION:
            count = 1
        elif kind is ast.BoolOp:
            count = len(node.values) - 1
        elif kind is ast.comprehension:
            count = 1 + len(node.ifs)
        for field in kind._fields:
            value = getattr(node, field)
            for part in value if type(value) is list else (value,):
                if hasattr(part, "_fields") and type(part)._fields and type(part) not in LEAF:
                    count += decisions(part, inside)
        if kind in FUNCTION:
            found.append(Function(name, node.end_lineno - node.lineno + 1, 1 + count, parameters(node)))
        return count

    decisions(tree, "")
    return found


def public_classes(tree: ast.Module) -> tuple[str, ...]:
    return tuple(each.name for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_"))


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def circles(leads_to: dict[str, frozenset[str]]) -> list[tuple[str, ...]]:
    """Modules that import each other, however far round, under ``TYPE_CHECKING`` and inside functions too."""
    around = {name: reached(name, leads_to) for name in leads_to}
    found = {
        tuple(sorted(each for each in reachable if name in around[each]))
        for name, reachable in around.items()
        if name in reachable
    }
    return sorted(found)


def reached(start: str, leads_to: dict[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = list(leads_to[start])
    while ahead:
        target = ahead.pop()
        if target not in seen:
            seen.add(target)
            ahead += leads_to[target]
    return seen


def imports(tree: ast.Module, known: set[str]) -> frozenset[str]:
    found: set[str] = set()
    ahead: list[ast.AST] = list(tree.body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (named & known) or {node.module}
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            within = getattr(node, block, ())
            ahead += within if isinstance(within, list) else ()
    return frozenset(found & known)


def marks(tree: ast.Module) -> dict[str, list[str]]:
    """First arguments of every ``@decorator("...")`` of the module's functions and classes, by decorator."""
    found = defaultdict(list)
    for node in tree.body:
        for mark in getattr(node, "decorator_list", ()):
            match mark:
                case ast.Call(func=ast.Name(id=decorator), args=[ast.Constant(value=str(key)), *_]):
                    found[decorator].append(key)
    return found


def categories(tree: ast.Module) -> Iterator[str]:
    """Of the perf models of a module: what ``category`` is in the header of each."""
    for node in tree.body:
        for word in getattr(node, "keywords", ()):
            match word:
                case ast.keyword(arg="category", value=ast.Constant(value=str(category))):
                    yield category


@functools.cache
def measured() -> tuple[tuple[str, str, int], ...]:
    """(measure, subject, value) of everything that is measured."""
    return tuple(each_measured())


def each_measured() -> Iterator[tuple[str, str, int]]:
    for found in modules():
        for each in found.functions:
            subject = f"{found.stem}.{each.name}"
            yield "lines", subject, each.lines
            yield "complexity", subject, each.complexity
            if each.name not in FRONT_DOORS:
                yield "parameters", subject, each.parameters
    for name, paths in same_stems().items():
        yield "stem", name, len(paths)
    for name, count in Counter(name for found in modules() for name in found.classes).items():
        yield "class", name, count
    for circle in circles({dotted(found.path, ROOT): found.imports for found in modules()}):
        yield "circle", " ".join(name.rpartition(".")[2] for name in circle), len(circle)


def algorithms(found: Module) -> set[str]:
    """One algorithm may serve several collectives: ``all_gather/ring``, ``all_reduce/ring``."""
    return {key.partition("/")[2] for key in found.marks.get("algorithm", ())}


def same_stems() -> dict[str, list[Path]]:
    """Modules by stem; a verb next to the module of its front door has one meaning, and counts once.

    A sheet's module is called as users know the sheet, whatever else has that name.
    """
    stems = defaultdict(list)
    for found in modules():
        if found.path.stem not in SHARED_STEMS and found.path.parts[-3] != "sheets":
            stems[found.path.stem].append(found.path)
    for paths in stems.values():
        if len(paths) == 2:
            paths[:] = [path for path in paths if PACKAGE / "cli" not in path.parents] or paths
    return stems


def test_files_are_neither_too_many_nor_too_small() -> None:
    found = {each.path: each.count for each in modules()}
    rooms = {path: count for path, count in found.items() if path.stem != "__init__"}
    small = {
        path.relative_to(PACKAGE).as_posix(): count
        for path, count in rooms.items()
        if count < FLOOR and path.name not in SMALL
    }
    assert small == {}
    assert statistics.median(rooms.values()) >= MIDDLE
    assert len(found) <= FILES
    assert 100 * sum(each.import_lines for each in modules()) / sum(found.values()) <= IMPORTS


def exceptions() -> dict[tuple[str, str], int]:
    return {(measure, subject): most for room in EXCEPTIONS.values() for measure, subject, most, _ in room}


@pytest.mark.parametrize("measure", MOST)
def test_nothing_exceeds_its_measure(measure: str) -> None:
    allowed = exceptions()
    wrong = [
        f"{measure} of {subject}: {value}, at most {most}"
        for name, subject, value in measured()
        if name == measure and value > (most := allowed.get((name, subject), MOST[name]))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_needed() -> None:
    needed = {(name, subject) for name, subject, value in measured() if value > MOST[name]}
    gone = sorted(set(exceptions()) - needed)
    assert not gone, f"remove from EXCEPTIONS: {gone}"


def test_every_exception_has_a_reason() -> None:
    assert all(reason for room in EXCEPTIONS.values() for *_, reason in room)


def test_one_algorithm_stands_in_one_file() -> None:
    files = Counter(name for found in modules() for name in algorithms(found))
    assert len(files) > 5
    assert [name for name, count in files.items() if count > 1] == []


def test_one_op_family_stands_in_one_file() -> None:
    files = Counter(
        category
        for found in modules()
        if PACKAGE / "perf_models" in found.path.parents
        for category in set(found.categories)
    )
    assert len(files) > 20
    assert [category for category, count in files.items() if count > 1] == []


def test_each_verb_stands_in_the_module_that_is_said() -> None:
    files = {found.path.stem for found in modules() if found.path.parent == PACKAGE / "cli"}
    assert files - {"__init__", "verbs", "first_word", "parsing", "common_options"} == set(VERBS.values())
    for file in set(VERBS.values()):
        source = (PACKAGE / "cli" / f"{file}.py").read_text(encoding="utf-8")
        suffixes = [""] if file in VERBS else sorted(f"_{verb}" for verb, module in VERBS.items() if module == file)
        assert sorted(re.findall(r"^(?:def )?configure(\w*)(?:\(| = )", source, re.MULTILINE)) == suffixes, file
        assert sorted(re.findall(r"^def run(\w*)\(", source, re.MULTILINE)) == suffixes, file


def test_one_device_is_one_file() -> None:
    labels = Counter(
        tomllib.loads(path.read_text(encoding="utf-8"))["label"]
        for path in (PACKAGE / "hardware" / "devices").glob("*.toml")
    )
    assert len(labels) > 30
    assert [label for label, count in labels.items() if count > 1] == []


def test_pages_that_are_generated_say_how() -> None:
    claim = re.compile(r"^This page is generated: `python -m docs\.(\w+)`", re.MULTILINE)
    made_by = {
        path.name: found[1]
        for path in (ROOT / "docs").glob("*.md")
        if (found := claim.search(path.read_text(encoding="utf-8")))
    }
    assert set(made_by) == GENERATED_PAGES
    compared = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page, module in made_by.items():
        assert (ROOT / "docs" / f"{module}.py").exists()
        assert f"from docs.{module} import" in compared, f"no test compares {page} with what {module} writes"


def test_every_measure_finds_what_it_is_for() -> None:
    deep = ast.parse("class A:\n  def f(self, b, /, c, *, d):\n    return [x for x in b if x and c] if c else d\n")
    (found,) = functions(deep)
    assert (found.name, found.lines, found.parameters) == ("A.f", 2, 3)
    assert public_classes(deep) == ("A",)
    assert found.complexity == 1 + len(["for", "if", "and", "x if y else z"])
    known = {"t.a", "t.b", "t.c", "t.d", "t.e"}
    sources = {
        "t.a": "def f():\n    from t import b",
        "t.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from t.c import C",
        "t.c": "import t.a\nimport t.d",
        "t.d": "",
        "t.e": "import t.a",
    }
    assert circles({name: imports(ast.parse(text), known) for name, text in sources.items()}) == [("t.a", "t.b", "t.c")]
    declared = ast.parse('@sheet("A", view="x")\ndef a(): ...\n@sheet("B")\ndef b(): ...')
    assert marks(declared) == {"sheet": ["A", "B"]}
    assert list(categories(ast.parse('class M(ModelRecord, category="GEMM"): ...'))) == ["GEMM"]
