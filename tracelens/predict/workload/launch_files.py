"""Launch configurations of Megatron-LM (a list of arguments) and Primus (YAML) as a model and options of a projection.

Keys of YAML count at any depth, over those of the files that it ``extends`` and of Primus' files that ``config`` and
``model`` name; keys of its own that are not read are named. What changes a named model is applied, or refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.documents import beside, expected, refuse_deep, text_of, told, toml_of
from tracelens.predict.workload.blocks import DENSE_LAYER, SPARSE_LAYER
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.model_shape import Experts, LatentAttention
from tracelens.predict.workload.parallel_config import Moments
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

_TABLES = toml_of(Path(__file__).with_name("launch_keys.toml"))
_DEGREES, _SIZES, _EXPERT_SIZES, _LATENT_SIZES, _PRE_TRAINER = (
    _TABLES[name] for name in ("degrees", "sizes", "expert_sizes", "latent_sizes", "pre_trainer")
)
_POSITIONS = "max_position_embeddings"
#: Files that extend each other.
_DEEPEST = 20
_FROM_ENVIRONMENT = re.compile(r"\$\{[^:}$]++:([^}$]*+)\}")
_TRUE, _FALSE = frozenset(("true", "yes", "on", "1")), frozenset(("false", "no", "off", "0", "null", "none", ""))


class LaunchFile(Record, frozen=True, kw_only=True):
    """``model``: None where the file names none and gives no shape. ``options``: of ``tracelens project``, by name.

    ``ignored``: keys that say nothing to a projection, or nothing that it knows.
    """

    model: ModelConfig | None
    options: Mapping[str, object]
    ignored: tuple[str, ...]


class _Keys(Record, frozen=False):
    """The file's keys, ``own`` those that no preset gives, and which of them were asked for."""

    path: Path
    values: Mapping[str, str]
    is_list: bool
    own: frozenset[str] = frozenset()
    read: set[str] = msgspec.field(default_factory=set)

    @property
    def file(self) -> str:
        return self.path.name

    def text(self, name: str) -> str | None:
        self.read.add(name)
        value = self.values.get(name)
        return None if value is None or value.lower() in ("null", "none", "") else value

    def whole(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\d{1,12}", value.replace("_", "")):
            raise InputError(f"{self.file}: {name} must be a whole number, got {value!r}")
        return int(value.replace("_", ""))

    def size(self, name: str, default: int) -> int:
        """``default`` where none is given, or 0."""
        return self.whole(name) or default

    def flag(self, name: str) -> bool:
        value = (self.values.get(name) or "").lower()
        self.read.add(name)
        if name in self.values and value not in _TRUE | _FALSE:
            raise InputError(f"{self.file}: {name} must be true or false, got {value!r}")
        return value in _TRUE


def read_launch(path: Path) -> LaunchFile:
    """InputError for a file that cannot be read, and for values that are not what their key needs."""
    what = "a launch configuration"
    is_list = path.suffix not in (".yaml", ".yml")
    with expected(path, what):
        values = _of_arguments(text_of(path, what)) if is_list else _with_bases(path)
    merged = values if is_list else {**_presets(path, values), **values}
    keys = _Keys(path=path, values=merged, is_list=is_list, own=frozenset(values))
    if keys.values.get("config") == "pre_trainer.yaml":
        keys.read.add("config")
    options = {**_degrees(keys), **_switches(keys)}
    model = _model(keys)
    layers = _recomputed_layers(keys, options)
    if layers is not None and (model is None or layers < len(model.layers)):
        options["recompute_layers"] = layers
    if model is not None and model.experts is not None and "tp" in options:
        # Megatron-LM's default of --expert-tensor-parallel-size
        options.setdefault("etp", options["tp"])
    return LaunchFile(model=model, options=options, ignored=tuple(sorted(set(values) - keys.read)))


def _of_arguments(text: str) -> dict[str, str]:
    """``--name value``, ``--name=value``, ``--switch``; ``#`` begins a comment, a backslash joins lines."""
    found: dict[str, str] = {}
    name = None
    for token in shlex.split(text.replace("\\\n", " "), comments=True):
        if token.startswith("--"):
            name, separator, value = token[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if separator else "true"
        elif name is not None:
            found[name] = token if found[name] == "true" else f"{found[name]} {token}"
    return found


def _of_yaml(text: str) -> dict[str, str]:
    """Keys at any depth with their text; the last of a key counts, a list is what stands between its brackets."""
    import yaml  # type: ignore[import-untyped]

    found: dict[str, str] = {}
    ahead, seen = [], set[int]()
    refuse_deep(text)
    try:
        ahead = list(yaml.load_all(text, Loader=yaml.BaseLoader))[::-1]
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    while ahead:
        node = ahead.pop()
        # An anchor's content counts once, however often and wherever it is named.
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        inner = []
        for key, value in node.items() if isinstance(node, dict) else ((None, each) for each in node):
            if isinstance(value, list) and all(isinstance(each, str) for each in value):
                value = f"[{', '.join(value)}]"
            if not isinstance(value, str):
                inner.append(value)
            elif isinstance(key, str) and value:
                found.pop(key.replace("-", "_"), None)
                found[key.replace("-", "_")] = _FROM_ENVIRONMENT.sub(r"\1", value).strip("'\"")
        ahead += inner[::-1]
    return found


def _with_bases(path: Path, seen: tuple[Path, ...] = (), within: Path | None = None) -> dict[str, str]:
    """A file's keys over those of the files that it ``extends`` or ``includes``, all ``beside`` it.

    InputError where one is missing or elsewhere.
    """
    own, found = _of_yaml(text_of(path, "a launch configuration")), dict[str, str]()
    seen = (*seen, path.resolve())
    for key in ("extends", "includes"):
        for name in re.findall(r"[^\s,\[\]]+", own.pop(key, "")):
            base = beside(path, name, within=within)
            if base.resolve() in seen or len(seen) > _DEEPEST:
                raise InputError(
                    f"{path}: {key} {name}: a base file is another file of the same folder, and extends nothing itself"
                )
            if not base.is_file():
                raise InputError(f"{path}: {key} {name}: there is no such file in its folder")
            found |= _with_bases(base, seen, within)
    return found | own


def _presets(path: Path, values: Mapping[str, str]) -> dict[str, str]:
    """The keys of Primus' files that ``config`` and, where no bundled model has its name, ``model`` name."""
    found = dict(_PRE_TRAINER) if values.get("config") == "pre_trainer.yaml" else {}
    for key, kind in (("config", "modules"), ("model", "models")):
        name = values.get(key, "")
        if not re.fullmatch(r"[\w.-]{1,200}\.ya?ml", name):
            continue
        with contextlib.suppress(TracelensError):
            if key == "model" and ModelConfig.named(Path(name).stem):
                continue
        configs = [folder / "primus" / "configs" for folder in path.resolve().parents]
        places = [(folder / kind / "megatron" / name, folder) for folder in configs]
        file, within = next(
            filter(lambda place: place[0].is_file(), [*places, (path.parent / name, None)]), (path, None)
        )
        if file.resolve() != path.resolve():
            found |= _with_bases(beside(file, name, within=within), within=within)
    return found


def _degrees(keys: _Keys) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, option in _DEGREES.items():
        if (value := keys.whole(name)) is not None:
            found.setdefault(option, value)
    per_stage, layers = keys.whole("num_layers_per_virtual_pipeline_stage"), keys.whole("num_layers")
    pp = found.get("pp", 1)
    if per_stage and layers and isinstance(pp, int) and layers % (per_stage * pp) == 0:
        found["vpp"] = layers // (per_stage * pp)
    return found


def _switches(keys: _Keys) -> dict[str, object]:
    names = (
        "enable_primus_turbo", "moe_enable_deepep", "use_turbo_deepep", "use_turbo_grouped_mlp",
        "use_turbo_grouped_gemm", "moe_use_legacy_grouped_gemm", "sequence_parallel", "tp_comm_overlap",
        "overlap_moe_expert_parallel_comm", "use_flash_attn",
    )  # fmt: skip
    on = {name: keys.flag(name) for name in names}
    turbo, kind = on["enable_primus_turbo"], keys.text("moe_token_dispatcher_type")
    flexible = keys.text("moe_flex_dispatcher_backend") in ("deepep", "hybridep") and kind == "flex"
    deepep = any((on["moe_enable_deepep"], flexible, turbo and on["use_turbo_deepep"]))
    # Megatron's own layers write scores to memory, and so does Transformer Engine where it is told to
    own_layers = keys.text("transformer_impl") == "local" and not on["use_flash_attn"]
    return {
        "precision": _precision(keys),
        "bf16_layers": _bf16_layers(keys),
        "gradients": "bf16" if keys.flag("grad_reduce_in_bf16") else "fp32",
        **_stored(keys),
        **_recompute(keys),
        **_zero(keys),
        "dispatcher": "deepep" if deepep else "alltoall",
        "sequential_experts": _is_sequential(keys, on),
        # A YAML file of Primus overrides a default that divides sequences.
        "no_sequence_parallel": not on["sequence_parallel"] and (keys.is_list or "sequence_parallel" in keys.values),
        "tp_overlap": "all" if on["tp_comm_overlap"] else "backward",
        "ep_overlap": on["overlap_moe_expert_parallel_comm"],
        "graphs": _graphs(keys),
        "attention": "unfused" if (own_layers or keys.text("attention_backend") in ("unfused", "local")) else "flash",
    }


def _stored(keys: _Keys) -> dict[str, object]:
    """What is kept narrow, or elsewhere; Adam's second moment is taken to be as wide as the first. InputError for types
    that Megatron has not, or this does not model.
    """
    moments = keys.text("exp_avg_dtype") or "fp32"
    if moments not in get_args(Moments):
        raise InputError(f"{keys.file}: exp_avg_dtype must be one of {', '.join(get_args(Moments))}, got {moments!r}")
    keys.flag("use_precision_aware_optimizer")
    narrow = keys.flag("activation_func_fp8_input_store")
    layers = keys.whole("cpu_offloading_num_layers") if keys.flag("cpu_offloading") else None
    return {
        "moments": moments,
        "activation_inputs": "fp8" if narrow else "bf16",
        "fused_loss": keys.flag("cross_entropy_loss_fusion") and keys.text("cross_entropy_fusion_impl") == "te",
        "offload_layers": layers or 0,
    }


def _is_sequential(keys: _Keys, on: Mapping[str, bool]) -> bool:
    """Primus' legacy grouped GEMM is a loop over experts; its turbo kernel, and Megatron's, take all at once. A file
    that turns the turbo kernel off, and says nothing of the legacy one, means the loop.
    """
    grouped = (keys.text("moe_grouped_gemm") or "true").lower() not in _FALSE
    if on["enable_primus_turbo"] and (on["use_turbo_grouped_mlp"] or on["use_turbo_grouped_gemm"]):
        return not grouped
    is_off = any(name in keys.own and not on[name] for name in ("enable_primus_turbo", "use_turbo_grouped_mlp"))
    unsaid = "moe_use_legacy_grouped_gemm" not in keys.own
    return on["moe_use_legacy_grouped_gemm"] or (is_off and unsaid) or not grouped


def _bf16_layers(keys: _Keys) -> str:
    """Megatron's defaults are one layer at either end, with the switch."""
    first, last = (keys.whole(f"num_layers_at_{end}_in_bf16") for end in ("start", "end"))
    if not keys.flag("first_last_layers_bf16"):
        return "0,0"
    return f"{1 if first is None else first},{1 if last is None else last}"


def _precision(keys: _Keys) -> str:
    fp4 = [keys.text(name) for name in ("fp4", "fp4_format")]
    fp8 = [keys.text(name) for name in ("fp8", "fp8_format")]
    recipe, half = (keys.text("fp8_recipe") or "").lower(), keys.flag("fp16")
    keys.flag("bf16")
    if any(value and value.lower() not in _FALSE for value in fp4):
        return "nvfp4"
    if any(value and value.lower() not in _FALSE for value in fp8):
        return "mxfp8" if recipe.startswith("mx") else "fp8"
    return "fp16" if half else "bf16"


def _recompute(keys: _Keys) -> dict[str, object]:
    """The recomputation of all layers, where some are; ``_recomputed_layers`` says of how many."""
    how, activations = keys.text("recompute_granularity"), keys.flag("recompute_activations")
    layers = keys.whole("recompute_num_layers")
    keys.text("recompute_method")
    modules = re.findall(r"\w+", keys.text("recompute_modules") or "")
    if how == "full":
        return {"recompute": "none" if layers == 0 else "full"}
    if how == "selective" or activations:
        return {"recompute": "selective", "recompute_modules": ",".join(modules) or "core_attn"}
    return {"recompute": "none"}


def _recomputed_layers(keys: _Keys, options: Mapping[str, object]) -> int | None:
    """``block`` recomputes so many layers of each stage, and of each virtual one; ``uniform`` all, in such pieces."""
    count = keys.whole("recompute_num_layers")
    if options["recompute"] != "full" or count is None or keys.text("recompute_method") == "uniform":
        return None
    pp, vpp = (options.get(name) for name in ("pp", "vpp"))
    return count * (pp if isinstance(pp, int) else 1) * (vpp if isinstance(vpp, int) else 1)


def _zero(keys: _Keys) -> dict[str, object]:
    sharded = {keys.flag(name) for name in ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")} != {False}
    distributed = keys.flag("use_distributed_optimizer")
    strategy = keys.text("data_parallel_sharding_strategy") or ("optim_grads_params" if sharded else None)
    level = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(strategy or "")
    return {"zero": level if level is not None else int(distributed)}


def _graphs(keys: _Keys) -> str:
    kind, scope = keys.text("cuda_graph_impl"), keys.text("cuda_graph_scope") or ""
    older = {keys.flag("enable_cuda_graph"), keys.flag("external_cuda_graph")} != {False}
    if kind is None:
        return "partial" if older else "none"
    return "full" if kind == "full_iteration" or "full_iteration" in scope else "partial"


def _model(keys: _Keys) -> ModelConfig | None:
    """The model of the shape that the file gives, else the bundled one that ``model`` names."""
    layers, hidden, heads = (keys.whole(key) for key in ("num_layers", "hidden_size", "num_attention_heads"))
    keys.text("model")
    if layers is None or hidden is None or heads is None:
        return _bundled(keys)
    vocab = keys.whole("padded_vocab_size") or keys.whole("vocab_size")
    if vocab is None:
        raise InputError(f"{keys.file}: vocab_size is missing; logits and embedding need it")
    count, ffn = keys.whole("num_experts"), keys.size("ffn_hidden_size", 4 * hidden)
    latent = _latent(keys)
    biased, is_rms = not keys.flag("disable_bias_linear"), keys.text("normalization") == "RMSNorm"
    return ModelConfig(
        name=keys.file,
        label=keys.file,
        source=f"arguments in {keys.file}",
        blocks=_blocks(keys, layers, count),
        hidden=hidden,
        vocab=vocab,
        ffn=ffn,
        gated=keys.flag("swiglu"),
        q_heads=heads,
        kv_heads=_query_groups(keys, heads) if latent is None else heads,
        head_dim=None if latent is not None else keys.size("kv_channels", hidden // max(heads, 1)),
        qk_norm=keys.flag("qk_layernorm") and latent is None,
        qkv_bias=keys.flag("add_qkv_bias") or biased,
        out_bias=biased,
        mlp_bias=biased,
        norm="rms" if is_rms else "layer",
        norm_bias=not is_rms,
        tied_embeddings=not keys.flag("untie_embeddings_and_output_weights"),
        # learned ones
        positions=0 if keys.text("position_embedding_type") in ("rope", "none") else keys.size(_POSITIONS, 0),
        dropout=_drops_out(keys),
        dtype=DType.BF16,
        mtp_layers=keys.size("mtp_num_layers", 0),
        mtp_blocks=SPARSE_LAYER if count else DENSE_LAYER,
        latent_attention=latent,
        experts=None if count is None else Experts(**_given(keys, _EXPERT_SIZES, top_k=2, ffn=ffn, shared_ffn=0)),
    )


def _drops_out(keys: _Keys) -> bool:
    """A list of arguments that does not say otherwise has Megatron's default, 0.1 behind attention and blocks."""
    shares = [keys.text(name) or ("0.1" if keys.is_list else "0") for name in ("hidden_dropout", "attention_dropout")]
    return any(re.search("[1-9]", share.partition("e")[0]) for share in shares)


def _bundled(keys: _Keys) -> ModelConfig | None:
    """The model that ``model`` names, by itself or by a file of Primus."""
    named = keys.text("model")
    if not named:
        return None
    try:
        is_preset = named.endswith(".yaml")
        return _changed(
            keys, ModelConfig.named(Path(named).stem) if is_preset else ModelConfig.load(told(keys.path, named))
        )
    except TracelensError as error:
        raise InputError(f"{keys.file}: model: {error}") from error


def _changed(keys: _Keys, model: ModelConfig) -> ModelConfig:
    """The named model with the sizes that the file gives. UsageError for what cannot be changed in it."""
    changes = _given(keys, _SIZES)
    if model.latent_attention is not None:
        # Every head has its own keys once the latent is expanded
        changes["kv_heads"] = changes.get("q_heads", model.q_heads)
    for field_name, names in (("experts", _EXPERT_SIZES), ("latent_attention", _LATENT_SIZES)):
        part, given = getattr(model, field_name), _given(keys, names)
        if given and part is None:
            raise UsageError(f"{model.name} has no {field_name} for {', '.join(given)}: give the whole shape instead")
        if given:
            changes[field_name] = dataclasses.replace(part, **given)
    for switch, is_so in (
        ("multi_latent_attention", model.latent_attention is not None), ("swiglu", model.gated),
        ("untie_embeddings_and_output_weights", not model.tied_embeddings),
    ):  # fmt: skip
        if keys.flag(switch) != is_so and switch in keys.values:
            said = f"{switch} {keys.values[switch]}"
            raise UsageError(f"{said} does not fit model {model.name}: give the whole shape instead of its name")
    count, frequency = len(model.layers), keys.text("moe_layer_freq")
    layers = keys.whole("num_layers") or count
    if frequency is not None and model.experts is not None:
        changes["blocks"] = _blocks(keys, layers, model.experts.count)
    elif layers != count:
        changes["blocks"] = "".join((*model.layers[:layers], *[model.layers[-1]] * (layers - count)))
    return dataclasses.replace(model, **changes)


def _given(keys: _Keys, names: Mapping[str, str], **usual: int) -> dict[str, Any]:
    """The sizes that are given, by the names of their fields; ``usual`` ones in place of those that are not, or 0."""
    found = {name: value for key, name in names.items() if (value := keys.whole(key)) is not None}
    return found | {name: found.get(name) or size for name, size in usual.items()}


def _query_groups(keys: _Keys, heads: int) -> int:
    """Without its switch Megatron ignores the number of groups; a YAML file may leave the switch to a base file."""
    groups, is_on = keys.whole("num_query_groups"), keys.flag("group_query_attention")
    is_off = not is_on and (keys.is_list or "group_query_attention" in keys.values)
    return heads if is_off else groups or heads


def _blocks(keys: _Keys, layers: int, experts: int | None) -> str:
    """``moe_layer_freq`` is a period, or a list like ``([0]*3+[1]*58)``."""
    frequency = keys.text("moe_layer_freq") or "1"
    if not experts:
        return DENSE_LAYER * layers
    if frequency.isdecimal() and int(frequency):
        return "".join(SPARSE_LAYER if layer % int(frequency) == 0 else DENSE_LAYER for layer in range(layers))
    runs = re.findall(r"\[([01])\]\*(\d{1,5})", frequency.replace(" ", ""))
    made = "".join((SPARSE_LAYER if kind == "1" else DENSE_LAYER) * int(times) for kind, times in runs)
    if len(made) != 2 * layers:
        raise InputError(f"{keys.file}: moe_layer_freq {frequency!r} does not fit {layers} layers")
    return made


def _latent(keys: _Keys) -> LatentAttention | None:
    if not keys.flag("multi_latent_attention"):
        return None
    sizes: dict[str, Any] = {name: keys.whole(key) for key, name in _LATENT_SIZES.items()}
    for key, name in _LATENT_SIZES.items():
        if sizes[name] is None and name != "q_rank":
            raise InputError(f"{keys.file}: {key} is missing; multi_latent_attention needs it")
    return LatentAttention(**sizes)
