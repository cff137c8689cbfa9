"""In which types a checkpoint holds its weights: ``quantization_config``, or ``hf_quant_config.json`` beside it.

A scheme names the modules that it covers, or those that it leaves out, layer by layer. Here a part of the model
(attention, dense feed-forwards, shared and routed experts, logits) has the type of most of its layers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tracelens.errors import InputError
from tracelens.files.data_table import LARGEST, shown
from tracelens.files.documents import json_of
from tracelens.predict.workload.huggingface.keys import told_by_type
from tracelens.predict.workload.model_shape import PARTS, NarrowWeights, Quantization
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

#: Projections of attention as modules call them; norms, convolutions and indexers beside them do not decide.
_PROJECTIONS = re.compile(
    r"(self_attn|linear_attn|attn|attention)\W*$|(q|k|v|o|qkv|q_a|q_b|kv_b|kv_a|in|out|qkvz|in_proj_qkv|in_proj_z)_proj"
    r"|kv_a_proj_with_mqa|mixer\W*$"
)
_LAYER = re.compile(r"(?:layers|blocks|h)\.(\d+)\b")
_NOT_WEIGHTS = ("router", "norm", "embed", "vis", "mm_projector", "audio", "mtp", "bias", "conv", "indexer")
_FP8, _FP4 = DType.FP8_E4M3FN, DType.FP4_E2M1
_INSTEAD = "remove quantization_config and give the weights' type to serve with --weights"
_INTEGER_METHODS = ("awq", "gptq", "auto-round", "bitsandbytes")
#: ModelOpt's names of algorithms.
_ALGORITHMS = {
    name: NarrowWeights(
        **{key: value if key == "group" else cast(Any, DType.parse(value)) for key, value in given.items()}
    )
    for name, given in told_by_type()["algorithms"].items()
}


class _Scheme(Record, frozen=True):
    """What is quantized how: ``default`` with the modules it leaves out, or ``named`` modules with theirs."""

    name: str
    default: NarrowWeights | None
    left_out: tuple[str, ...]
    named: dict[str, NarrowWeights]
    kv: DType | None
    only: tuple[str, ...] = PARTS


def read_quantization(path: Path, outer: dict[str, Any], inner: dict[str, Any], blocks: int) -> Quantization | None:
    """The parts' types; None for a checkpoint in its own type. InputError for a scheme that is not known."""
    config = outer.get("quantization_config") or inner.get("quantization_config")
    beside = _beside(path)
    given = config or beside
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InputError(f"{path.name}: quantization_config must be an object, got {shown(given)}")
    scheme = _scheme(path.name, given, inner)
    if beside is not None and scheme.kv is None:
        scheme = replace(scheme, kv=_kv(beside))
    parts = {part: _of_part(part, scheme, blocks) for part in PARTS}
    return Quantization(name=scheme.name, kv=scheme.kv, **parts)


def _beside(path: Path) -> dict[str, Any] | None:
    """The quantization file of a checkpoint: in its folder, or named like its config."""
    file = path.with_name("hf_quant_config.json" if path.name == "config.json" else f"{path.stem}.hf_quant.json")
    if not file.is_file():
        return None
    values = json_of(file, "a JSON file")
    found = values.get("quantization") if isinstance(values, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{file.name}: quantization must be an object")
    return found


def _scheme(file: str, given: dict[str, Any], inner: dict[str, Any]) -> _Scheme:
    method = str(given.get("quant_method") or "modelopt").lower()
    algorithm = str(given.get("quant_algo") or "").upper()
    names = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "exclude")
    lists = (given.get(name) for name in names)
    left_out = next((tuple(map(str, each)) for each in lists if isinstance(each, list)), ())
    named, kv = _named(file, given), _kv(given)
    if named:
        # what is not named stays, unless the method itself has a type for it
        return _Scheme(algorithm or method, _block_fp8(file, given) if method == "fp8" else None, (), named, kv)
    if algorithm == "MIXED_PRECISION":
        raise InputError(
            f"{file}: quant_algo MIXED_PRECISION without quantized_layers says no module's type; {_INSTEAD}"
        )
    if algorithm:
        return _Scheme(algorithm, _algorithm(file, algorithm), left_out, {}, kv)
    if given.get("config_groups"):
        return _Scheme(method, _of_groups(file, given["config_groups"]), left_out, {}, kv)
    return _by_method(file, method, given, inner, left_out)


def _by_method(
    file: str, method: str, given: dict[str, Any], inner: dict[str, Any], left_out: tuple[str, ...]
) -> _Scheme:
    """Methods that are schemes of their own. They leave the logits alone."""
    kv = _kv(given)
    if method == "fp8":
        fp4 = "fp4" in str(inner.get("expert_dtype") or "").lower()
        experts = {"experts": _ALGORITHMS["MXFP4"]} if fp4 else {}
        return _Scheme(method, _block_fp8(file, given), ("lm_head", *left_out), experts, kv)
    if method == "quark":
        layers = given.get("layer_quant_config")
        named = {name: _of_quark(file, said) for name, said in layers.items()} if isinstance(layers, dict) else {}
        return _Scheme(method, _of_quark(file, given.get("global_quant_config")), left_out, named, kv)
    if method == "mxfp4":
        return _Scheme(method, _ALGORITHMS["MXFP4"], left_out, {}, kv, only=("experts",))
    if method in _INTEGER_METHODS:
        bits = given.get("bits") or given.get("w_bit") or (4 if given.get("load_in_4bit") else 8)
        group = given.get("group_size") or given.get("q_group_size") or 0
        return _Scheme(method, _integer(file, bits, None, group), ("lm_head", *left_out), {}, kv)
    raise InputError(f"{file}: quant_method {method!r} is not known; {_INSTEAD}")


