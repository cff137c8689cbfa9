"""Programs that run a C file of the package with every read and write watched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_WATCHED = ("-g", "-O1", "-std=c99", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def watched_program(name: str, source: Path, folder: Path) -> Path:
    """What is made in ``folder`` of ``name`` (a C file beside this module), which includes ``source``.

    The test is skipped where no C compiler can.
    """
    program, main = folder / Path(name).stem, Path(__file__).with_name(name)
    command = ["cc", *_WATCHED, f"-I{source.parent}", "-o", program, main, "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no C compiler that watches memory: {error}")
    return program
