"""An option is declared in one place: a field with its meaning is a keyword, a flag, a setting and a line of help."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.errors import UsageError
from tracelens.files.option_fields import (
    add_options,
    build_options,
    comma_list,
    filled_in,
    option,
    options_of,
    positive,
    takes,
)
from tracelens.predict.projection.projection_options import ProjectOptions, SearchOptions
from tracelens.predict.workload.parallel_config import ParallelConfig


@dataclass(frozen=True, kw_only=True)
class Load:
    rate: float | None = option("arrivals per second", kind=float, metavar="N")
    closed: bool = option("wait for each answer", False)
    warm: bool = option("begin cold", True)
    names: tuple[str, ...] = option("kinds of requests", ("chat",), read=comma_list)
    tags: tuple[str, ...] = option("repeatable", (), repeat=True)
    count: int = option("how many", 10, kind=positive, old_flags=("--number",), also=("number",))


def parsed(*words: str, options: type = Load) -> Any:
    parser = argparse.ArgumentParser()
    add_options(parser, options)
    return options_of(options, parser.parse_args(words))


def test_a_new_field_is_a_flag_a_keyword_a_setting_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Longer(ProjectOptions):
        dropout: float = option("share of activations dropped", 0.1, kind=float)

    def configure(parser: argparse.ArgumentParser) -> None:
        add_options(parser, Longer)

    @takes(Longer)
    def front_door(**given: Any) -> Longer:
        return build_options(Longer, given)

    assert parsed("--dropout", "0.5", "--tp", "2", options=Longer) == front_door(dropout=0.5, tp=2)
    assert inspect.signature(front_door).parameters["dropout"].default == 0.1
    assert "dropout: share of activations dropped" in (front_door.__doc__ or "")
    parser = argparse.ArgumentParser()
    configure(parser)
    assert "share of activations dropped; default: 0.1" in parser.format_help()
    args = parser.parse_args(["--tp", "2"])
    args.command_line = ["--tp", "2"]
    assert filled_in(args, configure, {"dropout": 0.25, "tp": 8}, Path("a.toml")).dropout == 0.25
    assert filled_in(args, configure, {"dropout": 0.25, "tp": 8}, Path("a.toml")).tp == 2


def test_what_the_command_line_leaves_out_is_the_default_of_the_python_function() -> None:
    assert parsed() == Load()
    assert parsed(options=ProjectOptions) == ProjectOptions()


def test_switches_lists_and_texts_are_read() -> None:
    given = parsed("--closed", "--no-warm", "--names", "a,b", "--tags", "x", "--tags", "y")
    assert (given.closed, given.warm, given.names, given.tags) == (True, False, ("a", "b"), ("x", "y"))
    assert build_options(Load, {"names": "a,b"}).names == ("a", "b")


def test_an_old_spelling_does_the_same_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed("--number", "3").count == 3
    assert capsys.readouterr().err == "hint: --number is called --count now\n"
    assert build_options(Load, {"number": 3}).count == 3


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no option named 'globl_batch'; did you mean global_batch"):
        tracelens.project("llama3.1-8b", "dgx-h100", globl_batch=16)
    with pytest.raises(UsageError, match="did you mean micro_batch"):
        ParallelConfig.of(ranks=8, global_batch=8, micro_bach=1)


def test_an_object_may_stand_for_keywords_and_keywords_change_it() -> None:
    options = ProjectOptions(gpus=8, global_batch=16, tp=8)
    step_us = tracelens.project("llama3.1-8b", "dgx-h100", options).projection.step_us
    assert step_us == tracelens.project("llama3.1-8b", "dgx-h100", gpus=8, global_batch=16, tp=8).projection.step_us
    assert tracelens.project("llama3.1-8b", "dgx-h100", options, tp=4).projection.parallel.tp == 4


def test_a_required_option_is_asked_for() -> None:
    assert SearchOptions.__dataclass_fields__["global_batch"].default is MISSING
    with pytest.raises(UsageError, match="give global_batch too"):
        build_options(SearchOptions, {"gpus": 8})
