"""Trace text made safe and short to show: kernel names and annotations may hold anything."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from typing import Any

#: What XML 1.0 cannot hold: C0 controls without tab and line feed, lone surrogates, the two noncharacters. A carriage
#: return is legal, but XML readers turn it into a line feed.
_NOT_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")
#: What can move a terminal's cursor, change its state or reorder its text.
_NOT_TERMINAL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
#: The same inside a document, whose line feeds and tabs are its own; as UTF-8, without what JSON writers escape.
_NOT_DOCUMENT = re.compile(_NOT_TERMINAL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_NOT_DOCUMENT_BYTES = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xef\xbf[\xbe\xbf]"
)
#: What the log of a GitHub workflow obeys (ActionCommand.cs of actions/runner at 079cdb1): ``::`` that begins a line,
#: behind blanks too, and ``##[`` anywhere.
_COMMAND = re.compile(r"^([^\S\n]*+):(?=:)|##(?=\[)", re.MULTILINE)
_USER, _QUERY = (
    re.compile(r"(\b[a-z][a-z0-9+.-]*+://)[^\s/'\"]*@"),
    re.compile(r"(\b[a-z][a-z0-9+.-]*+://[^\s?'\"]*+)\?[^\s'\"]*"),
)
#: A shorter one (``/``) is part of other paths.
_SHORTEST_HOME = 5
_MARKUP = re.compile(r"[\\`*_\[\]|#~]")
#: After which GitHub makes a mention or a link of plain text, also where Markdown escapes it: a comment parts them.
_LINKED = re.compile(r"@|:(?=//)|\bwww(?=\.)|#(?=\d)|\bGH(?=-\d)", re.IGNORECASE)
#: Where a spreadsheet that splits at semicolons or tabs would begin a formula.
_LATER_FORMULA = re.compile(r"([;\t]\s*)(?=[=+\-@])")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: A text that a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def xml_text(text: str) -> str:
    """``text`` with what XML cannot hold shown as a picture: ``\\x1b`` becomes ``␛``."""
    return text if _is_plain(text) else _NOT_XML.sub(_picture, text)


def terminal_text(text: str) -> str:
    """``text`` on one line, without anything that a terminal would obey."""
    return text if _is_plain(text) else _NOT_TERMINAL.sub(_picture, text)


def no_commands(lines: str) -> str:
    r"""Lines of which a workflow's log takes none for a command.

    >>> no_commands("a::b\n ::error::c ##[error]")
    'a::b\n \\::error::c ##\\[error]'
    """
    return _COMMAND.sub(lambda found: "##\\" if found[1] is None else f"{found[1]}\\:", lines)


def _is_plain(text: str) -> bool:
    """Whether it has nothing but what every keyboard has: nearly every text, and found out in a tenth of the time."""
    return text.isascii() and text.isprintable()


def escaped(text: str) -> str:
    """A document with what a terminal or a workflow's log would obey as JSON's ``\\u009b``; lines stay."""
    plain = _COMMAND.sub(lambda found: "#\\u0023" if found[1] is None else f"{found[1]}\\u003a", text)
    return _NOT_DOCUMENT.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


def escaped_json(document: bytes) -> bytes:
    """JSON that says the same, with what a terminal would obey written as ``\\u009b``."""
    return _NOT_DOCUMENT_BYTES.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), document)


def without_secrets(text: str) -> str:
    """``text`` without what opens a store or names a person: in addresses the user and what follows a question mark, in
    paths the home folder.

    >>> without_secrets("GET https://me:secret@host/a.json?token=b")
    'GET https://...@host/a.json?...'
    """
    home = os.environ.get("HOME") or os.environ.get("USERPROFILE") or ""
    shown = text if len(home) < _SHORTEST_HOME else text.replace(home, "~")
    return _USER.sub(r"\1...@", _QUERY.sub(r"\1?...", shown))


def markdown_text(text: str) -> str:
    """``text`` on one line of Markdown, without markup of its own: GitHub mentions nobody and links nothing.

    >>> markdown_text("@torvalds fixes #1 https://evil.ex <b>")
    '@<!-- -->torvalds fixes \\\\#<!-- -->1 https:<!-- -->//evil.ex &lt;b&gt;'
    """
    safe = terminal_text(str(json_safe(text)).replace("\n", " "))
    safe = safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINKED.sub(r"\g<0><!-- -->", _MARKUP.sub(r"\\\g<0>", safe))


def csv_cell(text: str) -> str:
    """``text`` for a cell of a CSV file: with an apostrophe where a spreadsheet would evaluate it, also one that splits
    at semicolons or tabs; what a terminal would obey as a picture."""
    guarded = _LATER_FORMULA.sub(r"\1'", f"'{text}" if is_formula_like(text) else text)
    return _NOT_DOCUMENT.sub(_picture, guarded)


def is_formula_like(text: str) -> bool:
    """Whether a spreadsheet might evaluate ``text`` instead of showing it."""
    return text.startswith(_FORMULA)


def display_width(text: str) -> int:
    """Columns that ``text`` takes in a terminal."""
    if text.isascii() and text.isprintable():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def clipped(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns; ``…`` where something was cut."""
    if display_width(text) <= width:
        return text
    if text.isascii() and text.isprintable():
        return text[: width - 1] + "…"
    columns = itertools.accumulate(map(display_width, text))
    return text[: sum(1 for _ in itertools.takewhile(lambda used: used < width, columns))] + "…"


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\ufffd"


