"""The tools: what each is asked, which verb's options it takes, and what it answers."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.agents.answer_pages import BUDGET, page
from tracelens.agents.option_schemas import checked, parser_of, properties, required, words
from tracelens.agents.roots import Roots
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.verbs import verb_module

if TYPE_CHECKING:
    from tracelens.report.result import Report


#: Where a verb writes its answer, in a folder that is gone afterwards.
_FILE = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``verb``: whose options it takes; ``paths``: those that are paths below the roots; ``more``: its own arguments.

    ``only``: which of the verb's options, where not all. ``answer``: of the words of the verb's command line and its
    own arguments.
    """

    name: str
    about: str
    verb: str
    answer: Callable[[list[str], Mapping[str, Any]], Any]
    paths: tuple[str, ...] = ("trace",)
    only: tuple[str, ...] | None = None
    more: Mapping[str, dict[str, Any]]

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        offered = self._offered()
        paging = {
            "cursor": {"type": "string", "description": "of an earlier answer, for its next lines"},
            "max_tokens": {"type": "integer", "description": f"of the answer, default {BUDGET}"},
        }
        needed = [*required(parser_of(self.verb), offered), *(name for name in self.more if name == "op")]
        return {
            "type": "object",
            "properties": {**offered, **self.more, **paging},
            "required": needed,
            "additionalProperties": False,
        }

    def _offered(self) -> dict[str, dict[str, Any]]:
        found = properties(parser_of(self.verb), self.paths)
        return {name: found[name] for name in found if self.only is None or name in self.only}

    def ask(self, arguments: Mapping[str, Any], roots: Roots) -> str:
        """A page of the answer; UsageError or InputError in one sentence."""
        offered = self._offered()
        arguments = checked(self.schema(), arguments)
        given = {name: self._confined(name, value, roots) for name, value in arguments.items() if name in offered}
        own = {name: arguments[name] for name in self.more if name in arguments}
        line = words(parser_of(self.verb), given)
        stamps = tuple(_stamp(Path(str(given[name]))) for name in self.paths if name in given)
        value = _remembered(self, (line, own, stamps))
        return page(value, tokens=arguments.get("max_tokens", BUDGET), cursor=arguments.get("cursor"))

    def _confined(self, name: str, value: Any, roots: Roots) -> Any:
        """A path below the roots, resolved; anything else may not name a file."""
        if name in self.paths:
            return str(roots.path(str(value)))
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and ({"/", "\\", "\0"} & set(text) or text.startswith("~")):
                raise UsageError(f"{name} takes names, not paths: {text[:80]!r} is refused")
        return value


_ANSWERS: OrderedDict[str, Any] = OrderedDict()
_KEPT = 16


def _remembered(tool: Tool, asked: tuple[list[str], dict[str, Any], tuple[Any, ...]]) -> Any:
    """The answer, kept for the pages to come while its files do not change."""
    key = f"{tool.name} {asked!r}"
    if key not in _ANSWERS:
        _ANSWERS[key] = tool.answer(asked[0], asked[1])
        if len(_ANSWERS) > _KEPT:
            _ANSWERS.popitem(last=False)
    return _ANSWERS[key]


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def _report(line: list[str]) -> Report:
    args = parser_of("report").parse_args(line)
    return _report_of(tuple(line), _stamp(Path(args.trace)))


@lru_cache(maxsize=2)
def _report_of(line: tuple[str, ...], stamp: object) -> Report:
    import tracelens
    from tracelens.option_fields import options_of
    from tracelens.report.report_options import ReportOptions

    del stamp
    args = parser_of("report").parse_args(list(line))
    made: Report = tracelens.report(args.trace, options_of(ReportOptions, args))
    return made


def _brief(line: list[str], own: Mapping[str, Any]) -> Any:
    return json.loads(_report(line).to_json(brief=True))


def _findings(line: list[str], own: Mapping[str, Any]) -> Any:
    return json.loads(_report(line).to_json())["findings"]


def _ops(line: list[str], own: Mapping[str, Any]) -> Any:
    rows = _rows(line, own)
    keys = (
        "name", "category", "input_dims", "input_types", "operation_count", "kernel_us_sum", "kernel_us_mean",
        "tflops_s_mean", "hbm_tb_s_mean", "roofline_us", "roofline_bound", "percent_of_roofline_mean",
    )  # fmt: skip
    return [dict(zip(keys, row, strict=True)) for row in rows[list(keys)].itertuples(index=False, name=None)]


