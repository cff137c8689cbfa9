"""What ``--extension`` and ``extensions=[...]`` accept, and what they answer when it does not load."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from tracelens.errors import UsageError
from tracelens.extensions import (
    Extension,
    bundled_extensions,
    bundled_names,
    detect_bundled,
    installed_extensions,
    load_extension,
    overlay,
)
from tracelens.perf_models.base import CategoryOf, PerfModel, traced_as
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

GOOD = """
from __future__ import annotations
from dataclasses import dataclass
from tracelens import CategoryOf, OpSignature, PerfModel, traced_as

@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(PerfModel):
    n: int

@traced_as("my_lib::op")
def _op(op: OpSignature) -> Mine:
    return Mine(n=op.shape(0)[0])

OTHERS = CategoryOf(category="mine", names=("my_lib::other",))
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(spec: object) -> str:
    with pytest.raises(UsageError) as caught:
        load_extension(spec)
    assert caught.value.exit_code == 2
    return str(caught.value)


@traced_as("my_lib::in_a_cell")
def _in_a_cell(op: OpSignature) -> PerfModel | None:
    return None


def test_a_path_is_loaded_with_its_names_and_without_its_folder(tmp_path: Path):
    extension = load_extension(written(tmp_path, "my_ops.py", GOOD))
    assert extension.name == "my_ops"
    assert extension.origin == "file my_ops.py"
    assert extension.traced_names == ("my_lib::op", "my_lib::other")
    assert load_extension(str(tmp_path / "my_ops.py")).traced_names == extension.traced_names


def test_a_file_named_like_a_standard_module_does_not_replace_it(tmp_path: Path):
    import json

    load_extension(written(tmp_path, "json.py", GOOD))
    assert sys.modules["json"] is json
    assert "my_ops" not in sys.modules


def test_an_edited_file_counts_in_the_next_load(tmp_path: Path):
    path = written(tmp_path, "my_ops.py", GOOD)
    load_extension(path)
    edited = GOOD.replace("my_lib::op", "my_lib::up")  # same length and, usually, same second
    path.write_text(edited, encoding="utf-8")
    assert load_extension(path).traced_names == ("my_lib::other", "my_lib::up")
    assert [p.name for p in tmp_path.iterdir()] == ["my_ops.py"]


