"""Ten mistakes that people make: each ends in one sentence with the name or the command that works."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli.parsing import with_verb
from tracelens.errors import UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "example_traces" / "moe_ep8"
GEMM = "estimate gemm --m 8 --n 8 --k 8"

MISTAKES = {
    "misspelled verb": ("repotr t.json.gz", "no command or file named 'repotr'; did you mean report?"),
    "misspelled option": (
        f"{GEMM} --devise h200", "no option of tracelens estimate gemm named '--devise'; did you mean --device?",
    ),
    "misspelled op": ("replay t.json.gz --op aten::mn", "no op with device time named 'aten::mn'; did you mean aten::mm"),
    "misspelled op of the list": ("ops atem::mm", "no op named 'atem::mm'; did you mean aten::mm"),
    "misspelled kind of estimate": ("estimate gem", "no command of tracelens estimate named 'gem'; did you mean gemm?"),
    "misspelled device": (f"{GEMM} --device h20x", "no device named 'h20x'; did you mean "),
    "misspelled model": ("models show lama3-8b", "no model named 'lama3-8b'; did you mean llama3-8b"),
    "misspelled column": (
        "query t.json.gz 'SELECT kernel_us_sun FROM ops'",
        "no column named 'kernel_us_sun'; did you mean kernel_us_sum?",
    ),
    "misspelled finding": (
        "whatif t.json.gz --apply exposed_comunication",
        "no finding in the report of this trace named 'exposed_comunication'; did you mean exposed_communication?",
    ),
    "missing unit": (
        "serve --model llama3-8b --device h100 --rate 1 --duration 30", "a duration needs its unit: write 30ms or 30s, not 30",
    ),
    "folder for a file": (
        "report job",
        "'job' is a folder, not a trace file: name one, or report on all its ranks with tracelens collectives job",
    ),
}  # fmt: skip


OTHERS = {
    "subject of a gate": (
        "compare t.json.gz t.json.gz --gate 'GEM<3%'", "no category or op on either side named 'GEM'; did you mean GEMM?",
    ),
    "column of a table": ("score points.csv --family famly", "no column of points.csv named 'famly'; did you mean family?"),
    "swept option": (
        "project --model llama3-8b --cluster dgx-h100 --gpus 8 --sweep precison=bf16,fp8",
        "no option for --sweep named 'precison'; did you mean precision?",
    ),
    "collective": (
        "estimate collective --op all_reduc --bytes 64MB --ranks 8 --cluster dgx-h100",
        "no collective named 'all_reduc'; did you mean all_reduce?",
    ),
    "value of an option": ("report t.json.gz --format jsn", "no value of --format named 'jsn'; did you mean json?"),
    "option before one that is missing": (
        "search --modle llama3-8b", "no option of tracelens search named '--modle'; did you mean --model?",
    ),
    "device of a cluster": (
        "project --model llama3-8b --device h100",
        "no option of tracelens project named '--device'; --cluster takes a device, too, in its standard node",
    ),
    "two loads": (
        "serve --model llama3-8b --device h100 --rate 1 --concurrency 2",
        "--rate and --concurrency are two kinds of load: give one",
    ),
    "file of another kind, of a report": (
        "report t.json.gz -o x.csv",
        "x.csv: no .csv file is written here; name a folder, or a file of a kind that --help lists",
    ),
    "file of another kind, of ranks": (
        "collectives job -o x.md", "x.md: no .md file is written here; name a folder, or a file of a kind that --help lists",
    ),
    "file of another kind, of a comparison": (
        "compare t.json.gz t.json.gz -o x.pdf",
        "x.pdf: no .pdf file is written here; name a folder, or a file of a kind that --help lists",
    ),
    "file of another kind, of a server": (
        "serve --model llama3-8b --device h100 --rate 1 -o x.csv",
        "x.csv: no .csv file is written here; name a folder, or a file of a kind that --help lists",
    ),
    "file of another kind, of a load curve": (
        "serve --model llama3-8b --device h100 -o x.txt",
        "x.txt: no .txt file is written here; name a folder, or a file of a kind that --help lists",
    ),
    "output without -o": ("t.json.gz --csv out", "tracelens report does not take 'out'; to name an output, write -o out"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE / "rank0.json.gz", "t.json.gz")
    shutil.copytree(EXAMPLE, "job")
    Path("points.csv").write_text("measured,predicted,family\n1,2,a\n")


@pytest.mark.parametrize("mistake", [*MISTAKES, *OTHERS])
def test_a_mistake_is_one_sentence_with_what_works(
    mistake: str, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command, sentence = (MISTAKES | OTHERS)[mistake]
    if command.startswith("query"):
        pytest.importorskip("duckdb", reason="the query extra is not installed")
    assert main(shlex.split(command)) in (1, 2, 3)
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_a_trace_in_place_of_a_verb_is_no_mistake(here: None) -> None:
    assert with_verb(["t.json.gz"]) == ["report", "t.json.gz"]


def test_names_that_an_error_lists_are_cut(tmp_path: Path) -> None:
    """Kernels' names are hundreds of characters long."""
    long = "void " + 300 * "x"
    assert (
        str(UsageError.unknown("kernel", "?", [long, "short"])) == f"no kernel named '?'; known: short, {long[:67]}..."
    )
