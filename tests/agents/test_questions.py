"""What an agent would ask: the official client answers each question in one call or two, in under 2,000 tokens, and
right, as a second path says: the events as JSON, arithmetic, or the files of the command.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import REPOSITORY, TRACES, part
from tests.test_readme_answers import EXAMPLE, FASTER, STEPS, events, kernels, number, step_ms
from tracelens.cli import main
from tracelens.cli.agents.tools import CHARACTERS_PER_TOKEN
from tracelens.hardware import HardwareSpec

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("mcp") is None, reason="the mcp extra is not installed"),
]
RANK0 = EXAMPLE / "rank0.json.gz"
MOST_TOKENS = 2000
#: A tool's name and its arguments -> its answer.
Ask = Callable[[str, dict[str, Any]], str]


class Question(NamedTuple):
    """``calls``: (tool, arguments), at most two; ``check`` of their answers, each as one text."""

    asked: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    check: Callable[[str], None]


def unescaped(text: str) -> str:
    """An answer as who reads JSON reads it."""
    return " ".join(text.replace('\\"', '"').encode().decode("unicode_escape").split())


def in_steps() -> list[dict[str, Any]]:
    """Kernels and copies of rank 0 that ran in its steps, on the GPU's clock."""
    every = events(RANK0)
    steps = [
        (each["ts"], each["ts"] + each["dur"]) for each in every
        if each.get("cat") == "gpu_user_annotation" and each["name"].startswith("ProfilerStep") and each["dur"] > 10_000
    ]  # fmt: skip
    ran = [each for each in every if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [each for each in ran if any(start <= each["ts"] < end for start, end in steps)]


def union_us(ran: list[dict[str, Any]]) -> float:
    """How long at least one of these ran."""
    total, until = 0.0, float("-inf")
    for start, end in sorted((each["ts"], each["ts"] + each["dur"]) for each in ran):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def within_us(name: str) -> float:
    """Time in the steps of the kernels that were launched inside an op of this name, of rank 0."""
    every = events(RANK0)
    ops = [each for each in every if each.get("cat") == "cpu_op" and each["name"] == name]
    launched = {
        each["args"]["correlation"] for each in every
        if each.get("cat") == "cuda_runtime" and "correlation" in each["args"]
        and any(op["tid"] == each["tid"] and op["ts"] <= each["ts"] < op["ts"] + op["dur"] for op in ops)
    }  # fmt: skip
    return sum(each["dur"] for each in in_steps() if each["args"].get("correlation") in launched)


def lists_the_recordings(text: str) -> None:
    assert number(r"(\d+) files below", text) == len(list(REPOSITORY.glob("example_traces/**/*.json.gz"))) + 1
    assert "several in ., gloo_ranks2, moe_ep8, which collectives compares" in text
    assert "lakes: lake" in text


def says_how_long_a_step_is(text: str) -> None:
    assert number(r'"time_us":([\d.]+)', text) == pytest.approx(1e3 * step_ms(), rel=1e-3)


def says_how_busy_the_gpu_is(text: str) -> None:
    ran = in_steps()
    whole = STEPS * 1e3 * step_ms()
    assert number(r"it is busy ([\d.]+) %", text) == pytest.approx(100 * union_us(ran) / whole, abs=0.1)
    assert number(r'"idle":([\d.]+)', text) == pytest.approx(1 - union_us(ran) / whole, abs=0.001)


def says_what_to_change_first(text: str) -> None:
    """Exposed communication: what of the step would be gone if it were hidden, less kernels that only wait."""
    ran = in_steps()
    sends = [each for each in ran if "nccl" in each["name"] or "deep_ep" in each["name"]]
    alone = union_us(ran) - union_us([each for each in ran if each not in sends])
    assert "Fix finding 1 (exposed communication) first" in text
    assert number(r"exposed communication takes (\d+) % of the time", text) == round(
        100 * alone / (STEPS * 1e3 * step_ms())
    )
    assert 0 < number(r"save up to ([\d.]+) ms", text) <= alone / STEPS / 1e3 + 0.005


def says_what_takes_most_time(text: str) -> None:
    shown = rows(text)
    assert [ms for _, ms in shown] == sorted((ms for _, ms in shown), reverse=True)
    assert len(shown) == 3
    for name, ms in shown:
        assert ms == pytest.approx(within_us(name) / 1e3, rel=1e-4)
    assert sum(ms for _, ms in shown) < sum(each["dur"] for each in in_steps()) / 1e3


def rows(text: str) -> list[Any]:
    """Those of the first table of an answer."""
    start = text.index("[[")
    found: list[Any] = json.loads(text[start : text.index("]]") + 2])
    return found


def says_how_fast_a_gemm_is(text: str) -> None:
    """2 m n k over the mean time of the kernels of the calls with these shapes."""
    m, k, n = (int(number(rf"{dim}': (\d+)", text)) for dim in "MKN")
    mean_us = number(r"the kernels of a call take ([\d.]+)", text)
    assert number(r"achieved ([\d.]+) TFLOPS/s", text) == pytest.approx(2 * m * n * k / mean_us / 1e6, rel=1e-3)
    every = events(RANK0)
    ops = [
        each for each in every
        if each["name"] == "aten::mm" and each["args"]["Input Dims"][:2] == [[m, k], [k, n]]
    ]  # fmt: skip
    launches = [each for each in every if each.get("cat") == "cuda_runtime" and "correlation" in each.get("args", {})]
    own = {
        each["args"]["correlation"] for each in launches
        if any(op["ts"] <= each["ts"] < op["ts"] + op["dur"] and op["tid"] == each["tid"] for op in ops)
    }  # fmt: skip
    ran = [each["dur"] for each in in_steps() if each.get("cat") == "kernel" and each["args"]["correlation"] in own]
    assert len(ran) >= STEPS
    assert sum(ran) / len(ran) == pytest.approx(mean_us, rel=1e-3)


def says_what_faster_gemms_bring(text: str) -> None:
    """No more than half of their kernels' time, and most of it where the GPU bounds the step."""
    assert number(r"step ([\d.]+) -> ", text) == pytest.approx(step_ms(), abs=0.06)
    saved = number(r"step ([\d.]+) -> ", text) - number(r"step [\d.]+ -> ([\d.]+) ms", text)
    of_gemms = sum(map(within_us, ("aten::mm", "aten::addmm"))) / STEPS / 1e3
    assert 0.8 * of_gemms / 2 - 0.1 < saved < of_gemms / 2 + 0.1


def says_what_changed(text: str) -> None:
    halved = sum(each["dur"] for each in kernels(RANK0) if FASTER in each["name"]) / 2 / STEPS / 1e3
    # The kernels after the faster ones still begin when they did
    assert number(r"step [\d.]+ -> [\d.]+ ms: ([+-][\d.]+) ms", text) == pytest.approx(0, abs=0.001)
    assert number(r"idle \+([\d.]+) ms", text) == pytest.approx(halved, abs=0.01)
    assert number(r"SDPA_bwd -([\d.]+) ms: kentry \d+ % faster", text) == pytest.approx(halved, abs=0.001)


def says_who_is_late(text: str) -> None:
    """Rank 1 slept before every collective (example_traces/README.md)."""
    assert "rank 1 is late on its own by" in text
    assert text.index("rank 1 is late") < text.index("rank 0 is late")
    assert number(r"rank 1 is late on its own by ([\d.]+) ms", text) > 3 * number(
        r"rank 0 is late on its own by ([\d.]+) ms", text
    )


def says_what_collectives_reach(text: str) -> None:
    """Bus bandwidth of the largest all-reduce: 2 (n - 1) / n times its bytes over its time."""
    largest = max(
        (each for each in in_steps() if each["args"].get("Collective name") == "allreduce"),
        key=lambda each: each["args"]["In msg nelems"],
    )
    nelems = largest["args"]["In msg nelems"]
    same = [
        each["dur"] for each in in_steps()
        if each["args"].get("Collective name") == "allreduce" and each["args"]["In msg nelems"] == nelems
    ]  # fmt: skip
    width = {"BFloat16": 2, "Float": 4}[largest["args"]["dtype"]]
    bus = 2 * 7 / 8 * nelems * width / (sum(same) / len(same)) / 1e3
    assert number(rf'\["allreduce",{nelems},([\d.]+)\]', text) == pytest.approx(bus, rel=0.02)


def counts_kernels(text: str) -> None:
    counts = Counter(each["name"] for each in in_steps() if each.get("cat") == "kernel")
    shown = rows(text)
    assert [count for _, count in shown] == [count for _, count in counts.most_common(len(shown))]
    assert len(shown) == 3


def says_what_is_recorded(text: str) -> None:
    ops = [each for each in events(RANK0) if each.get("cat") == "cpu_op"]
    with_shapes = sum(bool(each.get("args", {}).get("Input Dims")) for each in ops)
    assert number(r"shapes +in ([\d.]+) % of", text) == pytest.approx(100 * with_shapes / len(ops), abs=0.05)
    assert "stacks no (with_stack was off)" in text


def says_how_runs_went(text: str) -> None:
    """One run of two ranks; the median step of both is that of rank 0, as the ranks wait for each other."""
    told = json.loads(text[text.index('[{"run"') : text.index("}]") + 2])[0]
    assert number(r"(\d+) row of a lake", text) == 1
    assert (told["traces"], told["steps"]) == (2, 2 * STEPS)
    assert told["step_us_median"] == pytest.approx(1e3 * step_ms(), rel=0.01)


def says_how_long_a_gemm_takes(text: str) -> None:
    flops = 2 * 4096**3
    peak_us = flops / HardwareSpec.load("h100-sxm").matrix["bf16"].peak_tflops_s / 1e6
    assert number(r"peak µs ([\d.]+)", text) == pytest.approx(peak_us, rel=1e-3)
    time_us = number(r"time µs ([\d.]+)", text)
    assert peak_us < time_us < 1.5 * peak_us
    assert number(r"TFLOPS/s ([\d.]+)", text) == pytest.approx(flops / time_us / 1e6, rel=1e-3)


def says_how_a_server_behaves(text: str) -> None:
    """A token reads the weights once at least: 16.06 GB at the data sheet's rate. Four requests a second are served."""
    least_ms = 2 * 8.03e9 / (HardwareSpec.load("h100-sxm").hbm.peak_tb_s * 1e12) * 1e3
    assert least_ms < number(r"([\d.]+) ms per token", text) < 3 * least_ms
    assert number(r"([\d.]+) requests/s", text) == pytest.approx(4, rel=0.1)


def says_how_to_split(text: str) -> None:
    """The step of the split that the search names, projected by its event graph."""
    searched, projected = number(r"fastest: ([\d.]+) s per step", text), number(r"80GB: ([\d.]+) s per step", text)
    assert projected == pytest.approx(searched, rel=0.02)


MOE = {"trace": "moe_ep8/rank0.json.gz"}
TOP = "SELECT kernel_name, count(*) AS calls FROM kernels WHERE category NOT LIKE 'mem%' AND NOT is_memcpy GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3"
BUS = "SELECT collective, in_nelems, effective_bus_gb_s FROM collectives WHERE collective = 'allreduce' ORDER BY in_nelems DESC"
LONGEST = "SELECT name, sum(kernel_us_sum) / 1e3 AS ms FROM ops GROUP BY name ORDER BY ms DESC LIMIT 3"
LLAMA = {"model": "llama3-8b", "cluster": "dgx-h100", "global_batch": 8}
QUESTIONS = (
    Question("Which recordings are there, and which belong together?", (("files", {}),), lists_the_recordings),
    Question("How long is a step?", (("files", {}), ("report", MOE)), says_how_long_a_step_is),
    Question("How busy is the GPU, and why is it not more?", (("report", MOE),), says_how_busy_the_gpu_is),
    Question("What should I change first?", (("findings", MOE),), says_what_to_change_first),
    Question("Which ops take most time?", (("query", {**MOE, "statement": LONGEST}),), says_what_takes_most_time),
    Question("How fast is the matrix product, and how do you know?",
             (("explain", {**MOE, "op": "aten::mm"}),), says_how_fast_a_gemm_is),
    Question("What would GEMMs twice as fast bring?", (("whatif", {**MOE, "scale": "GEMM=0.5"}),),
             says_what_faster_gemms_bring),
    Question("What changed since before?", (("compare", {"a": MOE["trace"], "b": "after.json.gz"}),), says_what_changed),
    Question("Which rank is late?", (("collectives", {"trace": "gloo_ranks2"}),), says_who_is_late),
    Question("Which bandwidth do the all-reduces reach?", (("query", {**MOE, "statement": BUS}),),
             says_what_collectives_reach),
    Question("Which kernels are launched most often?", (("query", {**MOE, "statement": TOP}),), counts_kernels),
    Question("Can I trust it: what was recorded?", (("check", MOE),), says_what_is_recorded),
    Question("How did the runs go?", (("lake", {"trace": "lake"}),), says_how_runs_went),
    Question("How long does a product of 4096 take on an H100?",
             (("estimate", {"what": "gemm", "m": 4096, "n": 4096, "k": 4096, "device": "h100"}),),
             says_how_long_a_gemm_takes),
    Question("How does Llama 3 8B serve four requests a second on one H100?",
             (("serve", {"model": "llama3-8b", "device": "h100", "rate": 4}),), says_how_a_server_behaves),
    Question("How do I split Llama 3 8B over eight GPUs?",
             (("search", {**LLAMA, "gpus": "8", "top": 1}),
              ("project", {**LLAMA, "gpus": 8, "tp": 1, "zero": 3, "framework": "pooled"})), says_how_to_split),
)  # fmt: skip


@contextmanager
def served(root: Path) -> Iterator[Ask]:
    """A call of the official client, of a server of ``root``."""
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    command = ["-m", "tracelens", "mcp", "--root", str(root)]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(server))) as session,
    ):

        def call(name: str, arguments: dict[str, Any]) -> str:
            result = portal.call(session.call_tool, name, arguments)
            (content,) = result.content
            assert not result.is_error, content.text
            return str(content.text)

        yield call


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Of the example traces, a changed copy of one, and a lake."""
    root = tmp_path_factory.mktemp("asked")
    for folder in ("moe_ep8", "gloo_ranks2"):
        # The README's first command leaves a report beside a trace
        written = shutil.ignore_patterns("*.report")
        shutil.copytree(REPOSITORY / "example_traces" / folder, root / folder, ignore=written)
    shutil.copy(REPOSITORY / "example_traces" / "transformer_step_cpu.json.gz", root)
    runs = tmp_path_factory.mktemp("runs")
    (runs / "moe_ep8").mkdir()
    for rank in (0, 1):
        shutil.copy(EXAMPLE / f"rank{rank}.json.gz", runs / "moe_ep8")
    assert main(["ingest", str(runs), "--to", str(root / "lake"), "--executor", "serial"]) == 0
    document = json.loads(gzip.decompress(RANK0.read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel" and FASTER in event["name"]:
            event["dur"] /= 2
    (root / "after.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    with served(root) as call:
        yield call


@pytest.fixture(scope="module")
def ask_of_real() -> Iterator[Ask]:
    if not TRACES.is_dir():
        pytest.skip("the real traces of ../shared are not there")
    with served(TRACES) as call:
        yield call


def test_there_are_fifteen_questions_of_one_call_or_two() -> None:
    assert len(QUESTIONS) >= 15
    assert {len(each.calls) for each in QUESTIONS} == {1, 2}


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, id=verb, marks=pytest.mark.sweep if verb == "project" else ())  # it searches all splits
        for each in QUESTIONS
        if (verb := each.calls[-1][0])
    ],
)
def test_a_question_is_answered_in_few_tokens_and_right(ask: Ask, question: Question) -> None:
    answers = [ask(name, arguments) for name, arguments in question.calls]
    assert sum(map(len, answers)) / CHARACTERS_PER_TOKEN < MOST_TOKENS
    question.check(unescaped("\n".join(answers)))


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize(
    "trace",
    part(
        [
            "h100/gaunernst_bert-small-uncased__1016001.json.gz",
            "mi300/Falconsai_nsfw_image_detection__1016002.json.gz",
            "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        ],
        3,
    ),
)
def test_of_real_recordings_it_says_how_busy_the_gpu_is_and_which_kernel_is_longest(
    ask_of_real: Ask, trace: str
) -> None:
    """Their host runs the one step from its first event to its last, beside which the GPU's work is added up."""
    every = [each for each in events(TRACES / trace) if each.get("ph") == "X"]
    (step,) = [each for each in every if each.get("cat") == "user_annotation" and "ProfilerStep" in each["name"]]
    start, end = step["ts"], step["ts"] + step["dur"]
    ran = [
        {"name": each["name"], "ts": max(each["ts"], start), "dur": min(each["ts"] + each["dur"], end) - each["ts"]}
        for each in every
        if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and start <= each["ts"] < end
    ]
    report = unescaped(ask_of_real("report", {"trace": trace}))
    assert number(r"GPU is busy ([\d.]+) %", report) == pytest.approx(100 * union_us(ran) / (end - start), abs=0.1)
    of_kernels: Counter[str] = Counter()
    for each in ran:
        of_kernels[each["name"]] += each["dur"]
    longest = "SELECT sum(duration_us) AS us FROM kernels GROUP BY kernel_name ORDER BY 1 DESC LIMIT 1"
    asked = ask_of_real("query", {"trace": trace, "statement": longest})
    assert number(r'"us":([\d.]+)', asked) == pytest.approx(of_kernels.most_common(1)[0][1], rel=1e-3)
    assert len(report + asked) / CHARACTERS_PER_TOKEN < MOST_TOKENS


@pytest.mark.sweep
@pytest.mark.shared
def test_a_change_that_leaves_the_step_says_what_it_is_made_of(ask_of_real: Ask) -> None:
    """Two ranks that wait for each other for most of the step: half the time of GEMMs changes nothing."""
    trace = {"trace": "more/megatron_pr1316_tp2/rank0.pt.trace.json.gz"}
    nothing = unescaped(ask_of_real("whatif", {**trace, "scale": "GEMM=0.5"}))
    assert "step 62.6 -> 62.6 ms (0.0 %)" in nothing
    assert (
        "kernels take 0.216 ms less, which leaves the critical path as long as it was; its largest part is" in nothing
    )
    assert "leaves the critical path" not in ask_of_real("whatif", {**trace, "scale": "GEMM=100"})
    assert "leaves the critical path" not in ask_of_real("whatif", trace)