def _algorithm(file: str, name: str) -> NarrowWeights:
    if name not in _ALGORITHMS:
        raise InputError(f"{file}: quant_algo {name} is not known; known: {', '.join(sorted(_ALGORITHMS))}")
    return _ALGORITHMS[name]


def _block_fp8(file: str, given: dict[str, Any]) -> NarrowWeights:
    return NarrowWeights(dtype=_FP8, group=_block(file, given, "weight_block_size") or 0)


def _block(file: str, given: dict[str, Any], name: str) -> int | None:
    """How many weights share a scale; None where the file says nothing of it."""
    sizes = given.get(name)
    if sizes is None:
        return None
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(map(_count, sizes)):
        raise InputError(f"{file}: {name} must be two whole numbers, got {shown(sizes)}")
    return int(sizes[0] * sizes[1])


def _count(value: object) -> int:
    """0 for what is none: groups of -1 are whole channels."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST else 0


def _named(file: str, given: dict[str, Any]) -> dict[str, NarrowWeights]:
    """Algorithms of modules that are named one by one."""
    layers = given.get("quantized_layers")
    if not isinstance(layers, dict):
        return {}
    algorithms = {name: said.get("quant_algo") if isinstance(said, dict) else said for name, said in layers.items()}
    return {str(name): _algorithm(file, str(algorithm).upper()) for name, algorithm in algorithms.items()}


def _of_quark(file: str, said: Any) -> NarrowWeights:
    """AMD Quark: one scheme for all modules, others for those that it names (MXFP4: "fp4" with 32 to a scale)."""
    parts = (said.get(name) if isinstance(said, dict) else None for name in ("weight", "input_tensors"))
    weights, activations = (part if isinstance(part, dict) else {} for part in parts)
    narrow, inputs = (DType.parse(str(part.get("dtype"))) for part in (weights, activations))
    if narrow is None:
        raise InputError(f"{file}: Quark's weight has no element type that is known; {_INSTEAD}")
    computed = None if inputs is narrow else inputs or DType.BF16
    return NarrowWeights(dtype=narrow, computed=computed, group=_count(weights.get("group_size")))


def _of_groups(file: str, groups: Any) -> NarrowWeights:
    """Compressed-tensors: the scheme of its first group, which nearly all have alone."""
    first: Any = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights: Any = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise InputError(f"{file}: config_groups has no weights")
    bits, group = weights.get("num_bits"), _block(file, weights, "block_structure") or _count(weights.get("group_size"))
    activations = first.get("input_activations")
    if str(weights.get("type")) == "float":
        narrow = _weights(file, bits, _FP8, _FP4)
        return NarrowWeights(dtype=narrow, computed=_computed(activations, bits), group=group)
    return _integer(file, bits, activations, group)


def _integer(file: str, bits: Any, activations: Any, group: Any) -> NarrowWeights:
    narrow = _weights(file, bits, DType.INT8, DType.INT4)
    return NarrowWeights(dtype=narrow, computed=_computed(activations, bits), group=_count(group))


def _weights(file: str, bits: Any, eight: DType, four: DType) -> DType:
    if bits not in (4, 8):
        raise InputError(f"{file}: weights of {bits} bits are not known")
    return eight if bits == 8 else four


def _computed(activations: Any, bits: Any) -> DType | None:
    """What products are computed in; None: in the weights' type."""
    if not isinstance(activations, dict):
        return DType.BF16
    own = activations.get("num_bits")
    return None if own == bits else _FP8 if own == 8 else DType.BF16


def _kv(given: dict[str, Any]) -> DType | None:
    said = given.get("kv_cache_quant_algo") or given.get("kv_cache_scheme")
    if isinstance(said, dict):
        bits = said.get("num_bits")
        return _FP8 if bits == 8 else _FP4 if bits == 4 else None
    return DType.parse(str(said).lower()) if said else None


def _of_part(part: str, scheme: _Scheme, blocks: int) -> NarrowWeights | None:
    named = Counter(narrow for name, narrow in scheme.named.items() if _part_of(name) == part)
    if named:
        return named.most_common(1)[0][0]
    if part not in scheme.only or (scheme.named and scheme.default is None):
        return None
    if scheme.default is not None and _is_left_out(part, scheme.left_out, blocks):
        return None
    return scheme.default


def _is_left_out(part: str, names: Iterable[str], blocks: int) -> bool:
    """Whether most layers' modules of a part are named; a layer has two blocks."""
    layers = set()
    for name in names:
        if _part_of(name) != part or (part == "attention" and not _PROJECTIONS.search(_plain(name))):
            continue
        number = _LAYER.search(name)
        if number is None:
            return True
        layers.add(int(number[1]))
    return 4 * len(layers) > blocks


def _plain(name: str) -> str:
    """A module's name out of a pattern for it."""
    return name.removeprefix("re:").replace("\\", "").rstrip("*$.")


def _part_of(name: str) -> str | None:
    """The part of the model that a module's name, or a pattern for it, is of."""
    text = _plain(name).lower()
    last = text.rpartition(".")[2]
    if any(word in text for word in _NOT_WEIGHTS) or last in ("gate", "shared_expert_gate", "e_score_correction_bias"):
        return None
    if last in ("lm_head", "head", "output") or "lm_head" in text:
        return "logits"
    if "shared" in text:
        return "shared"
    if "experts" in text:
        return "experts"
    if "attn" in text or "attention" in text or "mixer" in text:
        return "attention"
    return "dense" if "mlp" in text or "ffn" in text or "feed_forward" in text else None
