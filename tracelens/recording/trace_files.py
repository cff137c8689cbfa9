"""Traces on their way to files: exported by the profiler, compressed beside the program, whole or not at all."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError

#: Of gzip: 6 takes four times as long for files a tenth smaller.
_LEVEL = 1


class TraceFiles:
    """The files of one rank in a folder: ``rank3.json.gz``, later ones ``rank3_2.json.gz``."""

    def __init__(self, folder: Path, rank: int, *, report: bool) -> None:
        self._folder, self._rank, self._report = folder, rank, report
        self._written: list[Path] = []
        self._probe: Path | None = None
        self._threads: list[threading.Thread] = []

    def write(self, profiler: Any) -> None:
        """Exports now, compresses in a thread that the process waits for when it ends."""
        if self._probe is not None:
            self._probe.unlink()
            self._probe = None
        self._finish(_exported(profiler, self._folder))

    def probe(self, profiler: Any) -> int:
        """Bytes of the JSON of a first trace, which is only kept if no other follows."""
        self._probe = _exported(profiler, self._folder)
        return self._probe.stat().st_size

    def keep_probe(self) -> None:
        """Writes the first trace if no other followed."""
        if self._probe is not None:
            self._finish(self._probe)
            self._probe = None

    def wait(self) -> tuple[Path, ...]:
        """The files, all of them whole."""
        for thread in self._threads:
            thread.join()
        return tuple(self._written)

    def _finish(self, file: Path) -> None:
        number = len(self._threads) + 1
        path = self._folder / f"rank{self._rank}{f'_{number}' if number > 1 else ''}.json.gz"
        thread = threading.Thread(target=self._compress, args=(file, path), name="tracelens-write")
        self._threads.append(thread)
        thread.start()

    def _compress(self, file: Path, path: Path) -> None:
        part = path.with_name(f"{path.name}.part")
        try:
            with (
                file.open("rb") as source,
                part.open("wb") as sink,
                gzip.GzipFile(path.name, "wb", _LEVEL, sink, mtime=0) as packed,
            ):
                shutil.copyfileobj(source, packed, 1 << 20)
            part.replace(path)
            self._written.append(path)
            if self._report:
                from tracelens.report import report

                report(path, cpu=True).write(path.with_name(f"{path.name.removesuffix('.json.gz')}.report"))
        except (OSError, TracelensError) as error:
            warnings.warn(f"tracelens: {path} was not written or not reported on: {error}", stacklevel=1)
        finally:
            part.unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _exported(profiler: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".tracelens-", suffix=".json", dir=folder, delete=False) as file:
        path = Path(file.name)
    profiler.export_chrome_trace(str(path))
    return path
