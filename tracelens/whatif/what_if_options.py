"""What can be different, as keywords and as options of the command."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.option_fields import option


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """What ``what_if`` takes beside a trace: the field of each change is named like its mark."""

    scale: tuple[str, ...] = option(
        "multiply the time of a category, op, module or kernel (or host)", (), repeat=True, metavar="NAME=FACTOR",
        note="multiply the time of a category (`GEMM`), op, module or kernel (`*` fits anything), or of the `host`; "
        "repeatable",
    )  # fmt: skip
    remove: tuple[str, ...] = option(
        "leave out a category, op, module or kernel", (), repeat=True, metavar="NAME",
        note="leave out a category, an op, module or range with all below it and the host's time in it, or kernels; "
        "repeatable",
    )  # fmt: skip