def _explain(line: list[str], own: Mapping[str, Any]) -> Any:
    rows, number = _rows(line, own, exact=True), int(own.get("index", 0))
    if not 0 <= number < len(rows):
        raise UsageError(f"{own['op']!r} has {len(rows)} distinct calls: index is below that")
    return list(_report(line).explain(rows.iloc[number]).lines)


def _rows(line: list[str], own: Mapping[str, Any], *, exact: bool = False) -> Any:
    """Rows of the table of ops, by what is asked of their names, without NaN."""
    ops = _report(line).tables["ops"]
    wanted = str(own.get("op") or own.get("contains") or "")
    kept = ops["name"] == wanted if exact else ops["name"].str.contains(wanted, regex=False)
    return ops[kept].astype(object).where(ops[kept].notna(), None).reset_index(drop=True)


def _printed(verb: str, *more: str) -> Callable[[list[str], Mapping[str, Any]], Any]:
    """The answer of a verb that prints: JSON where it can, else lines. ``FILE`` in ``more``: where it writes JSON."""

    def answer(line: list[str], own: Mapping[str, Any]) -> Any:
        del own
        with tempfile.TemporaryDirectory(prefix="tracelens-") as folder:
            file = Path(folder) / _FILE
            given = [*line, *(str(file) if word == "FILE" else word for word in more)]
            args = parser_of(verb).parse_args(given)
            args.command_line = [verb, *given]
            out, beside = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(beside):
                code = int(verb_module(verb).run(args))
            text = file.read_text(encoding="utf-8") if file.is_file() else out.getvalue()
        try:
            value = json.loads(text)
        except ValueError:
            value = text.splitlines()
        notes = beside.getvalue().splitlines()
        return {"answer": value, "exit_code": code, **({"notes": notes} if notes else {})}

    return answer


_TRACE_OPTIONS = ("trace", "device", "steps", "rank", "ep_size", "backend", "overlap", "cpu")
_CONTAINS = {"contains": {"type": "string", "description": "only ops whose name contains this text"}}
_WHICH = {
    "op": {"type": "string", "description": "name of the op, as the tool ops gives it"},
    "index": {"type": "integer", "description": "which of its distinct calls, by device time; default 0"},
}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(name="report", about="Where a trace's device time went and how far it was from the hardware's limits.",
             verb="report", answer=_brief, more={},
             only=(*_TRACE_OPTIONS, "model", "tokens_per_step", "batch", "sequence", "ranks")),
        Tool(name="findings", about="What to change first in a traced program, each with its gain and evidence.",
             verb="report", answer=_findings, only=_TRACE_OPTIONS, more={}),
        Tool(name="ops", about="Distinct op calls of a trace: times, rates, share of the roofline.",
             verb="report", answer=_ops, only=_TRACE_OPTIONS, more=_CONTAINS),
        Tool(name="explain", about="How the figures of one op call were computed: formula, inputs, sources.",
             verb="report", answer=_explain, only=_TRACE_OPTIONS, more=_WHICH),
        Tool(name="compare", about="What changed between two recordings, and why; gates.", verb="compare",
             answer=_printed("compare", "--format=json"), paths=("a", "b"), more={}),
        Tool(name="whatif", about="How long a recorded step would take with something different.", verb="whatif",
             answer=_printed("whatif", "--format=json"), more={}),
        Tool(name="collectives", about="The ranks of a job compared (trace: a folder): bandwidth, waits, stragglers.",
             verb="collectives", answer=_printed("collectives", "-o", "FILE", "--executor=serial"), more={}),
        Tool(name="estimate", about="How long one operation or collective should take on a device.", verb="estimate",
             answer=_printed("estimate"), paths=(), more={}),
        Tool(name="project", about="How long a training step takes on a cluster.", verb="project",
             answer=_printed("project", "-o", "FILE"), paths=(), more={}),
        Tool(name="search", about="The best parallel configuration of a training step.", verb="search",
             answer=_printed("search", "-o", "FILE"), paths=(), more={}),
        Tool(name="serve", about="How an LLM server behaves under load.", verb="serve",
             answer=_printed("serve", "--format=json"), paths=(), more={}),
    )
}  # fmt: skip
