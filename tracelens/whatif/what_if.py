"""``what_if``: the step that a trace would show if something about it were different."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from typing import Any

from tracelens.analysis.loaded_trace import Options, Trace, load
from tracelens.option_fields import made, takes
from tracelens.whatif.changes import PLACE, changes
from tracelens.whatif.outcome import WhatIf, outcome
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import price
from tracelens.whatif.subject import Subject
from tracelens.whatif.what_if_options import WhatIfOptions


@takes(WhatIfOptions)
def what_if(trace: Trace | str | PathLike[str], options: WhatIfOptions | None = None, **given: Any) -> WhatIf:
    """The trace with its operations timed anew and everything that depends on them replayed.

    ``options`` are what ``given`` keywords change. InputError for an unreadable file, NothingToAnalyzeError for one
    without GPU work, UsageError for a name that fits nothing.
    """
    asked = made(WhatIfOptions, given, options)
    subject = Subject.of(trace if isinstance(trace, Trace) else load(trace), Options(steps=asked.steps))
    plan = Plan.of(subject)
    values = {each.name: getattr(asked, each.name) for each in fields(asked)}
    wanted = {name: value for name, value in values.items() if value not in (None, (), False)}
    known = changes()
    ordered = sorted(wanted.keys() & known.keys(), key=lambda name: (known[name].options["stage"], name))
    for name in ordered:
        if known[name].options["stage"] <= PLACE:
            known[name].target(plan, wanted[name])
    price(plan)
    for name in ordered:
        if known[name].options["stage"] > PLACE:
            known[name].target(plan, wanted[name])
    return outcome(plan, {name: list(value) if isinstance(value, tuple) else value for name, value in wanted.items()})