def json_safe(value: Any) -> Any:
    """``value`` (nested lists, tuples and dicts) as JSON takes it: lone surrogates, which UTF-8 cannot hold, as U+FFFD,
    integers beyond 64 bits, which no trace means, as None."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {json_safe(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return None
    return value


#: Letters of a short name; a longer one keeps its beginning and its end, which tell such names apart.
MAX_LETTERS = 72
#: Levels of template arguments that stay; what is deeper becomes an ellipsis.
_TEMPLATE_LEVELS = 2
_SCOPE = re.compile(r"\b[A-Za-z_]\w*+::")
_LAMBDA = re.compile(r"(?:::)?\{lambda[^{}]*+\}")
_TENSILE = re.compile(r"_MT\d++x\d++x\d++")


def short_kernel_name(name: str) -> str:
    """
    >>> short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
    ...                   "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::Half>)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>, array<3ul>>'
    >>> short_kernel_name("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEvPT0_PT_PfS4_i")
    'add_rmsnorm_quant_kernel'
    >>> short_kernel_name("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x224x64_MI16x16x1_SN_LDSB1_AFC1")
    'Cijk_Alik_Bljk_BBS_BH MT256x224x64'
    >>> short_kernel_name("aten::mm")
    'aten::mm'
    """
    if name.startswith("Cijk_"):
        tile = _TENSILE.search(name)
        return "_".join(name.split("_")[:5]) + (f" {tile[0][1:]}" if tile else "")
    name = _last_identifier(name) if name.startswith("_ZN") else name
    if name.startswith("void ") or "<" in name or "(anonymous" in name:
        plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("std::array<char*", "array<#")
        name = _LAMBDA.sub("", _without_arguments(_SCOPE.sub("", plain))) or name
    if len(name) <= MAX_LETTERS:
        return name
    tail = MAX_LETTERS // 3
    return f"{name[: MAX_LETTERS - tail - 1]}…{name[-tail:]}"


def _last_identifier(mangled: str) -> str:
    """The innermost name of ``_ZN<length><name>...``, the whole text where it is none."""
    at, found = len("_ZN"), mangled
    while at < len(mangled) and mangled[at].isdecimal() and mangled[at].isascii():
        digits = at
        while at < min(len(mangled), digits + 4) and mangled[at].isdecimal() and mangled[at].isascii():
            at += 1
        length = int(mangled[digits:at])
        found, at = mangled[at : at + length] or mangled, at + length
    return found


def _without_arguments(name: str) -> str:
    """Without the list of parameters, and with template arguments only so deep."""
    kept: list[str] = []
    depth = parentheses = 0
    for letter in name:
        if letter == "(":
            parentheses += 1
        elif letter == ")":
            parentheses -= 1
        elif parentheses:
            continue
        elif letter == ">" and kept[-1:] != ["-"]:
            if depth <= _TEMPLATE_LEVELS:
                kept.append(">")
            depth -= 1
        elif letter == "<":
            depth += 1
            if depth <= _TEMPLATE_LEVELS:
                kept.append("<")
            elif depth == _TEMPLATE_LEVELS + 1:
                kept.append("<…>")
        elif depth <= _TEMPLATE_LEVELS:
            kept.append(letter)
    return " ".join("".join(kept).split()).replace(" >", ">").replace("array<#, ", "array<").strip()


def trace_name(file: str) -> str:
    """
    >>> trace_name("Qwen1.5__2.pt.trace.json.gz"), trace_name("rank0.json.xz"), trace_name(".json")
    ('Qwen1.5__2', 'rank0', '.json')
    """
    name = file
    for suffix in (".gz", ".zst", ".bz2", ".xz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or file
