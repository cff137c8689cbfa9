"""What holds of predictions on every device of the package: no type, link or interval is silently another's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tracelens as tl
from tests.conftest import row_by_row
from tracelens.backends import System
from tracelens.backends.base import hbm_peak
from tracelens.backends.chain import chain
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.files.option_fields import BACKENDS
from tracelens.hardware import HardwareSpec
from tracelens.laboratory.configuration_rows import PointSimulator, point_of
from tracelens.perf_models import GEMM, WorkColumns
from tracelens.predict.estimation.communication import collective_answer
from tracelens.predict.estimation.estimate import operation_answers
from tracelens.predict.network.topology import Group
from tracelens.predict.projection.frameworks import named, unmeasured
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Engine
from tracelens.predict.serving.experiment import DeploymentOptions, deployment_of
from tracelens.predict.step_time import StepTimePredictor
from tracelens.types.dtypes import DType

NARROW = (DType.FP8_E4M3FN, DType.INT8, DType.FP4_E2M1)
#: Small enough for every device that has a rate.
SERVED = {"concurrency": 2, "requests": 4, "output_tokens": 4, "input_tokens": 16}


def cost(device: str, model: str = "qwen2.5-0.5b", **options: object) -> StepCost:
    return StepCost(deployment_of(model, device, DeploymentOptions(**options)))  # type: ignore[arg-type]


def peak(name: str, dtype: DType) -> float | None:
    """TFLOPS/s, or TOPS."""
    rate = HardwareSpec.load(name).rate("matrix", dtype)
    return None if rate is None else rate.peak_tflops_s


RATED = [each for each in HardwareSpec.names() if HardwareSpec.load(each).matrix and hbm_peak(HardwareSpec.load(each))]


@row_by_row("name", HardwareSpec.names())
def test_no_type_of_a_measured_device_is_priced_at_its_bare_rate(name: str) -> None:
    device = HardwareSpec.load(name)
    rated = [each for each in NARROW if device.rate("matrix", each) is not None]
    products = [GEMM(m=8192, n=8192, k=8192, dtype=each, dtype_out=DType.BF16) for each in rated]
    found = chain(BACKENDS).estimate_many(WorkColumns.of(products), System.load(name))
    if device.hbm is not None and device.hbm.peak_tb_s is not None:
        assert set(found.backend) <= {"tile" if device.unmeasured is None else "roofline"}
        assert np.all(found.time_us >= found.peak_us)


@row_by_row("name", [each for each in RATED if peak(each, NARROW[0]) == peak(each, NARROW[1]) is not None])
def test_int8_is_no_faster_than_fp8_of_the_same_rate(name: str) -> None:
    times = [cost(name, weights=each).mixed_time(512, [(512, 0)], 1, 1, 0, 0)[0] for each in ("fp8", "int8")]
    assert times[1] >= 0.999 * times[0]


@row_by_row("name", HardwareSpec.names())
def test_every_verb_joins_devices_alike_or_refuses_with_one_sentence(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Served on two devices, an all-reduce takes as long as estimated; where nothing joins them, none answers."""
    options = ["--op", "all_reduce", "--bytes", "1e8", "--ranks", "2"]
    codes = [
        main(["estimate", "collective", *options, "--cluster", name]),
        main(["route", "--cluster", name, "--ranks", "2", "--tokens", "16"]),
    ]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    if System.load(name).topology is None:
        assert codes == [2, 2]
        assert (len(said), len(set(said))) == (2, 1)
        with pytest.raises(UsageError, match=r"nothing says how several|has no (matrix|HBM) rate"):
            cost(name, tp=2, weights="fp16")
    else:
        assert codes == [0, 0]


@pytest.mark.parametrize("name", ["l40s", "gaudi3", "a10", "h100-sxm"])
def test_a_served_all_reduce_takes_as_long_as_an_estimated_one(name: str) -> None:
    links = cost(name, tp=2)._links
    step = links.exchange("all_reduce", 1e8, ranks=2)
    alone = collective_answer(System.load(name), "all_reduce", 1e8, Group(ranks=2), "ring")
    assert step.time_fs == pytest.approx(alone.time_us * 1e9, rel=1e-6)


@row_by_row("name", HardwareSpec.names())
def test_a_device_without_measured_products_has_no_interval_in_any_verb(name: str) -> None:
    half = "fp16" if "bf16" not in HardwareSpec.load(name).matrix else None
    device = HardwareSpec.load(name)
    if not device.matrix or device.hbm is None or device.hbm.peak_tb_s is None:
        with pytest.raises(UsageError, match=r"has no (matrix|HBM) rate"):
            tl.serve("qwen2.5-0.5b", name, weights=half, **SERVED)
        return
    found, bare = tl.serve("qwen2.5-0.5b", name, weights=half, **SERVED), device.unmeasured
    assert any("is expected within" in note for note in found.notes) == (bare is None)
    assert (bare in found.notes) == (bare is not None)
    if bare is not None:
        assert unmeasured(System.load(name), BACKENDS) == bare


