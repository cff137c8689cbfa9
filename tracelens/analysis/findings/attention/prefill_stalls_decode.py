"""Steps with new prompts that hold up the sequences being decoded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, duration
from tracelens.analysis.reading.engine_steps import DECODE, MIXED, PREFILL, phase
from tracelens.analysis.verdict.summary import Said
from tracelens.units import NS_PER_US

#: How many times as long as a step that only decodes.
_TIMES = 2.0


@finding(
    "prefill_stalls_decode",
    Advice(
        sees="An engine's steps with new prompts take several times as long as those that only decode.",
        costs="Every sequence that is being decoded waits for the prompt: its next token comes that much later.",
        remedy="chunked prefill with a smaller token budget per step, or prefill on devices of its own",
        wrong_when="Throughput is what matters, not the time between tokens.",
        references=(
            "Agrawal et al., Sarathi-Serve, 2024, arXiv:2403.02310",
            "Zhong et al., DistServe, arXiv:2401.09670",
        ),
        command="tracelens serve --help",
        is_general=True,
    ),
)
def prefill_stalls_decode(seen: Observed) -> Iterator[Candidate]:
    """Gain, for the decoding: what these steps take beyond one that only decodes; at least none."""
    engine = seen.context.window.engine
    phases = np.array([phase(step) or "" for step in engine.steps.said])
    took = engine.times.duration_ns
    decode, prompt = phases == DECODE, np.isin(phases, (PREFILL, MIXED))
    if len(took) != len(phases) or not decode.any() or not prompt.any():
        return
    usual = float(np.median(took[decode]))
    # A prompt holds nobody up before anything is decoded
    stalls = prompt & (took > _TIMES * usual) & (np.maximum.accumulate(decode) | (phases == MIXED))
    share = np.append(np.where(stalls, 1 - usual / np.maximum(took, 1), 0.0), 0.0)[_steps_of(seen)]
    if not share.any():
        return
    longest = float(took[stalls].max() / NS_PER_US)
    yield Candidate(
        why=f"{counted(int(stalls.sum()), 'step')} with new prompts, up to {duration(longest)}, hold up decoding, "
        f"which "
        f"takes {duration(usual / NS_PER_US)} a step alone",
        claimed=seen.kernels(np.flatnonzero(share), share[share > 0], low=0.0, spares_launches=True),
        computed="what these steps take beyond one that only decodes; at least none of it",
        certainty="low",
        figures=(
            Said(what="steps with prompts", value=int(stalls.sum()), unit="count"),
            Said(what="longest of them", value=longest, unit="us"),
            Said(what="median step that decodes", value=usual / NS_PER_US, unit="us"),
        ),
    )


def _steps_of(seen: Observed) -> npt.NDArray[np.int64]:
    """The engine's step of each device event, -1 for none."""
    times = seen.context.window.engine.times
    step = np.searchsorted(times.start_ns, seen.activity.start, side="right") - 1
    inside = (step >= 0) & (seen.activity.start < times.end_ns[np.maximum(step, 0)])
    return np.where(inside, step, -1)
