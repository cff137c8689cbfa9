"""What a wheel holds, by part: ``python -m benchmarks.wheel FILE.whl [OLDER.whl]``, in kB as the wheel packs it.

A part is a room of the package, or a kind of file that is no code; a file counts with its entries in the archive's
directory. With an older wheel the last column is what has been added since.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

#: Heads of an archive's entry, which stand before the file and in the directory, without its name.
_HEADS_BYTES = 30 + 46


def bytes_by_part(wheel: Path) -> Counter[str]:
    """As packed; they add up to the wheel, but for the directory's last record."""
    parts: Counter[str] = Counter()
    with ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = Path(entry.filename)
            room = "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]
            part = room if path.suffix == ".py" else f"{path.parts[0].partition('-')[0]}: {path.suffix or path.name}"
            parts[part] += entry.compress_size + _HEADS_BYTES + 2 * len(entry.filename)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what a wheel holds, by part")
    parser.add_argument("wheels", type=Path, nargs="+", help="a wheel, and one to compare with")
    found = [bytes_by_part(wheel) for wheel in parser.parse_args().wheels[:2]]
    parts, before = found[0], found[-1]
    for part in [*(part for part, _ in (parts | before).most_common()), "all"]:
        now, then = (each.total() if part == "all" else each[part] for each in (parts, before))
        print(f"{part:<40}{now / 1e3:>8.1f}" + (f"{(now - then) / 1e3:>+8.1f}" if len(found) > 1 else ""))


if __name__ == "__main__":
    main()
