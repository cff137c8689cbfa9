"""Skill files: the format that agents read, commands that run, names that exist, and causes that their steps find."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks import skill as evaluation
from tests.analysis.findings.labelled.program import Program
from tests.conftest import REPOSITORY, TRACES, part
from tracelens.cli import main
from tracelens.cli.agents.tools import TOOLS, Roots, answered
from tracelens.cli.parsing import parser_of

FOLDER = REPOSITORY / "tracelens" / "cli" / "agents" / "skills"
SKILLS = sorted(path.stem for path in FOLDER.glob("*.md"))
EXAMPLE = REPOSITORY / "example_traces" / "moe_ep8"


def text_of(skill: str) -> str:
    return (FOLDER / f"{skill}.md").read_text(encoding="utf-8")


def commands_of(skill: str) -> list[str]:
    """Fenced ones, and those in a line of text."""
    text = text_of(skill)
    fenced = re.findall(r"^ +(?:1\. ```\n +)?(tracelens .+)$", text, re.MULTILINE)
    return [*fenced, *re.findall(r"`(tracelens [a-z]+ -[^`]+)`", text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the skills speak of."""
    made = tmp_path_factory.mktemp("skills")
    (made / "traces").mkdir()
    for rank in (0, 1):
        shutil.copy(EXAMPLE / f"rank{rank}.json.gz", made / "traces")
    for name in ("trace", "before", "after"):
        shutil.copy(EXAMPLE / "rank0.json.gz", made / f"{name}.json.gz")
    assert main(["ingest", str(made / "traces"), "--to", str(made / "lake"), "--executor", "serial"]) == 0
    return made


@pytest.fixture(scope="module")
def planted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def planted(planted_folder: Path) -> dict[str, evaluation.Planted]:
    return {each.name: each for each in evaluation.every(planted_folder)}


def test_the_verb_writes_every_skill_where_an_agent_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["skill"]) == 0
    written = sorted(tmp_path.glob(".claude/skills/*/SKILL.md"))
    assert [path.parent.name for path in written] == SKILLS
    assert capsys.readouterr().out.splitlines() == [f"wrote {path.relative_to(tmp_path)}" for path in written]
    for path in written:
        assert path.read_text(encoding="utf-8") == text_of(path.parent.name)
    (tmp_path / "file").touch()
    assert main(["skill", "-o", "file"]) == 1
    assert "cannot make the folder file/tracelens-compare: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("skill", SKILLS)
def test_a_skill_is_as_agents_read_it(skill: str) -> None:
    """The format of Agent Skills: a name like the folder, a description of at most 1,024 characters, a short body."""
    found = re.fullmatch(
        r"---\nname: ([a-z0-9-]{1,64})\ndescription: (.+)\n---\n\n# .+\n\n.*", text_of(skill), re.DOTALL
    )
    assert found is not None
    assert found[1] == skill
    description = found[2]
    assert "\n" not in description
    assert len(description) <= 1024
    assert ": " not in description  # it would be a mapping in YAML
    assert "Use " in description
    assert len(text_of(skill)) / 2 < 2500  # tokens, at two characters each


@pytest.mark.parametrize("command", part(sorted({command for skill in SKILLS for command in commands_of(skill)}), 12))
def test_every_command_of_a_skill_runs(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(command)[1:]
    parser_of(words).parse_args(words)
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_every_skill_has_commands() -> None:
    assert all(commands_of(skill) for skill in SKILLS)
    assert len({command for skill in SKILLS for command in commands_of(skill)}) > 12


def test_the_skills_name_tools_skills_and_findings_that_are_there() -> None:
    import tomllib

    advice = tomllib.loads((REPOSITORY / "tracelens/analysis/findings/advice.toml").read_text(encoding="utf-8"))
    table = text_of("tracelens-lines").partition("## Known fusions")[2]
    named = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert len(named) >= 10
    assert set(named) <= set(advice)
    for skill in SKILLS:
        assert set(re.findall(r"`(tracelens-\w+)`", text_of(skill))) <= set(SKILLS)
        for command in commands_of(skill):
            assert command.split()[1] in {*TOOLS, "record", "ingest"}
    assert "the MCP tool `findings`" in table


def test_thirty_are_planted(planted: dict[str, evaluation.Planted]) -> None:
    assert len(planted) == 30
    assert {each.skill for each in planted.values()} == {"tracelens-read", "tracelens-compare"}


@pytest.mark.parametrize("number", part(range(30), 15))
def test_the_first_answer_names_what_was_planted(
    planted: dict[str, evaluation.Planted], planted_folder: Path, number: int
) -> None:
    """All thirty, by the command and by the tool, each in fewer than 2,000 tokens."""
    one = list(planted.values())[number]
    for found in (evaluation.by_command(one, planted_folder), evaluation.by_tool(one, planted_folder)):
        assert found.where, one.name
        assert found.tokens < 2000


def test_what_was_not_planted_is_not_named(tmp_path: Path) -> None:
    """A healthy program: none of the planted causes is in the first sentence of the tool."""
    program = Program("h100-sxm")
    program.healthy(200)
    program.wait()
    evaluation.write(program, tmp_path / "healthy.json")
    text, failed = answered("report", {"trace": "healthy.json"}, Roots.of([tmp_path]))
    assert not failed
    (says,) = [line for line in text.splitlines() if line.startswith("| says")]
    assert "The GPU bounds" in says
    saved = re.search(r"save (?:up to )?[\d.]+ ms \(([\d.]+) %", says)
    assert saved is None or float(saved[1]) < 3


@pytest.mark.shared
def test_a_kernel_leads_to_its_line_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen's RMSNorm is line 218 of its module; the same file without stacks says none."""
    trace = TRACES / "mi300" / "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    if not trace.is_file():
        pytest.skip("the real traces of ../shared are not there")
    text, failed = answered("query", {"trace": trace.name, "ready": "lines_of_kernels"}, Roots.of([trace.parent]))
    assert not failed
    assert len(text) / 2 < 2000
    row = '"aten::mul","Qwen2Model/Qwen2DecoderLayer/Qwen2RMSNorm","transformers/models/qwen2/modeling_qwen2.py(218): forward"'
    assert row in text
    assert main(["query", str(EXAMPLE / "rank0.json.gz"), "--ready", "lines_of_kernels", "--format", "csv"]) == 0
    assert "aten::mm,,," in capsys.readouterr().out
