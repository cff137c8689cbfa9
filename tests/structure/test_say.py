"""Everything that is shown goes through ``files.say``: nothing else prints or touches the streams."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"
SAY = PACKAGE / "files" / "say.py"


def shown_past(source: str) -> list[int]:
    """Lines that print, or write to a stream of the process."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                lines.append(node.lineno)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"), attr=what)
            ):
                if what in ("write", "writelines", "buffer"):
                    lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="traceback"), attr="print_exc" | "print_exception")):
                lines.append(node.lineno)
    return lines


def test_nothing_is_shown_but_by_say() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path != SAY]
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in paths for line in shown_past(path.read_text("utf-8"))]
    assert not found


def test_a_bare_print_is_found() -> None:
    assert shown_past("print(1)\nsys.stderr.write('x')\nsay(2)\nsys.stdout.isatty()\ntraceback.print_exc()") == [
        1,
        2,
        5,
    ]
