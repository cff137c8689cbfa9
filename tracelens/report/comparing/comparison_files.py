"""Writes a comparison, in the format of each file's ending or as a folder of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.report.comparing.comparison_documents import comparison_json, comparison_markdown, is_comparison
from tracelens.report.comparing.comparison_tables import comparison_xlsx
from tracelens.report.comparing.gate_files import junit_xml, sarif
from tracelens.report.comparison_files import comparison_html

if TYPE_CHECKING:
    from tracelens.comparison.compared import Comparison

#: By ending; ``.xml`` is JUnit's.
WRITERS: dict[str, Callable[[Comparison], bytes]] = {
    ".json": comparison_json,
    ".md": comparison_markdown,
    ".html": comparison_html,
    ".xlsx": comparison_xlsx,
    ".xml": junit_xml,
    ".sarif": sarif,
}
_OF_GATES = (".xml", ".sarif")


def refuse_foreign(folder: Path) -> None:
    """Raises, see ``refuse_folder``, before any work is done when a comparison could not go to ``folder``."""
    # Which imports pandas: most comparisons are printed alone
    from tracelens.report.named_sheets import refuse_folder

    refuse_folder(folder, lambda: is_comparison(folder / "compare.json"), "a comparison")


def write_comparison(found: Comparison, path: Path) -> None:
    """Writes a file, or fills a folder with compare.json, .md, .html and .xlsx, and with .xml and .sarif where there
    are gates: whole or not at all."""
    if path.suffix in WRITERS:
        write_whole(path, WRITERS[path.suffix](found))
        return
    refuse_foreign(path)
    with whole_folder(path) as staging:
        for ending, write in WRITERS.items():
            if found.gates or ending not in _OF_GATES:
                (staging / f"compare{ending}").write_bytes(write(found))
