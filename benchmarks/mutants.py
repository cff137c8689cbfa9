"""How many small changes of the code its own tests notice: ``python -m benchmarks.mutants [ROOM ...] [-n MUTANTS]``.

A mutant is a module in which one operator, comparison, constant or condition is another. A random sample of a room's
mutants (the same for the same ``--seed``) is tried, each in a process of its own, with the room's tests (but for those
that need real traces) until the first fails. What survives is printed with its line, to be looked at: some change no
figure, others show what no test says.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.machinery
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
#: Room -> tests of what it does: its own, and those of the rooms that show its figures.
ROOMS = {
    "perf_models": ("tests/perf_models", "tests/extensions"),
    "backends": ("tests/backends", "tests/estimation", "tests/calibration"),
    "network": ("tests/network",),
    "analysis/attribution": tuple(
        f"tests/analysis/{name}" for name in ("attribution", "reading", "sheets", "test_analyze.py")
    ),
}
#: That a mutant may hold.
MOST_BYTES = 8 * 1024**3
COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}  # fmt: skip
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
            ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}  # fmt: skip


def change(node: ast.AST) -> bool:
    """Changes what a node does, if there is something to change."""
    match node:
        case ast.Compare(ops=[first, *others]) if type(first) in COMPARED:
            node.ops = [COMPARED[type(first)](), *others]
        case ast.BinOp(op=operator) if type(operator) in COMPUTED:
            node.op = COMPUTED[type(operator)]()
        case ast.BoolOp():
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return False
        case ast.If() | ast.IfExp():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            node.value = value + 1
        case _:
            return False
    return True


def places(path: Path) -> list[tuple[Path, int]]:
    """(file, number of the node) of every mutant of a module; annotations do nothing."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    said: list[ast.expr | ast.stmt | None] = [n.returns for n in nodes if isinstance(n, ast.FunctionDef)]
    said += [n.annotation for n in nodes if isinstance(n, ast.arg | ast.AnnAssign)]
    said += [n for n in nodes if isinstance(n, ast.AnnAssign) and ast.unparse(n.annotation) == "TypeAlias"]
    skipped = {id(below) for node in said if node for below in ast.walk(node)}
    return [(path, at) for at, node in enumerate(nodes) if id(node) not in skipped and change(copy.copy(node))]


def mutant(path: Path, at: int) -> tuple[str, str]:
    """(its place and what it changes, source of the module)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = list(ast.walk(tree))[at]
    line, before = getattr(node, "lineno", 0), first_line(node)
    change(node)
    changed = ast.unparse(ast.fix_missing_locations(tree))
    return f"{path.relative_to(ROOT)}:{line}: {before} -> {first_line(node)}", changed


def first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def test_files(room: str, path: Path, noticed: Counter[str]) -> list[str]:
    """Of a room: those named as the module or its folder first, then those that ``noticed`` most mutants so far."""
    given = [ROOT / place for place in ROOMS[room]]
    files = sorted(str(file) for place in given for file in ([place] if place.is_file() else place.rglob("test_*.py")))
    names = path.stem, path.parent.name
    return sorted(files, key=lambda file: (*(name not in Path(file).stem for name in names), -noticed[file]))


def first_failure(path: Path, source: str, tests: list[str], limit_s: int) -> str | None:
    """The test file that fails with ``source`` in the place of the module; None where all pass.

    A hang (CPU seconds) is a failure of "nothing".
    """
    given = f"{str(path)!r}, sys.stdin.read(), {tests!r}, {limit_s}"
    command = [sys.executable, "-c", f"import sys; from benchmarks.mutants import tested; sys.exit(tested({given}))"]
    done = subprocess.run(command, input=source, text=True, cwd=ROOT, capture_output=True)
    failed = re.search(r"^(?:FAILED|ERROR) ([^:\s]+)", done.stdout, re.MULTILINE)
    return None if done.returncode == 0 else str(ROOT / failed[1]) if failed else "nothing"


def tested(path: str, source: str, tests: list[str], limit_s: int) -> int:
    """Runs tests with another source of one module."""
    import pytest

    signal.setitimer(signal.ITIMER_PROF, limit_s)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    loader = importlib.machinery.SourceFileLoader
    real = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> object:
        return compile(source, path, "exec") if self.path == path else real(self, name)

    loader.get_code = get_code  # type: ignore[method-assign, assignment]
    return int(pytest.main(["-x", "-q", "-n0", "-m", "not sweep and not shared", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), metavar="ROOM")
    parser.add_argument("-n", "--mutants", type=int, default=50, help="of each room")
    parser.add_argument("-j", "--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--limit", type=int, default=60, help="CPU seconds of one mutant's tests")
    given = parser.parse_args()
    for room in given.rooms:
        files = sorted((ROOT / "tracelens" / room).rglob("*.py"))
        every = [place for path in files for place in places(path)]
        sample = Random(given.seed).sample(every, min(given.mutants, len(every)))  # noqa: S311
        noticed: Counter[str] = Counter()
        unchanged = files[0].read_text(encoding="utf-8")
        if first_failure(files[0], unchanged, test_files(room, files[0], noticed), given.limit):
            sys.exit(f"the tests of {room} do not pass without a change")

        def survived(place: tuple[Path, int], room: str = room, noticed: Counter[str] = noticed) -> bool:
            said, source = mutant(*place)
            failed = first_failure(place[0], source, test_files(room, place[0], noticed), given.limit)
            if failed is None:
                print(f"survived: {said}", flush=True)
                return True
            noticed[failed] += 1
            return False

        with ThreadPoolExecutor(given.processes) as pool:
            killed = len(sample) - sum(pool.map(survived, sample))
        print(
            f"{room}: {killed} of {len(sample)} mutants noticed ({killed / len(sample):.0%}), {len(every)} in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
