"""The examples in docs/extensions.md are run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracelens.extensions import bundled_extensions, bundled_names, load_extension, overlay
from tracelens.perf_models.base import PerfModel
from tracelens.registry import Registry
from tracelens.signature import OpSignature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extensions.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_there_are_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_example_is_an_extension(number: int, tmp_path: Path):
    path = tmp_path / f"example_{number}.py"
    path.write_text(EXAMPLES[number], encoding="utf-8")
    assert load_extension(path).additions()


def test_the_first_example_reads_what_its_comments_say(tmp_path: Path):
    path = tmp_path / "my_ops.py"
    path.write_text(EXAMPLES[0], encoding="utf-8")
    extension = load_extension(path)
    bindings = overlay(Registry("traced_as", {}), [extension])

    def read(name: str, *shapes: tuple[int, ...]) -> PerfModel:
        signature = OpSignature(name=name, shapes=shapes, dtypes=("c10::BFloat16",) * len(shapes))
        return bindings[name].target(signature)

    assert read("my_lib::linear", (64, 32), (16, 32)).flops() == 2 * 64 * 16 * 32
    assert read("my_lib::combine", (64, 32)).wire_bytes() == 64 * 32 * 2
    assert {kind for kind, _, _ in extension.additions()} == {"traced_as", "category", "kernel_pattern"}


def test_the_page_names_every_bundled_extension_and_its_main_ops():
    page = PAGE.read_text(encoding="utf-8")
    assert [extension.name for extension in bundled_extensions()] == [
        n for n in bundled_names() if f"| `{n}` |" in page
    ]
    known = {name for extension in bundled_extensions() for name in extension.traced_names}
    for name in (
        "DeepEPDispatch",
        "DeepEPCombine",
        "GroupedGemm",
        "MoEDispatch",
        "tex_ts::te_gemm_ts",
        "FusedAttnFunc",
    ):
        assert name in known
        assert f"`{name}`" in page
