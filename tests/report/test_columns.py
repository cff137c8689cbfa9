"""One name per column: its key, in every sheet and table; a title made of it; other headers only by choice."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest

import tracelens
from reference_reports.regenerate import EXAMPLES, REPORTS
from tests.conftest import part, row_by_row
from tracelens.analysis.ranks.rank_comparison import rank_sheets
from tracelens.analysis.sheets import built_in_sheets
from tracelens.analysis.sheets.perf_summary import UNIFIED_PERF_SUMMARY_COLUMNS as UNIFIED
from tracelens.analysis.sheets.priced_calls import FAMILY_COLUMNS as FAMILY
from tracelens.analysis.tables import built_in_tables
from tracelens.errors import UsageError
from tracelens.report.assembly import FAMILIES, header, make_sheet, with_tracelens_headers
from tracelens.schema import TableColumn, column_for, column_set, us

SHEETS = {title: claim.options["columns"] for title, claim in {**built_in_sheets(), **rank_sheets()}.items()} | {
    FAMILIES: FAMILY
}
ALL_SETS = SHEETS | {f"SQL {name}": claim.options["columns"] for name, claim in built_in_tables().items()}
#: A device is a number among kernels and ``cuda:0`` among allocations; SQL has texts where a sheet has mixed values.
_BOTH = ("device", "begins_with")
EVERY = [column for columns in ALL_SETS.values() for column in columns.values()]
#: Words, then the unit in brackets: a slash is part of a unit, or divides two words.
TITLE = re.compile(r"[A-Z][^()%_]*(?: \((?:µs|ms|s|MB|%|GFLOP|ppm|bytes|(?:TFLOPS|TB|GB|tokens)/s|W|J|FLOP/byte)\))?")
HEADERS = json.loads((Path(__file__).parent / "tracelens_headers.json").read_text(encoding="utf-8"))


def test_a_key_is_in_snake_case_and_ends_in_its_unit_and_times_are_in_microseconds():
    for column in EVERY:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", column.key), column.key
        if column.unit == "µs":
            assert re.search(r"_us(_[a-z]+)?$", column.key), column.key
        assert "_ms" not in column.key
        assert ("_us" in column.key) == (column.unit == "µs"), column.key


def test_the_table_of_columns_names_every_sheet_and_holds_nothing_that_is_not_used():
    text = resources.files("tracelens.analysis.sheets").joinpath("columns.json").read_text(encoding="utf-8")
    declared = json.loads(text, object_pairs_hook=each_key_once)
    texts, shared = declared.pop("texts"), declared.pop("shared")
    declared["shared"] = {"columns": [entry for group in shared.values() for entry in group]}
    entries = [entry for told in declared.values() for entry in told["columns"]]
    named = {entry["of"] if isinstance(entry, dict) else entry for entry in entries if not isinstance(entry, list)}
    assert {name for name in named if "." not in name} == set(shared)
    meanings = " ".join(entry[2] for entry in entries if isinstance(entry, list))
    assert set(re.findall(r"{(\w+)}", meanings)) == set(texts)
    sheets = {title for title in declared if not title.startswith(("sql.", "(", "shared"))}
    assert sheets == {*built_in_sheets(), *rank_sheets()}
    assert {f"sql.{name}" for name in built_in_tables()} >= {title for title in declared if title.startswith("sql.")}


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def test_a_key_has_one_unit_and_one_kind_of_value_wherever_it_stands():
    kinds: dict[str, tuple[bool, bool, str]] = {}
    for column in EVERY:
        unit = column.unit.partition(" ")[0].replace("1e6", "MB").replace("1e12", "")
        kind = (column.is_text, column.is_flag, unit if unit in ("µs", "%", "MB") else "")
        assert kinds.setdefault(column.key, kind) == kind or column.key in _BOTH, column.key


def test_titles_are_words_then_the_unit_and_no_two_columns_of_a_sheet_share_one():
    for columns in ALL_SETS.values():
        titles = [column.title for column in columns.values()]
        assert len(set(titles)) == len(titles)
    for column in EVERY:
        assert column.title[0].isupper(), column.title
        assert "_" not in column.title, column.title
        assert TITLE.fullmatch(column.title), column.title
        assert column.title.endswith(" (µs)") == (column.unit == "µs"), column.title
        assert "\u03bc" not in column.title
        assert not column.shown_as, "a title is made of the key: the same one everywhere"


def test_the_titles_of_rates_say_interconnect_or_hbm():
    assert UNIFIED["effective_interconnect_tb_s_mean"].title == "Effective interconnect bandwidth, mean (TB/s)"
    assert SHEETS["ep_long"]["effective_interconnect_tb_s"].title == "Effective interconnect bandwidth (TB/s)"
    assert UNIFIED["hbm_tb_s_mean"].title == "HBM bandwidth, mean (TB/s)"


def test_every_rate_in_terabytes_says_in_its_note_whether_it_is_hbm_or_wire():
    # Amounts that an allocator holds, or that a copy moves over PCIe, are neither; ranks only communicate
    sets = [
        columns
        for title, columns in SHEETS.items()
        if title not in ("copies", "memory", "memory_blocks", "memory_timeline") and title not in rank_sheets()
    ]
    rates = [c for columns in sets for c in columns.values() if "(TB/s)" in c.title or "(MB)" in c.title]
    assert rates
    for column in rates:
        said = f"{column.title} {column.note}"
        assert ("HBM" in said) != ("interconnect" in said.lower()), column.key


def test_interconnect_and_device_memory_share_no_column():
    wire = {c.key for c in UNIFIED.values() if c.unit in ("TB/s", "MB") and "nterconnect" in f"{c.title} {c.meaning}"}
    assert {"wire_mb", "expected_remote_mb", "effective_interconnect_tb_s_mean"} <= wire
    assert not wire & {c.key for c in UNIFIED.values() if "HBM" in c.meaning}


def test_every_column_says_what_it_means():
    assert not [c.key for c in EVERY if not c.note]


def test_a_key_means_the_same_quantity_in_the_unified_table_and_the_family_sheets():
    for key in set(UNIFIED) & set(FAMILY):
        assert UNIFIED[key].meaning == FAMILY[key].meaning


def test_two_columns_with_one_key_or_title_are_refused():
    with pytest.raises(UsageError, match="share a key or a title"):
        column_set(TableColumn(key="a", meaning="m"), TableColumn(key="a", meaning="n"))
    with pytest.raises(UsageError, match="share a key or a title"):
        column_set(TableColumn(key="a", meaning="m"), TableColumn(key="A", meaning="n"))


def test_a_dimension_is_shown_under_the_name_that_its_model_gives_it():
    assert column_for("param_M", UNIFIED).title == "Parameter M"
    assert column_for("param_shape_in1", UNIFIED).title == "Parameter shape of input 1"
    assert column_for("tokens_dropped", UNIFIED).title == "Tokens dropped"


@row_by_row("sheet", SHEETS)
def test_each_tracelens_header_stands_for_one_key(sheet: str) -> None:
    headers = [header(key, sheet) for key in SHEETS[sheet]]
    assert len(set(headers)) == len(headers)


@pytest.mark.parametrize("name", part([name for name in REPORTS if not name.endswith("_tracelens")], 3))
def test_with_the_option_the_headers_are_those_of_before(name: str, tmp_path: Path) -> None:
    """Of every sheet of the examples' reports, in order; columns that came later may stand between them. ``calls`` of
    ops_unique_args said what operation_count says.
    """
    trace, options = REPORTS[name]
    report = tracelens.report(EXAMPLES / trace, **{**options, "column_names": "tracelens"})  # type: ignore[arg-type]
    report.to_csv(tmp_path)
    expected = {
        sheet: [h for h in text.split("|") if (sheet, h) != ("ops_unique_args", "calls")]
        for sheet, text in HEADERS[name].items()
    }
    made = {path.stem: list(pd.read_csv(path, nrows=0).columns) for path in tmp_path.glob("*.csv")}
    kept = {sheet: [h for h in made.get(sheet, ()) if h in headers] for sheet, headers in expected.items()}
    assert kept == expected
    assert list(report["ops_summary"].columns) == expected["ops_summary"] if "ops_summary" in report else True


def test_a_header_in_milliseconds_has_milliseconds_under_it() -> None:
    columns = column_set(us("direct_us_sum", "A time."), us("subtree_us_sum", "Another."))
    frame = pd.DataFrame({"direct_us_sum": [1500.0], "subtree_us_sum": [2500.0]})
    made = with_tracelens_headers(make_sheet("ops_summary", frame, columns))
    assert made.frame.to_dict("records") == [
        {
            "total_direct_kernel_time_sum": 1500.0, "total_subtree_kernel_time_sum": 2500.0,
            "total_direct_kernel_time_ms": 1.5, "total_subtree_kernel_time_ms": 2.5,
        }
    ]  # fmt: skip
    assert [column.unit for column in made.columns] == ["µs", "µs", "ms", "ms"]


def test_another_choice_is_refused() -> None:
    with pytest.raises(UsageError, match="keys"):
        tracelens.report(EXAMPLES / "moe_ep8" / "rank0.json.gz", column_names="upstream")
