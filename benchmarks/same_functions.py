"""How many lines the functions of an earlier version take today, and how many lines are in functions that it had not.

    git archive d8d28e7 | tar x -C OLD; python -m benchmarks.same_functions OLD [NEW] [--list 20]

OLD, NEW: checkouts; default of NEW: this one. A function of OLD is the one of NEW that shares most words with it,
among those of its name where one shares enough, else among all. A rewritten function counts as one that OLD had not.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
#: Shares of common words from which two functions of one name, and of two names, are the same.
LEAST_NAMED, LEAST_RENAMED = 0.3, 0.55
#: Functions of fewer words are found by their name only.
FEWEST_WORDS = 6


@dataclass(frozen=True)
class Function:
    """``words``: those of its body, without the docstring."""

    room: str
    name: str
    lines: int
    words: frozenset[str]


def files(checkout: Path) -> list[Path]:
    """The modules of the package and of its extensions."""
    return sorted(path for folder in ("tracelens", "extensions") for path in (checkout / folder).rglob("*.py"))


def functions(checkout: Path) -> Iterator[Function]:
    """Outermost functions and methods; what is defined within one counts as part of it."""
    for path in files(checkout):
        room = "/".join(path.relative_to(checkout).parts[:3][:-1])
        nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
        for node in nodes:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    first = min(each.lineno for each in (*child.decorator_list, child))
                    body = child.body[1:] if ast.get_docstring(child) is not None else child.body
                    words = re.findall(r"\w+", "\n".join(map(ast.unparse, body)))
                    yield Function(room, child.name, (child.end_lineno or first) - first + 1, frozenset(words))
                elif not isinstance(child, ast.expr):
                    nodes.append(child)


def matched(old: list[Function], new: list[Function]) -> dict[int, int]:
    """Position in ``old`` -> position in ``new``, the most alike first, each at most once."""
    found: dict[int, int] = {}
    for least, by in ((LEAST_NAMED, lambda each: {each.name}), (LEAST_RENAMED, lambda each: each.words)):
        taken = set(found.values())
        at = defaultdict(list)
        for i, each in enumerate(old):
            for key in by(each) if i not in found else ():
                at[key].append(i)
        pairs = []
        for j, each in enumerate(new):
            common = Counter(i for key in by(each) for i in at[key]) if j not in taken else {}
            for i, count in common.items():
                alike = len(each.words & old[i].words) / max(len(each.words | old[i].words), 1)
                if alike >= least and (least == LEAST_NAMED or count >= FEWEST_WORDS):
                    pairs.append((-alike, i, j))
        for _, i, j in sorted(pairs):
            if i not in found and j not in taken:
                found[i] = j
                taken.add(j)
    return found


def main() -> None:
    """Prints the counts, and the rooms with most lines in functions that OLD had not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=REPOSITORY)
    parser.add_argument(
        "--list", type=int, default=12, metavar="N", help="how many rooms to show; default: %(default)s"
    )
    args = parser.parse_args()
    old, new = list(functions(args.old)), list(functions(args.new))
    pairs = matched(old, new)
    rest = [each for j, each in enumerate(new) if j not in set(pairs.values())]
    whole = [sum(path.read_bytes().count(b"\n") for path in files(at)) for at in (args.old, args.new)]
    inside = [sum(each.lines for each in side) for side in (old, new)]
    before, now = sum(old[i].lines for i in pairs), sum(new[j].lines for j in pairs.values())
    print(f"lines {whole[0]:,} -> {whole[1]:,}; outside functions {whole[0] - inside[0]:,} -> {whole[1] - inside[1]:,}")
    change = f"{before:,} -> {now:,} lines ({now / before - 1:+.1%})"
    print(f"{len(pairs):,} of {len(old):,} functions are there still: {change}")
    print(f"{len(rest):,} functions were not there: {sum(each.lines for each in rest):,} lines")
    rooms: Counter[str] = Counter()
    for each in rest:
        rooms[each.room] += each.lines
    for room, lines in rooms.most_common(args.list):
        print(f"{lines:7,}  {room}")


if __name__ == "__main__":
    main()