@pytest.mark.parametrize("device", ["t4", "v100-sxm-32gb", "rtx-2080-ti"])
@pytest.mark.parametrize("weights", ["fp16", "int4", "w8a16"])
def test_devices_without_bf16_serve_in_fp16_where_weights_say_so(device: str, weights: str) -> None:
    assert cost(device, weights=weights).deployment.model.dtype is DType.FP16
    with pytest.raises(UsageError, match=f"{device} has no matrix rate for bf16: serve it in fp16"):
        cost(device)
    assert cost("h100-sxm", weights=weights).deployment.model.dtype is DType.BF16


@pytest.mark.parametrize("device", ["t4", "v100-sxm-32gb"])
def test_an_estimate_in_fp16_needs_no_rate_of_bf16(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    """T4: 2 * 4096**3 FLOPs at 65 TFLOPS are 2,114 µs."""
    sizes = ["--m", "4096", "--n", "4096", "--k", "4096", "--device", device]
    assert main(["estimate", "gemm", *sizes, "--dtype", "fp16"]) == 0
    out = capsys.readouterr().out
    assert "no backend can answer" not in out
    assert ("2114" in out) == (device == "t4")


@pytest.mark.parametrize(
    ("name", "dtype", "is_widened"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", DType.INT8, True),
        ("neuralmagic/Llama-3.1-8B-W8A16", DType.INT8, True),
        ("llama3.1-8b-w8a8-int8", DType.INT8, False),
        ("Qwen/Qwen3-14B-GPTQ-Int4", DType.INT4, False),
        ("TheBloke/Llama-2-70B-GPTQ", DType.INT4, False),
        ("Qwen/Qwen3-8B-FP8", DType.FP8_E4M3FN, False),
    ],
)
def test_the_weights_of_a_name(name: str, dtype: DType, is_widened: bool) -> None:
    served = cost("h100-sxm", name, tp=4)
    precision = served.deployment.precision
    assert (precision.linear, precision.is_widened) == (dtype, is_widened)
    is_multiplied = dtype in served._rank.multiplied
    assert is_multiplied == (dtype is not DType.INT4 and not is_widened)


def test_json_of_a_served_device_has_the_notes_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "--model", "qwen2.5-0.5b", "--device", "gaudi3", "--concurrency", "2", "--requests", "4"]
    assert main([*words, "--format", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(f"note: {note}" in out for note in notes)


#: ``quantization_config`` of a checkpoint, and what --weights says of the same.
HELD = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "int8": {
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}},
        "quant_method": "compressed-tensors", "ignore": ["lm_head"],
    },
    "w8a16": {"quant_method": "gptq", "bits": 8},
    "int4": {"quant_method": "awq", "bits": 4},
    "nvfp4": {
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}, "input_activations": {"num_bits": 4}}},
        "quant_method": "compressed-tensors", "ignore": ["lm_head"],
    },
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("device", ["h100-sxm", "b200", "mi355x", "a100-sxm-80gb"])
@pytest.mark.parametrize("weights", HELD)
def test_a_checkpoint_of_narrow_weights_takes_as_long_as_the_same_weights_asked_for(
    device: str, weights: str, tmp_path: Path
) -> None:
    """It was read as weights alone, multiplied in BF16 whatever the file said."""
    files = {}
    for name, config in (("held", {"quantization_config": HELD[weights]}), ("asked", {})):
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(json.dumps(LLAMA | config))
    held, asked = cost(device, str(files["held"])), cost(device, str(files["asked"]), weights=weights)
    for step in ((1024, [(1024, 0)], 1, 1, 0, 0), (64, [], 64, 0, 64, 64 * 512)):
        assert held.mixed_time(*step)[0] == pytest.approx(asked.mixed_time(*step)[0], rel=0.01)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "kimi-k2", "minimax-m2.5"])
def test_a_bundled_model_of_fp8_weights_is_served_as_one_asked_to_be(name: str) -> None:
    times = [
        cost("dgx-h200", name, tp=8, weights=each).mixed_time(512, [(512, 0)], 1, 1, 0, 0)[0] for each in (None, "fp8")
    ]
    assert times[0] == pytest.approx(times[1], rel=0.03)


@row_by_row("name", HardwareSpec.names())
def test_mxfp8_is_trained_only_where_devices_multiply_it(name: str) -> None:
    """Blackwell and gfx950, as TransformerEngine checks; of devices of unknown capability nothing is said."""
    device, framework = HardwareSpec.load(name), named("torchtitan")
    least = {"nvidia": (10, 0), "amd": (9, 5)}.get(device.vendor)
    if least is not None and device.compute is not None and device.compute < least:
        with pytest.raises(UsageError, match=f"^{name} has no mxfp8: .* choose --precision fp8$"):
            framework.software(System.load(name), "mxfp8")
    elif device.matrix:
        framework.software(System.load(name), "mxfp8")
    framework.software(System.load(name), "fp8")


