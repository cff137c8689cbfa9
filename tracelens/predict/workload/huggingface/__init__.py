"""A Hugging Face ``config.json`` as a ``ModelConfig``.

What a layer is made of is read from the config's structure: which keys are there, which lists say what a layer is.
``families.toml`` says of model types what their configs do not. A type that stands nowhere is read by structure alone:
what that assumes is named in ``ModelConfig.notes``, and a key that tells of another kind of block is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracelens.errors import InputError
from tracelens.files.documents import json_of
from tracelens.predict.workload.huggingface.checkpoint_types import read_quantization
from tracelens.predict.workload.huggingface.decoders import OLDER, decoder, read_vision
from tracelens.predict.workload.huggingface.keys import Family, Keys, families, told_by_type
from tracelens.predict.workload.model_shape import VisionTower
from tracelens.types.dtypes import DType

#: Where a multimodal config keeps its language model.
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")


def read_config(path: Path) -> dict[str, Any]:
    """What a ``ModelConfig`` is made of, from a ``config.json``.

    InputError when it is missing, incomplete, or of a structure that has no model here.
    """
    outer = json_of(path, "a JSON file")
    if not isinstance(outer, dict):
        raise InputError(f"{path.name} is not a model config: its top level is not an object")
    values = _language_model(outer)
    kind = str(values.get("model_type") or outer.get("model_type") or "")
    family = families().get(kind)
    keys = Keys(path.name, values, {} if family is None else family.defaults)
    if kind in OLDER:
        shape = OLDER[kind](keys)
    elif family is not None:
        shape = decoder(keys, family)
    else:
        keys.assumed.append(f"model_type {kind!r} is not known: read by its structure")
        shape = decoder(keys, Family(is_known=False))
        _refuse_other_blocks(path, kind, keys.unread())
    unread = keys.finish()
    quantization = read_quantization(path, outer, values, len(shape["blocks"]))
    shape |= {"vision": _tower(keys, outer, family, shape["hidden"]), "quantization": quantization}
    notes = [f"{path.name}: {text}" for text in keys.assumed]
    if unread:
        notes.append(f"{path.name}: keys not read: {', '.join(unread)}")
    dtype = _element_type(values, outer)
    if dtype is None and quantization is not None:
        dtype = DType.BF16
        notes.append(f"{path.name}: no dtype: what is not quantized is taken as bf16")
    label = path.stem
    if path.name == "config.json":
        named = str(values.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
        label = named or path.absolute().parent.name or path.stem
    return {"name": label, "label": label, "source": path.name, "notes": tuple(notes), "dtype": dtype, **shape}


def _tower(keys: Keys, outer: dict[str, Any], family: Family | None, hidden: int) -> VisionTower | None:
    """What the config says of the vision tower, else what its family knows of it."""
    said, names = read_vision(keys, outer, hidden), outer.get("architectures")
    sees_images = isinstance(names, list) and any("ForConditionalGeneration" in str(name) for name in names)
    if said is not None or family is None or not sees_images or outer.get("vision_config"):
        return said
    of = "is that of the released models" if family.vision is not None else "is left out"
    keys.assumed.append(f"no vision_config: the vision tower {of}")
    return family.vision


def _element_type(*configs: dict[str, Any]) -> DType | None:
    """The first type that a config names; a quantized checkpoint's own is in ``quantization``."""
    for values in configs:
        for key in ("torch_dtype", "dtype"):
            found = DType.parse(str(values.get(key) or "").removeprefix("torch."))
            if found is not None:
                return found
    return None


def _language_model(values: dict[str, Any]) -> dict[str, Any]:
    """The keys of a file's language model. What the outer keys say holds where it says nothing."""
    for inner in _INNER:
        found = values.get(inner)
        if isinstance(found, dict):
            deeper = _language_model(found)
            beside = {name: values[name] for name in ("tie_word_embeddings",) if name in values}
            return beside | {name: value for name, value in deeper.items() if value is not None or name not in beside}
    return values


def _refuse_other_blocks(path: Path, kind: str, unread: tuple[str, ...]) -> None:
    if any(part in kind.lower() for part in told_by_type()["other_types"]):
        raise InputError(
            f"{path.name}: {kind} has blocks that tracelens does not model (it reads decoders of attention, Mamba-2, "
            "linear attention and experts); write its shape as a model file, see docs/models.md"
        )
    telling = [name for name in unread if any(part in name for part in told_by_type()["other_blocks"])]
    if telling:
        raise InputError(
            f"{path.name}: model_type {kind!r} is not known, and {', '.join(telling)} stands for blocks that "
            "tracelens does not model; write its shape as a model file, see docs/models.md"
        )
