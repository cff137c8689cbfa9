"""Every feature of the designs that tracelens comes from is there: what docs/designs.md shows runs, and says what it has to."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens
from docs.generate_designs import PAGE, designs, page
from tests.analysis.conftest import MI300X, Builder
from tests.analysis.reading.test_amd_tracelens_tree import FILE, training
from tests.cli.test_route_command import PRODUCTION
from tests.serving.test_files import DATABASE
from tests.workload.test_launch_files import PRIMUS
from tracelens.cli import main

REPOSITORY = Path(__file__).resolve().parent.parent
FEATURES = [
    pytest.param(feature, id=f"{design['title'].split()[0]}-{number}".lower())
    for design in designs()
    for number, feature in enumerate(design["feature"])
]

PEERS = """
device = "mi300x"
library = "rccl"
label = "eight MI300X, 28 us for each peer"
[node]
ranks = 8
shape = "mesh"
source = "given"
[node.all_to_all]
peer_us = 28
sync_us = 0
source = "given"
[network]
cards = 8
card_gb_s = 50
source = "given"
"""
ROWS = """id,model,gpu,n_gpus,tp,pp,ep,mbs,gbs,seq_len,precision,framework,quality
1,Llama-3.1-8B,MI300X,8,1,1,1,2,128,8192,BF16,Primus,A
"""
EMPIRICAL = """{
 "matrix_flops_fp16": 2500.0, "vector_flops_fp16": 339.0, "hbm_bandwidth": 8000, "hbm_capacity": 192,
 "nvlink_bandwidth": 900, "ib_bandwidth": 100, "nvlink_eff": 0.7, "ib_eff": 0.7, "nvlink_latency": 2.5e-06,
 "ib_latency": 5e-06, "nvlink_size": 4, "nic_factor": 1.0, "empirical": true, "summa_nb": 4, "element_size": 2e-09,
 "mask_element_size": 1e-09, "flops_units": 1e-12
}"""

SEARCHED = "--strategy 1d --gpus 512 --global-batch 4096 --rules paper"
#: As the published code has them: height, slope, center and base of a sigmoid over log2 of the bytes.
NCCL_FITS = {
    op: {
        f"gpus_per_node_{ranks}": {f"num_nodes_{nodes}": [200 / nodes, 0.5, 23, 2] for nodes in (1, 2, 8)}
        for ranks in (1, 2, 4)
    }
    for op in ("allgather", "reducescatter")
}


def test_the_page_is_as_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.generate_designs"


def test_every_feature_says_something_that_can_be_looked_for() -> None:
    assert [each["asks"] for design in designs() for each in design["feature"] if not all(each["says"])] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that the commands name, in which they run one after the other."""
    made = tmp_path_factory.mktemp("designs")
    example = REPOSITORY / "example_traces" / "moe_ep8"
    shutil.copytree(example, made / "traces")
    shutil.copy(example / "rank0.json.gz", made / "trace.json.gz")
    shutil.copy(REPOSITORY / "docs" / "experiment_config.yaml", made)
    (made / "params.py").write_text(PRODUCTION, encoding="utf-8")
    (made / "primus.yaml").write_text(PRIMUS, encoding="utf-8")
    legacy = PRIMUS.replace("enable_primus_turbo: true", "enable_primus_turbo: false")
    legacy = re.sub(".*(use_legacy_grouped_gemm|use_turbo_grouped_mlp).*\n", "", legacy)
    (made / "primus_legacy.yaml").write_text(legacy, encoding="utf-8")
    (made / "db.json").write_text(DATABASE, encoding="utf-8")
    (made / "peers.toml").write_text(PEERS, encoding="utf-8")
    (made / "rows.csv").write_text(ROWS, encoding="utf-8")
    (made / "measurements" / "comm").mkdir(parents=True)
    (made / "measurements" / "comm" / "nccl-benchmark-21209538.out").write_text(json.dumps(NCCL_FITS), encoding="utf-8")
    (made / "empirical.json").write_text(EMPIRICAL, encoding="utf-8")
    (made / "ext.py").write_text(FILE, encoding="utf-8")
    built = Builder()
    training(lambda: built)
    document = {"traceEvents": built.events, "deviceProperties": [MI300X]}
    (made / "te.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert main(["report", "traces/rank0.json.gz", "-o", "rank0.report"]) == 0
        # What one command writes and the next reads, whichever worker runs it
        for place in ("b200-nvs8 --save-system system.json", "b200-nvs8 -o found.npy"):
            assert main(shlex.split(f"search --model gpt3-1t --cluster {place} {SEARCHED}")) == 0
        yield made


@pytest.mark.sweep
@pytest.mark.parametrize("feature", FEATURES)
def test_the_feature_is_there(
    feature: dict[str, Any], files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    if feature["run"].startswith("tracelens "):
        assert main(shlex.split(feature["run"])[1:]) == 0
        shown = "".join(capsys.readouterr())
    else:
        shown = repr(eval(feature["run"], {"tl": tracelens}))  # noqa: S307 - our own page
    assert [pattern for pattern in feature["says"] if not re.search(pattern, shown)] == [], shown
