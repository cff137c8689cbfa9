"""``tracelens devices list|show|check``."""

from __future__ import annotations

import argparse

import pytest

from tracelens.cli import main, models_and_devices
from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec


def run(*words):
    parser = argparse.ArgumentParser()
    models_and_devices.configure_devices(parser)
    return models_and_devices.run_devices(parser.parse_args(words))


def test_list_prints_one_aligned_line_per_device(capsys):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[: lines.index("")]
    assert len(table) == 1 + len(HardwareSpec.names())
    assert table[0].split("  ")[0] == "name"
    end = table[0].index("bf16 TFLOPS") + len("bf16 TFLOPS")
    assert all(line[end - 1] in "-0123456789S" for line in table)
    (mi300x,) = [line for line in table if line.startswith("mi300x ")]
    assert mi300x.split() == ["mi300x", "amd", "1307.4", "708", "5.3", "192", "448"]
    (b300,) = [line for line in table if line.startswith("b300 ")]
    assert b300.endswith("matrix.fp4")
    assert any("for --cluster: dgx-a100, " in line for line in lines)


def test_show_prints_every_figure_with_its_source_and_marks_doubt(capsys):
    assert run("show", "H800") == 0
    out = capsys.readouterr().out
    for figure in HardwareSpec.load("h800-sxm").figures():
        assert figure.key in out
        assert figure.source in out
    assert "? matrix.fp64.peak_tflops_s" in out


def test_check_of_the_package_finds_nothing_wrong(capsys):
    assert run("check") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(HardwareSpec.names())
    assert all(": ok; " in line for line in lines)


def test_check_of_a_file_says_what_is_wrong(tmp_path):
    path = tmp_path / "my_chip.toml"
    path.write_text('vendor = "acme"\n[hbm]\npeak_tb_s = "8,0"\nsource = "x"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r'my_chip\.toml: hbm\.peak_tb_s must be a number above 0, got "8,0"'):
        run("check", str(path))


def test_check_of_a_file_that_is_right(tmp_path, capsys):
    path = tmp_path / "my_chip.toml"
    path.write_text('vendor = "acme"\n[hbm]\npeak_tb_s = 8.0\nsource = "x"\n', encoding="utf-8")
    assert run("check", str(path)) == 0
    assert capsys.readouterr().out.startswith("my_chip.toml: ok; 1 figures, each with a source")


@pytest.mark.parametrize("verb", ["devices", "extensions", "models"])
def test_a_verb_on_its_own_lists(verb, capsys):
    shown = [(main(words), capsys.readouterr().out) for words in ([verb], [verb, "list"])]
    assert shown[0] == shown[1]
    assert shown[0][0] == 0
    assert shown[0][1]
