"""docs/architecture.md and its picture name every room of the package, and no room that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.structure.test_floors import FLOORS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tracelens"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")


def rooms(folder: Path = PACKAGE) -> list[str]:
    """Folders that hold modules, at any depth."""
    return sorted({path.parent.relative_to(PACKAGE).as_posix() for path in folder.rglob("*.py")} - {"."})


def test_the_page_names_every_room() -> None:
    missing = [room for room in rooms() if not re.search(rf"`(?:[\w.]+\.)?{Path(room).name}`", PAGE)]
    assert not missing


def test_the_picture_names_every_room() -> None:
    words = set(re.findall(r"\w+", PICTURE))
    assert not [room for room in rooms() if Path(room).name not in words]


def test_the_table_has_the_floor_of_every_room() -> None:
    shown = {
        room: int(floor)
        for floor, room in re.findall(r"^\| (\d) \| `([\w.]+)` \|", PAGE.partition("\n## ")[0], re.MULTILINE)
    }
    paths = [path.parent for path in (*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("predict/*/__init__.py"))]
    folders = {path.relative_to(PACKAGE).as_posix().replace("/", ".") for path in paths}
    assert shown == {room: floor for room, floor in FLOORS.items() if room in folders}


def test_no_room_is_named_that_is_gone() -> None:
    named = set(re.findall(r"`(analysis\.\w+)`", PAGE))
    assert named <= {room.replace("/", ".") for room in rooms()}
