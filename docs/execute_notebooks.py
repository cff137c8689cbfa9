"""Executes the notebooks of docs/notebooks/ and keeps what they show: ``python -m docs.execute_notebooks``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"
SECONDS = 120


def executed(path: Path) -> Any:
    """The notebook with what its cells show; nbclient's CellExecutionError names the cell that fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where, record_timing=False).execute()
    return notebook


def main() -> int:
    import nbformat

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(executed(path), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
