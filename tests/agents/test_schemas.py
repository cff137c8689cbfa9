"""Every document that a command prints or writes is what its JSON Schema in the package says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.generate_schemas import FOLDER, schemas, text
from tests.conftest import part
from tracelens.cli import main

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ranks"))
import planted
import small_traces

MODEL = ["--model", "llama3-8b"]
#: What is asked for each document; PATH stands for the folder of the traces, OUT for a file that JSON goes to.
ASKED = {
    "report": ["report", "PATH/a.json", "-o", "OUT"],
    "report.brief": ["report", "PATH/a.json", "--format", "json", "--brief", "-o", "PATH/short.json"],
    "compare": ["compare", "PATH/a.json", "PATH/b.json", "--gate", "step<+300%", "--format", "json"],
    "whatif": ["whatif", "PATH/a.json", "--scale", "aten::mm=0.5", "--format", "json"],
    "collectives": ["collectives", "PATH/ranks", "--executor", "serial", "-o", "OUT"],
    "project": ["project", *MODEL, "--cluster", "dgx-h100", "--nodes", "1", "--tp", "8", "-o", "OUT"],
    "project.sweep": ["project", *MODEL, "--cluster", "dgx-h100", "--nodes", "1", "--sweep", "tp=4,8", "-o", "OUT"],
    "search": ["search", *MODEL, "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8", "-o", "OUT"],
    "serve": ["serve", *MODEL, "--cluster", "h100-sxm", "--requests", "3", "--rate", "1", "--format", "json"],
    "serve.frameworks": ["serve", "--config", "docs/experiment_config.yaml", "--format", "json"],
    "route": ["route", "--tokens", "256", "--experts", "16", "--topk", "2", "--ranks", "4", "--format", "json"],
    "model": ["models", "show", "llama3-8b", "--format", "json"],
    "score": ["score", "PATH/points.csv", "--format", "json"],
    "query": ["query", "PATH/a.json", "SELECT name, kernel_us_sum FROM ops", "--format", "json"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("documents")
    small_traces.write(base / "a.json", steps=3)
    small_traces.write(base / "b.json", steps=3, kernel_us=140)
    (base / "ranks").mkdir()
    planted.Job(ranks=2, ranks_per_host=2, rounds=2).write(base / "ranks")
    (base / "points.csv").write_text("family,measured,predicted\na,1,1.1\na,2,2\nb,3,\n")
    return base


def test_every_schema_is_driven_below_and_as_generated():
    made = schemas()
    assert set(ASKED) == {"report", *made} == {path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()}
    for stem, schema in made.items():
        assert (FOLDER / f"{stem}.schema.json").read_text(encoding="utf-8") == text(schema), stem
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", part(list(ASKED), 3))
def test_a_document_is_as_its_schema_says(name, folder, tmp_path, capsys):
    if name == "query":
        pytest.importorskip("duckdb", reason="the query extra is not installed")
    out = tmp_path / "out.json"
    words = [word.replace("PATH", str(folder)).replace("OUT", str(out)) for word in ASKED[name]]
    assert main(words) == 0, capsys.readouterr().err
    found: Any = json.loads(out.read_text() if out.exists() else capsys.readouterr().out)
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    version = 2 if name in ("report", "report.brief", "collectives") else 1
    assert found["schema"] == f"tracelens.{name}/{version}"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "schema": "tracelens.other/1"}, schema)
    for key in schema["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({other: value for other, value in found.items() if other != key}, schema)
