"""Everything that tracelens says of a recording is one answer: no sheet, file or verb contradicts another.

Each law looks for contradictions in all that one report printed and wrote, and yields what it found. They hold on every
recorded trace, and on edits of some, made so that an explanation drawn from one coincidence would be wrong.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import orjson
import pandas as pd
import pytest

import tracelens
from tests.comparison import edits
from tests.comparison.edits import Events, Original, original
from tests.conftest import device_traces, part, part_of_traces
from tests.test_every_trace import CAPTURES
from tracelens.analysis.analyze import Analysis
from tracelens.cli import main
from tracelens.report.result import Report

pytestmark = pytest.mark.shared

#: Of sums of floats in µs.
CLOSE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one report said: the object of the Python API, the text of the terminal, and the files."""

    name: str
    report: Report
    shown: str
    folder: Path

    @property
    def analysis(self) -> Analysis:
        assert isinstance(self.report.result, Analysis)
        return self.report.result

    @cached_property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        return found

    @property
    def steps(self) -> int:
        """Among how many steps sums are divided: 1 without steps."""
        return self.report.summary.steps.count if self.report.summary.steps else 1

    @property
    def step_us(self) -> float:
        busy = self.report.summary.busy
        assert busy is not None
        assert busy.total_us is not None
        return busy.total_us / self.steps

    def frame(self, title: str) -> pd.DataFrame | None:
        return self.analysis.frames.get(title)

    def csv(self, title: str) -> list[list[str]]:
        with (self.folder / "csv" / f"{title}.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))


def answer_of(name: str, path: Path, folder: Path, *options: object) -> Answer:
    """What ``tracelens report PATH --csv`` says."""
    made: list[Report] = []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as shown:
        report = tracelens.report
        patch.setattr(tracelens, "report", lambda *given, **more: made.append(report(*given, **more)) or made[-1])
        assert main(["report", str(path), "-o", str(folder), "--csv", *map(str, options)]) == 0
    return Answer(name=name, report=made[0], shown=shown.getvalue(), folder=folder)


def idle_findings_name_causes_of_the_sheet(answer: Answer) -> Iterator[str]:
    """What a finding blames for idle time stands in ``idle_causes``, each cause with at least the share that it is given,
    and all that it names with at least its time."""
    sheet = answer.frame("idle_causes")
    of_cause = {} if sheet is None else dict(zip(sheet["cause"], sheet["idle_us"] / answer.steps, strict=True))
    for finding in answer.report.summary.findings:
        if not (finding.kind or "").startswith("idle"):
            continue
        causes = [str(proof.row["cause"]) for proof in finding.evidence if proof.sheet == "idle_causes"]
        there = sum(of_cause.get(cause, 0.0) for cause in causes)
        if (finding.time_us or 0.0) > there * (1 + CLOSE) + 1e-3:
            yield f"{finding.key} speaks of {finding.time_us} us, idle_causes has {there} of {causes}"
        for said in finding.figures:
            cause = said.what.removeprefix("idle: ")
            if cause != said.what and said.value * answer.step_us > of_cause.get(cause, 0.0) * (1 + CLOSE) + 1e-3:
                yield f"{finding.key} gives {cause!r} {said.value:.1%}, idle_causes has {of_cause.get(cause)} us"


def an_unknown_cause_gains_nothing(answer: Answer) -> Iterator[str]:
    """Nobody can say what removing an unknown cause brings."""
    for finding in answer.report.summary.findings:
        if (
            re.search(r"cause unknown|cause not recorded|^idle: unknown", f"{finding.kind} {finding.why}")
            and finding.gain_us
        ):
            yield f"{finding.key}: {finding.why!r} gains {finding.gain_us} us"


def steps_hold_the_work(answer: Answer) -> Iterator[str]:
    """What is called a step holds at least half of the device's work, and is busy as the timeline is."""
    analysis, steps = answer.analysis, answer.report.summary.steps
    if steps is None or analysis.selected_steps:
        return
    in_steps = float(analysis.activity.duration[analysis.step_of >= 0].sum())
    whole = float(analysis.activity.duration.sum())
    before = steps.before_us * 1e3
    if in_steps < 0.5 * (whole - before):
        yield f"{steps.count} steps hold {in_steps / whole:.1%} of the device's work"


def the_critical_path_is_the_step(answer: Answer) -> Iterator[str]:
    """No path is longer than what it leads through."""
    path = answer.frame("critical_path")
    if path is None or not len(path):
        return
    steps = answer.report.summary.steps
    longest = steps.longest_us if steps else answer.step_us
    took = float(path["time_us"].sum())
    if longest is not None and took > longest * (1 + CLOSE) + 1e-2:
        yield f"the critical path takes {took} us, the longest step {longest}"
    if float(path["percent_of_step"].sum()) > 100 + 1e-6:
        yield f"shares of the step on the critical path add up to {path['percent_of_step'].sum()} %"


def tokens_fit_the_time(answer: Answer) -> Iterator[str]:
    """Tokens per second over the time of the iterations are the tokens that they have."""
    found = answer.frame("inference_iterations")
    if found is None:
        return
    for row in found.to_dict("records"):
        tokens = sum(row[key] for key in ("context_tokens", "generation_tokens") if row[key] == row[key])
        if row["tokens_s"] and not math.isclose(row["tokens_s"] * row["duration_us"] / 1e6, tokens, rel_tol=1e-2):
            yield f"iteration {row['step']}: {row['tokens_s']} tokens/s over {row['duration_us']} us are not {tokens}"


def no_gain_exceeds_what_it_speaks_of(answer: Answer) -> Iterator[str]:
    """A gain lies in its range, and that in the time of what it is about."""
    for finding in answer.report.summary.findings:
        if finding.gain_us is None:
            continue
        low, high = finding.gain_low_us or 0.0, finding.gain_high_us or 0.0
        if not 0 <= low <= finding.gain_us * (1 + CLOSE) + 1e-6 <= high * (1 + 2 * CLOSE) + 2e-6:
            yield f"{finding.key}: {finding.gain_us} us is not between {low} and {high}"
        if high > answer.step_us * (1 + CLOSE):
            yield f"{finding.key}: {high} us of a step of {answer.step_us}"


def impossible_rates_are_marked(answer: Answer) -> Iterator[str]:
    """A share above 100 % on the terminal stands with a mark, or is one that is explained there."""
    for line in re.sub(r"\n {3}(?=\S)", " ", answer.shown).splitlines():
        for share in re.findall(r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?) %", line):
            if float(share.replace(",", "")) > 100.05 and "!" not in line:
                yield f"{share} % unmarked in {line!r}"


def the_workbook_is_the_csv(answer: Answer) -> Iterator[str]:
    """Every sheet has the same rows in the workbook and in CSV."""
    book = openpyxl.load_workbook(answer.folder / "report.xlsx", read_only=True)
    for title in [path.stem for path in sorted((answer.folder / "csv").glob("*.csv"))]:
        if title not in book.sheetnames:
            continue
        rows = [list(row) for row in book[title].iter_rows(values_only=True)]
        header = next((at for at, row in enumerate(rows) if len([cell for cell in row if cell is not None]) > 1), 0)
        told, there = answer.csv(title)[1:], rows[header + 1 :]
        if len(told) != len(there):
            yield f"{title}: {len(told)} rows in CSV, {len(there)} in the workbook"
            continue
        for at, (one, other) in enumerate(zip(told, there, strict=True)):
            differs = [(a, b) for a, b in zip(one, other, strict=False) if not _is_same(a, b)]
            if differs:
                yield f"{title}, row {at}: {differs[0]}"
                break


def _is_same(text: str, cell: object) -> bool:
    if cell is None:
        return text == ""
    if isinstance(cell, bool):
        return text == str(cell)
    if isinstance(cell, int | float):
        return bool(text) and math.isclose(float(text), cell, rel_tol=1e-9, abs_tol=1e-12)
    return text.lstrip("'") == str(cell).lstrip("'") or str(cell).endswith("…")


def json_views_are_the_frames(answer: Answer) -> Iterator[str]:
    """The views of report.json are the first rows of the sheets, column by column."""
    for title, records in answer.document["views"].items():
        frame = answer.frame(title)
        for record, row in zip(records, [] if frame is None else frame.to_dict("records"), strict=False):
            for key, value in record.items():
                there = row.get(key)
                if (
                    isinstance(value, float)
                    and isinstance(there, float)
                    and not math.isclose(value, there, rel_tol=1e-9)
                ):
                    yield f"{title}.{key}: {value} in JSON, {there} in the sheet"


def the_terminal_says_what_the_document_says(answer: Answer) -> Iterator[str]:
    """The step, or window, and each share of it that is printed are those of report.json, rounded."""
    busy = answer.document["busy"]
    printed = re.search(r"^ (?:step|window) ([\d.,]+) ms", answer.shown, re.MULTILINE)
    if printed and not math.isclose(float(printed[1].replace(",", "")), answer.step_us / 1e3, rel_tol=6e-3):
        yield f"{printed[0]!r} of {answer.step_us} us"
    share = re.search(r"GPU busy (\d+\.\d) %", answer.shown)
    if share and abs(float(share[1]) / 100 - (1 - busy["idle"])) > 6e-4:
        yield f"{share[0]!r}, idle {busy['idle']} in report.json"


def fixes_that_are_added_up_are_listed(answer: Answer) -> Iterator[str]:
    """Every fix that "together" counts stands above it with its gain: all of the document's, where 38 lines hold them."""
    together = answer.report.summary.together
    listed = re.findall(r"^ (\d) .*ms, (?:low|medium|high)$", answer.shown, re.MULTILINE)
    added = re.search(r"^ together: (.*\n(?: \d.*\n)*)", answer.shown, re.MULTILINE)
    counted = len(re.findall(r" after\s", added[1])) if added else 0
    if listed[:counted] != [str(n + 1) for n in range(counted)]:
        yield f"together counts {counted} fixes, the list shows {listed}"
    if together is not None and counted != len(together.findings) and answer.shown.count("\n") < 30:
        yield f"together counts {counted} fixes of {len(together.findings)}"


def nobody_is_blamed_for_what_is_unknown(answer: Answer) -> Iterator[str]:
    """Where an unexplained wait is the largest part of the idle time, neither the host nor the GPU is what limits."""
    summary = answer.report.summary
    causes = summary.busy.idle_causes if summary.busy else ()
    if causes and causes[0][0] in ("unknown", "device wait, cause not recorded") and causes[0][1] > 0.1:
        said = re.findall(
            r"[Tt]he (?:host|GPU) (?:and the GPU both )?(?:bounds?|limits)|until the \w+ is faster", answer.shown
        )
        yield from (f"{text!r}, but {causes[0]} is idle time" for text in said)


def a_host_takes_no_more_than_all_of_a_step(answer: Answer) -> Iterator[str]:
    """``host work takes 213.7 of 208.6 ms``."""
    for spent, whole in re.findall(r"takes ([\d.,]+) of\s+([\d.,]+) ms", answer.shown):
        if float(spent.replace(",", "")) > float(whole.replace(",", "")):
            yield f"takes {spent} of {whole} ms"


def what_goes_on_beside_a_step_is_not_longer_than_it(answer: Answer) -> Iterator[str]:
    """Moved to another thread, the host's preparation of a step still takes as long, whatever else is fixed."""
    summary, kind = answer.report.summary, "host_before_first_launch"
    together, found = summary.together, [each for each in summary.findings if each.kind == kind]
    if together is None or not found or found[0].key not in together.findings:
        return
    at, wait_us = together.findings.index(found[0].key), found[0].time_us or 0.0
    if together.step_us[at + 1] < wait_us * (1 - CLOSE):
        yield f"{together.step_us[at + 1]} us after {kind}, which takes {wait_us} us"


LAWS: tuple[Callable[[Answer], Iterator[str]], ...] = (
    idle_findings_name_causes_of_the_sheet,
    an_unknown_cause_gains_nothing,
    steps_hold_the_work,
    the_critical_path_is_the_step,
    tokens_fit_the_time,
    no_gain_exceeds_what_it_speaks_of,
    impossible_rates_are_marked,
    the_workbook_is_the_csv,
    json_views_are_the_frames,
    the_terminal_says_what_the_document_says,
    fixes_that_are_added_up_are_listed,
    nobody_is_blamed_for_what_is_unknown,
    a_host_takes_no_more_than_all_of_a_step,
    what_goes_on_beside_a_step_is_not_longer_than_it,
)


def contradictions(answer: Answer) -> list[str]:
    return [f"{law.__name__}: {found}" for law in LAWS for found in law(answer)]


@pytest.mark.parametrize("name", part_of_traces(device_traces()))
def test_nothing_contradicts_anything(name: str, shared_traces: Path, tmp_path: Path) -> None:
    capture = CAPTURES.get(name)
    options = ["--capture", shared_traces / capture] if capture else []
    assert contradictions(answer_of(name, shared_traces / name, tmp_path / "r", *options)) == []


def annotated(before: Original, *spans: tuple[str, float, float]) -> Events:
    """With annotations (name, begin and end as shares of the window) on the thread that launches most."""
    table = before.trace.table
    launch = before.trace.tree.launch[before.rows]
    lane = np.bincount(table.lane[launch[launch >= 0]]).argmax()
    thread = before.events[int(table.file_index[np.flatnonzero(table.lane == lane)[0]])]
    first, last = table.start_ns[before.rows].min() / 1e3, table.ends_ns(before.rows).max() / 1e3
    added = [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": thread["pid"], "tid": thread["tid"],
         "ts": float(first + start * (last - first)), "dur": float((end - start) * (last - first))}
        for name, start, end in spans
    ]  # fmt: skip
    return [*before.events, *added]


