"""The verbs of the command: one file each in ``tracelens/cli`` and the folders in it, found by listing them.

The command and whoever offers the verbs in another way (``agents``) ask here, so neither imports the other.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent
_FOLDER = _PACKAGE / "cli"


def verbs() -> dict[str, Path]:
    """The file of each verb, by its name, sorted."""
    files = {path.stem: path for path in _FOLDER.rglob("*.py") if path.stem != "__init__"}
    return dict(sorted(files.items()))


def verb_module(verb: str) -> ModuleType:
    """The module of a verb: its docstring, ``configure`` and ``run``."""
    place = verbs()[verb].relative_to(_PACKAGE).with_suffix("")
    return importlib.import_module(".".join((_PACKAGE.name, *place.parts)))
