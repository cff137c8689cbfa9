"""A file that somebody sends decides nothing outside its subject: it names no output, and inputs beside it alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import part
from tracelens.cli import main, project, serve
from tracelens.errors import InputError
from tracelens.files.documents import beside, told
from tracelens.hardware import HardwareSpec
from tracelens.predict.network.cluster import Cluster
from tracelens.predict.workload.launch_files import read_launch
from tracelens.predict.workload.model_config import ModelConfig

BASE = {"model": "llama3-8b", "cluster": "h100-sxm", "rate": 1, "requests": 2, "input_tokens": 64, "output_tokens": 8}
_opened: list[str] = []
_watched: list[Path] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _watched and isinstance(arguments[0], str | bytes):
        path = Path(arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]).absolute().resolve()
        if path.is_relative_to(_watched[0]):
            _opened.append(str(path))


sys.addaudithook(_audit)


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's whose files nobody may open; commands run in another."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    folder = tmp_path / "vict"
    folder.mkdir()
    (folder / "precious.json").write_text('{"mine": 1}')
    (folder / "config.json").write_text('{"mine": 1}')
    (folder / "precious.toml").write_text("mine = 1\n")
    (folder / "base.yaml").write_text("seq_length: 1234\n")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "link.json").symlink_to(folder / "precious.json")
    (tmp_path / "exp" / "link").symlink_to(folder)
    _opened.clear()
    _watched[:] = [folder.resolve()]
    yield folder
    _watched.clear()


def options_of(command: object) -> list[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    command.configure(parser)  # type: ignore[attr-defined]
    return [each for each in parser._actions if each.option_strings and each.help != argparse.SUPPRESS]


def setting(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)[2:].replace("-", "_")


@pytest.mark.parametrize("command", [serve, project])
def test_every_option_that_may_be_a_file_says_what_a_file_of_settings_may_name_by_it(command) -> None:
    """By kind: a path, or words of ``--help`` that show a file's name, a folder, or a model or device by file."""
    shows = ("FILE", "PATH", "FOLDER", ".json", ".toml", ".csv", "NAME|")
    families = {"backend"}  # names of cost models, by family of ops
    for action in options_of(command):
        may_be = action.type is Path or any(word in str(action.metavar) for word in shows)
        if may_be and command is serve and action.dest not in families:
            assert action.names, action.dest  # type: ignore[attr-defined]
    writes = {each.dest for each in options_of(serve) if each.names == "nothing"}  # type: ignore[attr-defined]
    assert writes == {"config", "output", "trace", "export_profile", "calibrate"}


@pytest.mark.parametrize("kind", part(["above", "absolute", "link", "folder"], 4))
def test_no_setting_of_an_experiment_file_opens_or_makes_a_file_elsewhere(victim, kind, capsys) -> None:
    experiment = victim.parent / "exp" / "e.json"
    for action in options_of(serve):
        if action.nargs == 0 or action.choices or action.type not in (None, Path):
            continue
        said = {
            "above": "../vict/precious.json", "absolute": str(victim / "precious.json"), "link": "link.json",
            "folder": "../vict" if "cluster" not in action.dest else "../vict/precious.toml",
        }[kind]  # fmt: skip
        experiment.write_text(json.dumps({**BASE, setting(action): said}))
        code = main(["serve", "--config", str(experiment)])
        said_of = f"{setting(action)}: {capsys.readouterr().err}"
        assert not _opened, said_of
        assert code in (0, 1, 2), said_of
        if action.names:  # type: ignore[attr-defined]
            assert code, said_of
    assert (victim / "precious.json").read_text() == '{"mine": 1}'
    assert {each.name for each in victim.iterdir()} == {"precious.json", "config.json", "precious.toml", "base.yaml"}
    assert not list(Path().iterdir())
    assert {each.name for each in experiment.parent.iterdir()} == {"e.json", "link.json", "link"}


@pytest.mark.parametrize("name", ["output", "out", "trace", "export_profile", "export-profile", "calibrate"])
def test_only_the_command_line_says_where_to_write(victim, name, capsys) -> None:
    experiment = victim.parent / "exp" / "e.json"
    experiment.write_text(json.dumps({**BASE, name: "new.json"}))
    assert main(["serve", "--config", str(experiment)]) == 2
    assert "e.json: only the command line says where to write" in capsys.readouterr().err
    assert not (experiment.parent / "new.json").exists()


