"""Everything that is shown goes through ``files.say``: nothing else prints or touches the streams."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.structure.conftest import walked

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"
SAY = PACKAGE / "files" / "say.py"


@cache
def calls_of(source: str) -> tuple[ast.Call, ...]:
    """Of a module, picked out once for all that is looked for in them."""
    return tuple(node for node in walked(source) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    """The last part of what is called: ``error`` of ``parser.error(...)``."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def shown_past(source: str) -> list[int]:
    """Lines that print, or write to a stream of the process."""
    lines = []
    for node in calls_of(source):
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


def shown_as_one_line(source: str) -> list[int]:
    """Lines that give ``say``, which shows one line, the text that some ``..._text`` made of several."""
    calls = [node for node in calls_of(source) if isinstance(node.func, ast.Name) and node.func.id == "say"]
    made = {
        node.lineno: ast.unparse(node.args[0].func)
        for node in calls
        if node.args and isinstance(node.args[0], ast.Call)
    }
    return [
        line
        for line, name in made.items()
        if name.endswith(("_text", ".verdict", ".fill", "to_string")) and name != "terminal_text"
    ]


def test_texts_of_several_lines_are_shown_as_lines() -> None:
    assert shown_as_one_line("say(a_text(b))\nsay(terminal_text(b))\nsay_lines(a_text(b))\nsay(x.verdict())") == [1, 4]
    paths = sorted(PACKAGE.rglob("*.py"))
    found = [
        f"{path.relative_to(PACKAGE)}:{line}" for path in paths for line in shown_as_one_line(path.read_text("utf-8"))
    ]
    assert not found, "say_lines shows several lines"


#: Words that docs/style.md takes out of sentences, as far as a program can tell: "is no file", "products" of GEMMs ...
UNWANTED = re.compile(
    r"\b(?:(?<!there )(?:is|are) no|told|beside|hand over|handed over|a text|texts|matrix products?|device figures?|"
    r"simply|please)\b"
)


def errors_said(source: str) -> Iterator[tuple[int, str]]:
    """Line and text, without what is put into it, of every error that is raised or made for raising."""
    for call in calls_of(source):
        is_error = called(call).lower().endswith("error")
        for text in (each for each in ast.walk(call) if isinstance(each, ast.Constant)) if is_error else ():
            if isinstance(text.value, str):
                yield text.lineno, text.value


def test_errors_hold_to_the_style_of_the_docs() -> None:
    assert not [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in errors_said(path.read_text("utf-8"))
        if UNWANTED.search(text)
    ]


def test_an_error_in_other_words_is_found() -> None:
    source = "raise UsageError(f'{a} is no file')\nraise root.error('x', 'must be a text')\nraise E('there is no file')"
    assert [line for line, text in errors_said(source) if UNWANTED.search(text)] == [1, 2]
