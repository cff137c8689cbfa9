"""What can be set instead of derived: hidden shares of FSDP's transfers, a slow device; and what overlaps by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tracelens.backends.base import System
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.predict.projection.overheads import Hidden, ProjectionOptions, Straggler
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

FSDP = ParallelConfig(dp=64, zero=3, micro_batch=2)
MOE = ParallelConfig(dp=8, pp=2, ep=8, micro_batches=8)


def step(p: ParallelConfig, model: str = "llama3.1-70b", **options: object) -> Projection:
    return project(ModelConfig.load(model), p, System.load("dgx-h100"), sequence=4096, **options)  # type: ignore[arg-type]


def with_hidden(*shares: float) -> Projection:
    forward, backward, scatter = shares
    hidden = Hidden(forward_gather=forward, backward_gather=backward, scatter=scatter)
    return step(FSDP, options=ProjectionOptions(fsdp_hidden=hidden))


def test_fixed_hidden_shares_cost_what_they_leave() -> None:
    """Nothing hidden costs the transfers in full, everything hidden nothing; in between it is linear."""
    none, half, all_of_it = (with_hidden(*[share] * 3) for share in (0, 0.5, 1))
    assert "fsdp" not in all_of_it.breakdown_us
    assert half.breakdown_us["fsdp"] == pytest.approx(none.breakdown_us["fsdp"] / 2)
    gathers = with_hidden(0, 0, 1).breakdown_us["fsdp"]
    assert with_hidden(0, 1, 1).breakdown_us["fsdp"] == pytest.approx(gathers / 2)


def test_the_timeline_hides_more_of_fsdp_the_more_there_is_to_compute() -> None:
    """A gather per micro-batch takes as long with four times the tokens; what is exposed of it does not."""
    small, large = (step(replace(FSDP, micro_batch=b)) for b in (1, 4))
    assert large.breakdown_us["fsdp"] < small.breakdown_us["fsdp"]
    assert step(FSDP).breakdown_us["fsdp"] < with_hidden(0, 0, 0).breakdown_us["fsdp"]


@pytest.mark.parametrize(
    ("text", "shares"), [("0.93", (0.93, 0.93, 0.93)), ("90,24,34", (0.9, 0.24, 0.34)), ("1,0.5,0", (1, 0.5, 0))]
)
def test_hidden_shares_are_read_as_shares_or_percent(text: str, shares: tuple[float, float, float]) -> None:
    found = Hidden.parse(text)
    assert (found.forward_gather, found.backward_gather, found.scatter) == pytest.approx(shares)


@pytest.mark.parametrize("text", ["", "a", "1,2", "0.5,0.5,0.5,0.5"])
def test_other_hidden_shares_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="--fsdp-overlap takes one share or three"):
        Hidden.parse(text)
    with pytest.raises(UsageError, match="from 0 to 1"):
        Hidden(forward_gather=1.5, backward_gather=0, scatter=0)


def test_everybody_waits_for_a_straggler() -> None:
    """Without a pipeline the whole step is 1.2 times as long; in one, the more the slower its stage was already: the
    last one has the head.
    """
    alone = ParallelConfig(micro_batches=4)
    plain, slow = (
        step(alone, "llama3.1-8b", options=ProjectionOptions(straggler=s)) for s in (None, Straggler(factor=1.2))
    )
    assert slow.step_us == pytest.approx(1.2 * plain.step_us, rel=1e-3)
    piped = replace(alone, pp=4, micro_batches=16)
    plain, slow = (
        step(piped, "llama3.1-8b", options=ProjectionOptions(straggler=s))
        for s in (None, Straggler(factor=1.2, stage=3))
    )
    assert 1.1 * plain.step_us < slow.step_us < 1.2 * plain.step_us
    assert Straggler.parse("2:1.2") == Straggler(factor=1.2, stage=2)
    assert Straggler.parse("1.2") == Straggler(factor=1.2)
    with pytest.raises(UsageError, match="--straggler takes a factor"):
        Straggler.parse("x")
    with pytest.raises(UsageError, match="must be >= 1"):
        Straggler(factor=0.9)


def test_exchanges_of_experts_hide_behind_another_micro_batch() -> None:
    """Interleaved, so that even the last rank has a forward of another micro-batch beside each backward."""
    p = replace(MOE, vpp=2)
    plain, beside = (step(replace(p, ep_overlap=o), "qwen3-30b-a3b") for o in (False, True))
    assert beside.breakdown_us["ep"] < plain.breakdown_us["ep"]
    assert beside.step_us < plain.step_us
    assert sum(beside.breakdown_us.values()) == pytest.approx(beside.step_us)


def test_the_command_writes_traces_and_takes_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["project", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--nodes", "2", "--tp", "2", "--pp", "2"]
    assert main([*arguments, "--trace", str(tmp_path), "--straggler", "1:1.1", "--ep-overlap"]) == 0
    assert f"wrote 2 traces to {tmp_path}" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json.gz", "rank8.json.gz"]
    assert main([*arguments, "--trace", str(tmp_path), "--trace-ranks", "0,x"]) == 2
    assert "--trace-ranks takes all, or rank numbers like 0,8; got '0,x'" in capsys.readouterr().err