def test_files_beside_an_experiment_are_read_wherever_the_command_runs(victim, capsys) -> None:
    folder = victim.parent / "exp"
    (folder / "mine.toml").write_text(HardwareSpec.file_text("h100-sxm"))
    (folder / "llm").mkdir()
    shape = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "torch_dtype": "bfloat16"}
    (folder / "llm" / "config.json").write_text(json.dumps(shape | heads))
    (folder / "r.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,64,8\n")
    (folder / "e.json").write_text(
        json.dumps({"model": "llm", "cluster": "mine.toml", "replay": "r.csv", "engine": "vllm"})
    )
    assert main(["serve", "--config", str(folder / "e.json")]) == 0
    assert "1 request" in capsys.readouterr().out
    (Path() / "llama3-8b").mkdir()
    (Path() / "llama3-8b" / "config.json").write_text(json.dumps(shape | heads))
    (folder / "e.json").write_text(json.dumps(BASE))
    assert main(["serve", "--config", str(folder / "e.json")]) == 1
    assert "does not lie beside the file that names it" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["extends", "includes", "model"])
@pytest.mark.parametrize("name", ["../vict/base.yaml", "ABSOLUTE", "out.yaml", "../vict"])
def test_launch_files_name_nothing_elsewhere(victim, key, name) -> None:
    (victim.parent / "exp" / "out.yaml").symlink_to(victim / "base.yaml")
    launch = victim.parent / "exp" / "launch.yaml"
    launch.write_text(f"{key}: {name.replace('ABSOLUTE', str(victim / 'base.yaml'))}\nmicro_batch_size: 2\n")
    with pytest.raises(InputError):
        read_launch(launch)
    assert not _opened


def test_files_of_primus_name_each_other_in_its_own_folders_alone(victim) -> None:
    """As trainer_base.yaml of AMD-AGI/Primus extends ../module_base.yaml."""
    modules = victim.parent / "primus" / "configs" / "modules"
    (modules / "megatron").mkdir(parents=True)
    (modules / "megatron" / "trainer.yaml").write_text("extends:\n  - ../base.yaml\nmicro_batch_size: 4\n")
    (modules / "base.yaml").write_text("seq_length: 512\n")
    launch = victim.parent / "exp" / "launch.yaml"
    launch.write_text("config: trainer.yaml\nmodel: llama3.1-8b\n")
    assert read_launch(launch).options["sequence"] == 512
    (modules / "base.yaml").write_text("extends: ../../../vict/precious.json\n")
    with pytest.raises(InputError, match="does not lie beside"):
        read_launch(launch)
    assert not _opened


@pytest.mark.parametrize("key", ["device", "library", "ep_library"])
@pytest.mark.parametrize("name", ["../vict/precious.toml", "ABSOLUTE", "../vict/precious"])
def test_a_cluster_file_names_nothing_elsewhere(victim, key, name, capsys) -> None:
    text = Cluster.file_text("dgx-h100").splitlines()
    said = name.replace("ABSOLUTE", str(victim / "precious.toml"))
    lines = [f'{key} = "{said}"', *(line for line in text if not line.startswith(f"{key} ="))]
    path = victim.parent / "exp" / "c.toml"
    path.write_text("\n".join(lines) + "\n")
    main(["project", "--model", "mixtral-8x7b", "--cluster", str(path), "--ep", "8", "--dispatcher", "deepep"])
    assert not _opened
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../vict/config.json", "../vict", "ABSOLUTE"])
def test_rows_of_a_table_name_models_and_devices_never_files(victim, name, tmp_path, capsys) -> None:
    said = name.replace("ABSOLUTE", str(victim))
    table, out = tmp_path / "exp" / "points.csv", tmp_path / "out.csv"
    table.write_text(f"model_path,system,isl,osl,concurrency,tp\n{said},h100-sxm,64,8,1,1\nllama3-8b,{said},64,8,1,1\n")
    assert main(["serve", "--batch", str(table), "-o", str(out)]) in (0, 2, 3)
    table.write_text(f"model,gpu,n_gpus,gbs,tp,pp\n{said},h100-sxm,8,8,1,1\nllama3-8b,{said},8,8,1,1\n")
    assert main(["project", "--batch", str(table), "-o", str(out)]) in (0, 2, 3)
    assert not _opened


def test_one_rule_for_names_in_files(victim) -> None:
    source = victim.parent / "exp" / "any.toml"
    for name in ("../vict/precious.toml", str(victim / "precious.toml"), "link/precious.toml", "link", "a/../../vict"):
        with pytest.raises(InputError, match="does not lie beside the file that names it"):
            told(source, name)
        with pytest.raises(InputError, match="does not lie beside the file that names it"):
            beside(source, name)
    assert told(source, "own/mine.toml") == source.parent / "own" / "mine.toml"
    assert told(source, "meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    assert told(source, "n" * 5000) == "n" * 5000
    with pytest.raises(InputError):
        beside(source, "zero\0byte")
    with pytest.raises(Exception, match="no model named"):
        ModelConfig.named(str(victim))