def test_a_module_and_marked_objects_are_taken_as_they_are():
    module = types.ModuleType("pkg.cell")
    module.binding = _in_a_cell  # type: ignore[attr-defined]
    assert load_extension(module) == Extension(
        name="cell", sources=(module,), origin="module", traced_names=("my_lib::in_a_cell",)
    )
    assert load_extension(_in_a_cell).name == "_in_a_cell"
    assert load_extension(_in_a_cell).sources == (_in_a_cell,)
    constant = CategoryOf(category="mine", names=("my_lib::b", "my_lib::a"))
    assert load_extension(constant).traced_names == ("my_lib::a", "my_lib::b")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two entry points, as pip would leave it on ``sys.path``."""
    info = tmp_path / "demo_ops-1.0.dist-info"
    info.mkdir()
    written(info, "METADATA", "Metadata-Version: 2.1\nName: demo-ops\nVersion: 1.0\n")
    written(
        info, "entry_points.txt", "[tracelens.extensions]\ndemo = demo_ops_\none = demo_ops_:_op\nno = demo_ops_:x\n"
    )
    written(tmp_path, "demo_ops_.py", GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("demo_ops_", None)


def test_an_installed_entry_point_is_found_by_its_name(installed: Path):
    assert ("demo", "demo-ops") in installed_extensions()
    assert load_extension("demo").origin == "installed by demo-ops"
    assert load_extension("demo").traced_names == ("my_lib::op", "my_lib::other")
    assert load_extension("one").traced_names == ("my_lib::op",)
    assert "extension no (demo_ops_:x) does not load: " in refusal("no")


def test_an_importable_module_may_be_named(installed: Path):
    assert load_extension("demo_ops_").origin == "module"


def test_an_installed_package_that_breaks_is_named_with_its_file_and_line(installed: Path):
    path = written(installed, "demo_ops_.py", "\n\nimport no_such_package\n")
    assert refusal("demo") == (
        f"extension demo: {path}:3 does not load: ModuleNotFoundError: No module named 'no_such_package'"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("x = 1\ndef f(:\n", ":2 does not load: SyntaxError: invalid syntax"),
        ("\nimport no_such_package\n", ":2 does not load: ModuleNotFoundError: No module named 'no_such_package'"),
        ("from tracelens import GEMN\n", ":1 does not load: ImportError: cannot import name 'GEMN' from 'tracelens'"),
        ("import json\n\njson.loads('{')\n", ":3 does not load: json.decoder.JSONDecodeError: "),
        ("a = 0\n1 / a\n", ":2 does not load: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", ":1 does not load: SystemExit: 3"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str, answer: str):
    path = written(tmp_path, "broken.py", text)
    before = set(sys.modules)
    assert refusal(path).startswith(f"extension {path}{answer}")
    assert not any("broken" in name for name in set(sys.modules) - before)


def test_a_file_that_marks_nothing_is_told_what_to_write(tmp_path: Path):
    answer = refusal(written(tmp_path, "empty.py", "x = 1\n"))
    assert "has no function marked" in answer
    assert '@traced_as("my_lib::gemm")' in answer


def test_what_is_no_extension_at_all_is_refused():
    assert "int has no function marked" in refusal(3)
    assert refusal("no_such.py") == "there is no extension file no_such.py"
    assert refusal("megatrom") == (
        "no extension named 'megatrom'; did you mean megatron? (or give the path of a .py file)"
    )


def test_a_file_may_serve_both_hooks(tmp_path: Path):
    path = written(tmp_path, "both.py", GOOD + "\nperf_model_extension = {}\n")
    assert load_extension(path).traced_names == ("my_lib::op", "my_lib::other")


def test_a_name_claimed_twice_in_one_file_names_both_places(tmp_path: Path):
    twice = GOOD + '\n@traced_as("my_lib::op")\ndef _again(op: OpSignature) -> Mine:\n    return Mine(n=1)\n'
    answer = refusal(written(tmp_path, "twice.py", twice))
    assert "'my_lib::op' is claimed by both" in answer
    assert "(_op)" in answer
    assert "(_again)" in answer


def test_two_given_files_that_claim_one_name_are_refused(tmp_path: Path):
    extensions = [load_extension(written(tmp_path, f"{name}.py", GOOD)) for name in ("a", "b")]
    with pytest.raises(UsageError, match=r"'my_lib::op' is claimed by both .*a\.py:10 .*b\.py:10 "):
        overlay(Registry("traced_as", {}), extensions)


def test_an_extension_does_not_leak_into_another_registry(tmp_path: Path):
    core = Registry.collect("traced_as", [_in_a_cell])
    with_mine = overlay(core, [load_extension(written(tmp_path, "mine.py", GOOD))])
    assert set(with_mine) == {"my_lib::in_a_cell", "my_lib::op"}
    assert set(core) == {"my_lib::in_a_cell"}
    assert set(overlay(core, [])) == {"my_lib::in_a_cell"}


def test_every_bundled_extension_loads_and_no_two_claim_one_name():
    extensions = bundled_extensions()
    assert tuple(e.name for e in extensions) == bundled_names()
    assert all(e.traced_names or e.name_patterns for e in extensions)
    for kind in ("traced_as", "category", "recorded_as", "kernel_pattern"):
        Registry.collect(kind, [source for e in extensions for source in e.sources])


def test_a_bundled_extension_is_the_same_module_each_time():
    assert load_extension("megatron").sources[0] is load_extension("megatron").sources[0]
    assert sys.modules["tracelens_extensions.megatron"] is load_extension("megatron").sources[0]


def test_bundled_extensions_switch_on_by_op_name():
    assert detect_bundled(["aten::mm"]) == []
    assert detect_bundled(["aten::mm", "DeepEPDispatch"]) == ["megatron"]
    assert detect_bundled(iter(["tex_ts::te_gemm_ts", "DeepEPCombine"])) == ["megatron", "transformer_engine"]


def test_a_given_reading_replaces_a_bundled_one(tmp_path: Path):
    path = written(tmp_path, "mine.py", GOOD.replace("my_lib::op", "DeepEPDispatch"))
    extensions = [load_extension(path), load_extension("megatron")]
    bindings = overlay(Registry("traced_as", {}), extensions)
    assert (
        overlay(Registry("traced_as", {}), extensions[::-1])["DeepEPDispatch"].origin
        == bindings["DeepEPDispatch"].origin
    )
    assert bindings["DeepEPDispatch"].origin.endswith("mine.py:10 (_op)")
    assert "megatron.py" in bindings["DeepEPCombine"].origin


def test_what_an_extension_adds_is_listed_with_its_place(tmp_path: Path):
    extension = load_extension(written(tmp_path, "my_ops.py", GOOD))
    assert [(kind, key, place.rpartition("/")[2]) for kind, key, place in extension.additions()] == [
        ("category", "my_lib::other", extension.sources[0].__name__ + ".CategoryOf"),
        ("traced_as", "my_lib::op", "my_ops.py:10 (_op)"),
    ]