def test_training_says_that_it_reads_no_type_of_a_checkpoints_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = "weights in int4, as the name Qwen/Qwen3-8B-AWQ says, are not read: a training step computes in --precision"
    words = ["--cluster", "dgx-h100", "--gpus", "8"]
    assert main(["project", "--model", "Qwen/Qwen3-8B-AWQ", *words, "--tp", "8"]) == 0
    assert f"note: {said}" in capsys.readouterr().out
    fixed = ["--global-batch", "8", "--fix", "pp=1,tp2=1"]
    assert main(["search", "--model", "Qwen/Qwen3-8B-AWQ", *words, *fixed]) == 0
    assert f"note: {said}" in capsys.readouterr().out
    assert main(["project", "--model", "Qwen/Qwen3-8B", *words, "--tp", "8"]) == 0
    assert "are not read" not in capsys.readouterr().out


def test_a_row_of_a_table_is_read_as_the_command_reads_it() -> None:
    """A name says the type of weights, and FP16 is what a device without BF16 serves, in ``serve --batch`` too."""
    sizes = {"backend": "vllm", "isl": 128, "osl": 16, "concurrency": 4, "tp_size": 1}
    simulator = PointSimulator(Engine())
    awq = simulator.cost(point_of({"model": "Qwen/Qwen3-8B-AWQ", "system": "h100_sxm", **sizes}))
    assert awq.deployment.precision.linear is DType.INT4
    said = simulator.cost(point_of({"model": "Qwen/Qwen3-8B-AWQ", "system": "h100_sxm", "precision": "fp8", **sizes}))
    assert said.deployment.precision.linear is DType.FP8_E4M3FN
    half = simulator.cost(point_of({"model": "qwen2.5-1.5b", "system": "t4", "precision": "fp16", **sizes}))
    assert half.deployment.model.dtype is DType.FP16


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ("h100-sxm", "h200-sxm"), ("b200", "b300"), ("gb200", "gb300"), ("h200-sxm", "b200"), ("h100-pcie", "h100-sxm"),
        ("a100-sxm-40gb", "a100-sxm-80gb"), ("mi300x", "mi325x"), ("mi350x", "mi355x"), ("l4", "l40s"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["llama3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_a_device_that_is_better_in_every_figure_serves_no_step_slower(slower: str, faster: str, model: str) -> None:
    """B300 and GB300 had no L2 size: fused experts whose weights exceed L2 took 8 % longer than on B200."""
    predictors = [StepTimePredictor(model, name, tp=8, engine="ideal") for name in (slower, faster)]
    for step in (([1], [1024]), ([1] * 64, [1024] * 64), ([8192], [0])):
        times = [predict(*step).seconds for predict in predictors]
        assert times[1] <= 1.01 * times[0], step


@row_by_row("name", [each for each in RATED if HardwareSpec.load(each).calibration("decode", "bf16") is not None])
def test_attention_over_a_narrow_cache_is_priced_by_what_was_measured_of_a_wide_one(name: str) -> None:
    """Half of the bytes take half of the time, but for H100's, whose FP8 was measured at a larger share of the rate."""
    device = HardwareSpec.load(name)
    least = 0.49 if device.calibration("decode", "fp8") is None else 0.44
    sizes = {"b": 32, "s_q": 1, "s_kv": 8192, "q_heads": 32, "kv_heads": 8, "d_qk": 128}
    (wide,), (narrow,) = (operation_answers("sdpa", sizes, device=name, dtype=dtype) for dtype in ("bf16", "fp8"))
    assert wide.estimate is not None
    assert narrow.estimate is not None
    assert narrow.estimate.backend == "tile"
    assert least * wide.estimate.time_us <= narrow.estimate.time_us <= 1.01 * wide.estimate.time_us


def test_words_of_one_token_and_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "--ranks", "1", "--tokens", "1", "--experts", "8", "--topk", "2"]) == 0
    assert "1 token, top 2 of 8 experts on 1 rank:" in capsys.readouterr().out
    assert main(["route", "--ranks", "16", "--experts", "100"]) == 0  # less than an even load, in both directions
    assert "imbalance adds -" not in capsys.readouterr().out
    assert main(["models", "show", "Qwen/Qwen3-8B-AWQ"]) == 0
    said = "these are figures of qwen3-8b: serve takes weights in int4, as the name Qwen/Qwen3-8B-AWQ says"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["project", "--gpus", "8", "--cluster", "gaudi3", "--sweep", "tp=1,2,3"],
        ["serve", "--device", "gaudi3", "--requests", "4", "--sweep", "rate=1..2"],
    ],
)
def test_a_sweep_says_what_holds_of_all_its_points(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--model", "qwen2.5-0.5b"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"note: {HardwareSpec.load('gaudi3').unmeasured}") == 1
    assert "None" not in out