def slowed(before: Original, share: float, factor: float) -> Events:
    """A device event ``share`` of the way takes ``factor`` times as long, and all after it comes later."""
    rows = before.rows[np.argsort(before.trace.table.start_ns[before.rows])]
    at = int(share * len(rows))
    return edits.stretched(before, rows[at : at + 1], factor)


def without_launch(before: Original) -> Events:
    """The host event that launched the longest device event was not recorded."""
    table = before.trace.table
    longest = before.rows[table.duration_ns[before.rows].argmax()]
    lost = int(before.trace.tree.launch[longest])
    return [event for at, event in enumerate(before.events) if lost < 0 or at != int(table.file_index[lost])]


#: What is different -> the events.
EDITS: dict[str, Callable[[Original], Events]] = {
    "three shards are loaded before the model runs": lambda before: annotated(
        before, *((f"load shard {at}", 0.001 * at, 0.001 * at + 0.0009) for at in range(3))
    ),
    "layers are numbered": lambda before: annotated(
        before, *((f"layer {at}", at / 24, (at + 0.9) / 24) for at in range(24))
    ),
    "one kernel takes forty times as long": lambda before: slowed(before, 0.5, 40.0),
    "a launch was not recorded": without_launch,
}
EDITED = (
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank0.pt.trace.json.gz",
    "more/param/dlrm_8rank/worker1_step_12.1694128201556.pt.trace.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "torch_compile_triton/trace.json.gz",
)


@pytest.mark.parametrize(("name", "edit"), part([(name, edit) for name in EDITED for edit in EDITS], 36))
def test_nor_does_it_where_one_thing_was_different(name: str, edit: str, shared_traces: Path, tmp_path: Path) -> None:
    before = original(shared_traces / name)
    path = tmp_path / "edited.json.gz"
    path.write_bytes(gzip.compress(orjson.dumps({**before.metadata, "traceEvents": EDITS[edit](before)}), 1))
    answer = answer_of(name, path, tmp_path / "r")
    assert contradictions(answer) == []
    busy = answer.report.summary.busy
    assert busy is not None
    assert busy.busy > 0.001
