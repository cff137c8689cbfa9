"""What a published table calls "recipe": the settings of launch scripts that its rows do not repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracelens.lazy.records import dataclass
from tracelens.training_options import Dispatcher, Graphs
from tracelens.workload.parallel_config import ParallelConfig

#: Commits of Megatron-Bridge at which its scripts and recipes were read.
_SOURCE = "Megatron-Bridge scripts/performance/configs at "
_DEEPSEEK = _SOURCE + "0426418 (deepseek_workload_base_configs.py)"
_KIMI = _SOURCE + "013180a (kimi_workload_base_configs.py)"
_QWEN = _SOURCE + "01b2977 (qwen3_workload_base_configs.py), recipes/qwen/gb200/qwen3_moe.py at 4ff5766"
_GPT_OSS = _SOURCE + "07eea52 (gpt_oss_workload_base_configs.py)"
_NEMOTRON = _SOURCE + "nemotron_3_workload_base_configs.py, the version with Nemotron 3 Ultra"
_LLAMA = _SOURCE + "00919dc and 0013c9a (llama3_, llama31_workload_base_configs.py)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of one model's script, for ``gpus`` and ``precisions`` (empty: all) from release ``since`` on.

    The releases at which a script changed are those between which its rows became faster at equal degrees: the
    repository's branches were not read one by one. ``modules`` empty: nothing is recomputed.
    """

    model: str
    gpus: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    since: str = ""
    graphs: Graphs = "none"
    modules: tuple[str, ...] = ()
    ep_overlap: bool = False
    bf16_layers: tuple[int, int] = (0, 0)
    dispatcher: Dispatcher = "deepep"
    offload_layers: int = 0
    source: str

    def of(self, parallel: ParallelConfig) -> ParallelConfig:
        """``parallel`` with these settings."""
        return replace(
            parallel,
            recompute="selective" if self.modules else "none",
            recompute_modules=self.modules or parallel.recompute_modules,
            graphs=self.graphs,
            ep_overlap=self.ep_overlap,
            bf16_layers=self.bf16_layers,
            dispatcher=self.dispatcher,
            grouped=self.graphs == "full",
            # Megatron offloads without a pipeline only; the scripts do so with FSDP.
            offload_layers=self.offload_layers if parallel.zero == 3 else 0,
        )

    def __str__(self) -> str:
        parts = [f"{' and '.join(self.modules)} recomputed" if self.modules else "no recomputation"]
        parts.append(
            {"none": "no graphs", "partial": "partial graphs", "full": "graphs of the whole step"}[self.graphs]
        )
        parts += ["exchanges overlapped"] if self.ep_overlap else []
        parts += [f"the last {self.bf16_layers[1]} layers in BF16"] if self.bf16_layers[1] else []
        parts += [f"activations of {self.offload_layers} layers offloaded with FSDP"] if self.offload_layers else []
        return f"{', '.join(parts)} ({self.source})"


