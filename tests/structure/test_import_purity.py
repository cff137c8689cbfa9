"""Importing has no side effects, and the public names are a decision."""

from __future__ import annotations

import subprocess
import sys

import tracelens

PUBLIC_NAMES = [
    "Advice", "Candidate", "CategoryOf", "Conv", "DType", "EPComm", "Elementwise", "GEMM", "GroupedGEMM", "HardwareSpec", "KernelPattern",
    "Normalization", "OpSignature", "PerfModel", "Reduce", "SDPA", "SignatureError", "Softmax", "Trace", "TracelensError",
    "__version__", "backend", "collectives", "compare", "estimate", "finding", "handler", "layer", "load", "profile", "project", "recorded_as", "report", "route", "search", "serve", "sheet", "traced_as", "traced_as_pattern",
]  # fmt: skip


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_loads_neither_numpy_nor_pandas_and_prints_nothing() -> None:
    code = (
        "import sys, logging; before = len(logging.root.handlers); import tracelens;"
        "assert len(logging.root.handlers) == before;"
        "print(sorted({'numpy', 'pandas', 'msgspec'} & set(sys.modules)))"
    )
    assert run(code) == "[]\n"


def test_help_loads_the_command_line_alone() -> None:
    """So that it is quick: the verbs are read, not imported, and what starts slowly is not needed."""
    code = (
        "import sys, contextlib, io; from tracelens.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main(['--help'])\n"
        "    except SystemExit: pass\n"
        "slow = {'numpy', 'pandas', 'msgspec', 'orjson', 'dataclasses', 'json', 'logging', 'subprocess', 'asyncio'}\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in slow | {'tracelens'}))"
    )
    modules = ("cli", "cli.verbs", "errors", "files", "files.safe_text", "files.say")
    assert run(code) == f"{['tracelens', *(f'tracelens.{name}' for name in modules)]}\n"


def test_a_worker_that_reads_a_rank_a_printed_comparison_and_a_printed_step_do_not_load_pandas() -> None:
    """pandas takes longer to import than two small traces take to compare, or a step to project."""
    modules = (
        "tracelens.analysis.ranks.rank_files, tracelens.comparison.compare, tracelens.comparison.whatif.what_if, "
        "tracelens.report.comparison_report, tracelens.predict.projection.project, tracelens.report.projection_report"
    )
    assert run(f"import sys; import {modules}; print(sorted({{'pandas'}} & set(sys.modules)))") == "[]\n"


def test_public_names_are_frozen() -> None:
    assert {name for name in dir(tracelens) if not name.startswith("__")} == set(PUBLIC_NAMES) - {"__version__"}


def test_every_public_name_resolves() -> None:
    for name in PUBLIC_NAMES:
        assert getattr(tracelens, name) is not None


def test_reporting_is_a_function_even_after_its_room_is_imported() -> None:
    import tracelens.report

    assert callable(tracelens.report)
