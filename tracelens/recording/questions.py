"""What to record to answer a question: the options that it needs, and the command that answers it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``words``: what people call it by; ``options``: of ``tracelens.profile``; ``then``: what answers it."""

    text: str
    words: str
    then: str
    why: str
    options: Mapping[str, object] = field(default_factory=dict)


#: The first is the one to fall back on; of others, the one that shares most words with what is asked.
QUESTIONS = (
    Question(
        text="where does the time go", words="time slow fast step bottleneck overview profile",
        why="shapes give FLOPs, bytes and rooflines; three steps show how much steps vary",
        then="tracelens report traces/rank0.json.gz", options={"ranks": (0,)},
    ),
    Question(
        text="why is rank 3 slow, or communication",
        words="rank ranks straggler stragglers communication collective collectives nccl rccl allreduce network",
        why="waiting shows only beside the ranks that are waited for: every rank, the same steps",
        then="tracelens collectives traces/",
    ),
    Question(
        text="which line of my code or which module is slow",
        words="line code stack stacks module modules layer layers python source function",
        why="stacks name modules and lines; they slow the host, so measure times without them",
        then="tracelens report traces/rank0.json.gz", options={"ranks": (0,), "stacks": True, "steps": 1},
    ),
    Question(
        text="what takes the memory", words="memory oom allocation allocations allocated reserved fragmentation",
        why="an event per allocation", then="tracelens report traces/rank0.json.gz",
        options={"ranks": (0,), "memory": True, "steps": 1},
    ),
    Question(
        text="why is the GPU idle", words="idle gap gaps host cpu launch utilization busy dataloader",
        why="idle time has its cause in the host's calls; stacks would slow exactly those", options={"ranks": (0,)},
        then="tracelens report traces/rank0.json.gz",
    ),
    Question(
        text="how far are the kernels from the hardware's limit",
        words="flops tflops mfu roofline gemm gemms kernel kernels attention limit peak efficiency bandwidth hbm",
        why="shapes and types of every op; more calls of each show its spread", options={"ranks": (0,), "steps": 5},
        then="tracelens report traces/rank0.json.gz --model NAME",
    ),
    Question(
        text="is it slower than before", words="slower regression compare before version commit upgrade gate",
        why="a change is told from noise by the spread of steps: more of them, both recorded the same way",
        options={"ranks": (0,), "steps": 8}, then="tracelens compare before/rank0.json.gz traces/rank0.json.gz",
    ),
    Question(
        text="what would another device, batch or precision bring",
        words="whatif device batch precision fuse overlap scale",
        why="a replay needs launches, streams and synchronizations, which every recording has",
        options={"ranks": (0,)}, then="tracelens whatif traces/rank0.json.gz --device mi355x",
    ),
)  # fmt: skip

_WORD = lazy_pattern(r"[a-z]+")


def question_of(text: str) -> Question | None:
    """The question that shares most words with ``text``; None where none does."""
    asked = set(_WORD.findall(text.lower()))
    common = {question.text: len(asked & set(question.words.split())) for question in QUESTIONS}
    most = [question for question in QUESTIONS if common[question.text] == max(common.values()) > 0]
    return next((question for question in most if question is not QUESTIONS[0]), most[0] if most else None)


def snippet(question: Question) -> str:
    """Python to put around a training loop."""
    given = "".join(f", {name}={value!r}" for name, value in question.options.items())
    return (
        "import tracelens\n\n"
        f'with tracelens.profile("traces"{given}) as recorder:\n'
        "    for batch in batches:\n"
        "        train_step(batch)\n"
        "        recorder.step()\n"
    )