_UP = ("mla_up_proj",)
#: FP8 with a scale per tensor, and what a table without a precision means.
_PER_TENSOR = ("FP8", "FP8-CS", "")
_NORMS = ("layernorm", "moe_act")
#: The last that fits counts.
RECIPES = (
    Recipe(model="DeepSeek", graphs="partial", modules=_UP, source=_DEEPSEEK),
    Recipe(model="DeepSeek", gpus=("GB300",), modules=_UP, source=_DEEPSEEK),
    Recipe(
        model="DeepSeek", gpus=("GB300",), precisions=("BF16",), graphs="partial", modules=("moe_act",),
        source=_DEEPSEEK,
    ),
    Recipe(model="DeepSeek", gpus=("B200",), modules=_UP, source=_DEEPSEEK),
    Recipe(model="DeepSeek", gpus=("H100",), modules=("mla_up_proj", "mlp"), source=_DEEPSEEK),
    Recipe(
        model="DeepSeek", gpus=("GB200",), precisions=("MXFP8",), since="26.06", graphs="full", modules=_UP,
        ep_overlap=True, source=_DEEPSEEK,
    ),
    Recipe(
        model="DeepSeek", gpus=("GB300",), precisions=("MXFP8",), since="26.06", graphs="full", ep_overlap=True,
        source=_DEEPSEEK,
    ),
    Recipe(model="Kimi", modules=_UP, source=_KIMI),
    Recipe(model="Qwen3_235B", graphs="partial", source=_QWEN),
    Recipe(model="Qwen3_235B", gpus=("B300", "B200"), dispatcher="alltoall", source=_QWEN),
    Recipe(model="Qwen3_235B", gpus=("H100",), dispatcher="alltoall", ep_overlap=True, source=_QWEN),
    Recipe(model="Qwen3_30B", graphs="partial", source=_QWEN),
    Recipe(model="Qwen3_30B", gpus=("H100",), source=_QWEN),
    Recipe(
        model="Qwen3", gpus=("GB200", "GB300"), precisions=("MXFP8",), since="26.06", graphs="full", ep_overlap=True,
        source=_QWEN,
    ),
    Recipe(model="GPT OSS", graphs="partial", source=_GPT_OSS),
    Recipe(
        model="GPT OSS", gpus=("GB200", "B200", "H100"), modules=_NORMS, source=_GPT_OSS,
    ),
    Recipe(model="GPT OSS", gpus=("GB200",), modules=_NORMS, since="26.04", ep_overlap=True, source=_GPT_OSS),
    Recipe(
        model="GPT OSS", gpus=("GB300",), precisions=("MXFP8",), since="26.06", graphs="full", ep_overlap=True,
        source=_GPT_OSS,
    ),
    Recipe(
        model="GPT OSS", gpus=("GB200",), precisions=("MXFP8",), since="26.08", graphs="full", ep_overlap=True,
        source=_GPT_OSS,
    ),
    Recipe(
        model="GPT OSS", gpus=("B300",), precisions=("MXFP8",), since="26.06", graphs="partial", ep_overlap=True,
        source=_GPT_OSS,
    ),
    Recipe(model="Nemotron", graphs="partial", source=_NEMOTRON),
    Recipe(
        model="Nemotron_3_Nano", gpus=("H100",), graphs="partial", modules=("moe", "layernorm"), source=_NEMOTRON
    ),
    Recipe(model="Nemotron_3_Super", gpus=("B200",), precisions=("MXFP8",), modules=_NORMS, source=_NEMOTRON),
    # The recipe keeps the last 14 of 88 blocks in BF16. A layer here is a block of experts with those before it: the
    # last 7 layers are 13 of them.
    Recipe(
        model="Nemotron_3_Super", precisions=("NVFP4",), graphs="partial", bf16_layers=(0, 7),
        source=_NEMOTRON + ", nemotron_3_super_bf16_with_nvfp4_mixed of training/mixed_precision.py",
    ),
    Recipe(model="Nemotron_3_Ultra", modules=("moe_act",), source=_NEMOTRON),
    Recipe(model="LLAMA", source=_LLAMA),
    *(
        Recipe(model=model, gpus=(gpu,), precisions=precisions, offload_layers=layers, source=_LLAMA)
        for model, gpu, precisions, layers in (
            ("LLAMA3_70B", "GB300", ("BF16",), 30), ("LLAMA3_70B", "GB300", _PER_TENSOR, 20),
            ("LLAMA3_70B", "GB200", ("BF16",), 20), ("LLAMA3_70B", "GB200", _PER_TENSOR, 40),
            ("LLAMA3_70B", "B200", _PER_TENSOR, 5), ("LLAMA3.1_405B", "GB300", ("BF16",), 40),
            ("LLAMA3.1_405B", "GB300", _PER_TENSOR, 10), ("LLAMA3.1_405B", "GB200", _PER_TENSOR, 95),
        )
    ),
    Recipe(model="LLAMA3_8B", gpus=("GB300", "GB200", "B300", "B200"), graphs="full", source=_LLAMA),
)  # fmt: skip


#: Layers that scripts of MLPerf's fine-tuning recompute (ACL=21 of config_MI300X_1x8x1.sh and _2x8x1.sh, v5.0 at
#: 0fdc28f and v5.1 at 4da2d1c; on larger AMD devices none): NVIDIA's scripts name it otherwise, so
#: that tables say "none".
_MLPERF_LAYERS = {"MI300X": 21}


def mlperf_layers(row: Mapping[str, str]) -> int | None:
    """Layers recomputed in a row of MLPerf's fine-tuning that its table leaves out."""
    is_mlperf = "mlperf" in row.get("framework", "").lower()
    return _MLPERF_LAYERS.get(row["gpu"].upper().split("-")[0]) if is_mlperf else None


def recipe_of(row: Mapping[str, str]) -> Recipe | None:
    """The recipe of a Megatron-Bridge row; None for a model that none was read of."""
    if not row["framework"].startswith("Megatron-Bridge "):
        return None
    release = row["framework"].removeprefix("Megatron-Bridge ").split(" ")[0]
    found = None
    for recipe in RECIPES:
        fits_gpu = not recipe.gpus or row["gpu"].split("-")[0] in recipe.gpus
        fits_precision = not recipe.precisions or row["precision"] in recipe.precisions
        if row["model"].startswith(recipe.model) and fits_gpu and fits_precision and release >= recipe.since:
            found = recipe
    return found
