"""The shape of a language model, from a TOML file of this package or any Hugging Face ``config.json``, and how its
name is spelled.
"""

from __future__ import annotations

import functools
import os
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tracelens.errors import InputError, UsageError
from tracelens.files.documents import BundledFile, FigureTable, bundled, normalized
from tracelens.predict.workload import batch_ops, model_shape
from tracelens.predict.workload.blocks import block_types, is_attention, layers_of
from tracelens.predict.workload.model_shape import PARTS, ModelShape, NarrowWeights, Norm, Quantization
from tracelens.types.dtypes import DType, spelled_type
from tracelens.types.records import Record

#: Words of tuning, precision, data, makers and releases, which change no shape.
_FILLER = re.compile(
    r"instruct|it|base|chat|hf|pt|sft|lora|qlora|peft|dpo|thinking|preview|exp|model|meta|nvidia|amd|pretrain(ing|ed)?"
    r"|fine-?tun(e|ing|ed)|dropless|tokendrop|dynamic|static|block|kv|quantized|ocp"
    r"|(nv|mx)?fp(4|8|16)|bf16|int[48]|awq|gptq|w\d{1,2}a\d{1,2}|per-?tensor|v[01](\.\d{1,2})?|2[456](0[1-9]|1[0-2])|0[1-9]\d\d|\d{1,4}k"
)
_SIZE = re.compile(r"a?(\d{1,5}(?:\.\d{1,4})?)([bt])")
_LAYERS = re.compile(r"[\s,_(-](?:proxy[\s_-])?(\d{1,4})[\s_-]?(layers?|l)\)?$", re.IGNORECASE)


def spelling_key(name: str) -> str:
    """What is equal for spellings of one model.

    >>> spelling_key("nvidia/Llama-3.1-8B-Instruct-FP8"), spelling_key("Llama 3.1 8B"), spelling_key("llama3_1_8b")
    ('llama3_1_8b', 'llama3_1_8b', 'llama3_1_8b')
    """
    return _joined(_words(name))


def without_point(name: str) -> str:
    """A name whose version is written without its point.

    >>> without_point("Llama-3.1-8B"), without_point("gpt-1.7b")
    ('Llama-31-8B', 'gpt-1.7b')
    """
    return re.sub(r"(\d)\.(\d)(?![\dbtBT])", r"\1\2", name)


def without_sizes(name: str) -> tuple[str, list[float]]:
    """The key of a name without its sizes, and the sizes in parameters.

    >>> without_sizes("Kimi K2 1T-A32B")
    ('kimik2', [1000000000000.0, 32000000000.0])
    """
    words = _words(name)
    sizes = [found for word in words if (found := _SIZE.fullmatch(word))]
    parameters = [float(found[1]) * (1e12 if found[2] == "t" else 1e9) for found in sizes]
    return _joined([word for word in words if not _SIZE.fullmatch(word)]), parameters


def without_layers(name: str) -> tuple[str, int | None]:
    """A name without its number of layers, and that number; None where it states none.

    >>> without_layers("Llama-3.1-70B (12 layers)"), without_layers("Llama-3.1-405B-proxy-8L")
    (('Llama-3.1-70B', 12), ('Llama-3.1-405B', 8))
    >>> without_layers("Llama 2 7B")
    ('Llama 2 7B', None)
    """
    name = name.strip()
    found = _LAYERS.search(name)
    return (name, None) if found is None else (name[: found.start()].rstrip(" ,(_-"), int(found[1]))


def _words(name: str) -> list[str]:
    last = re.sub(r"[()\[\],:]", " ", name.strip().rstrip("/").rpartition("/")[2].replace("+", "-plus"))
    last = re.sub(r"(fp\d{1,2}|awq|gptq)-v\d$", r"\1", normalized(last).strip("-"))
    last = last.replace("k2-thinking", "k2thinking")  # a release of its own, whose experts are INT4
    return [word for word in last.split("-") if word and not _FILLER.fullmatch(word)]


def _joined(words: list[str]) -> str:
    """Together, but numbers apart from numbers."""
    return re.sub(r"(?<=\d)[.\-](?=\d)", "_", "-".join(words)).replace("-", "")


FOLDER = Path(__file__).resolve().parent / "models"
# More than any model has: a larger number is a slip, and would be spelled out block by block.
_MOST_REPEATS = 10_000
#: How far a size in a name may be from the parameters that are counted: names round, and count other layers.
_SAME_SIZE = 0.05
#: Tables of a model file, by field of the shape.
_TABLES: dict[str, type[Any]] = {
    "latent_attention": model_shape.LatentAttention, "experts": model_shape.Experts, "mamba": model_shape.Mamba,
    "indexer": model_shape.Indexer, "compressed": model_shape.CompressedAttention, "linear": model_shape.LinearHeads,
}  # fmt: skip
#: Whole numbers that may be other in some of a model's blocks.
_VARIED = ("ffn", "q_heads", "kv_heads", "head_dim", "value_dim", "window", "chunk")
#: Fields that a caller sets, or that are read by other rules.
_NOT_IN_FILES = ("document", "blocks", "mtp_blocks", "vocab")


class ParameterCount(Record, frozen=True, kw_only=True):
    """``active``: without the experts that a token is not sent to. ``vision``: the tower's, which are in ``total``
    alone. ``further``: prediction layers beyond the next token, which are in neither.
    """

    total: int
    active: int
    vision: int = 0
    further: int = 0


class FlopsPerToken(Record, frozen=True, kw_only=True):
    """Floating-point operations of one token's matrix products, averaged over a sequence."""

    forward: float
    training: float


class ModelConfig(ModelShape, frozen=True, kw_only=True):
    """A named ``ModelShape``. ``notes``: what a reader of figures must know."""

    name: str
    label: str
    source: str
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """InputError when a block is of no known kind or needs a figure that is missing."""
        types, letters = block_types(), self.blocks + self.mtp_blocks
        unknown = sorted({letter for letter in letters if model_shape.base_letter(letter) not in types})
        if unknown:
            raise InputError(f"model {self.name}: unknown block {' or '.join(map(repr, unknown))}")
        order = list(types)
        for letter in sorted(set(letters), key=lambda letter: (order.index(model_shape.base_letter(letter)), letter)):
            for needed, present in types[letter].needs(self.of(letter)).items():
                if present is None:
                    raise InputError(
                        f"model {self.name}: blocks have {model_shape.base_letter(letter)!r}, but {needed} is missing"
                    )
        for what, size in (
            ("hidden size", self.hidden), ("query heads", self.q_heads), ("key and value heads", self.kv_heads),
            ("layers", len(self.blocks)),
        ):  # fmt: skip
            if size < 1:
                raise InputError(f"model {self.name}: {what} must be at least 1, not {size}")
        if self.document is not None and self.document < 1:
            raise InputError(f"model {self.name}: a document needs at least one token, not {self.document}")
        if self.experts is not None and self.experts.top_k > self.experts.count:
            raise InputError(f"model {self.name}: top_k {self.experts.top_k} does not fit {self.experts.count} experts")
        if self.q_heads % self.kv_heads:
            raise InputError(
                f"model {self.name}: {self.q_heads} query heads are not a multiple of {self.kv_heads} key heads"
            )

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> ModelConfig:
        """A model of this package by name or alias; a model file (``.toml``), ``config.json`` or its folder by path.

        Case, ``-``, ``_``, ``/`` and blanks do not matter, nor do words of tuning and precision.
        ``Llama-3.1-70B (12 layers)`` has the first twelve. UsageError for an unknown name, InputError for a file that
        is missing or wrong.
        """
        path = Path(name)
        if path.is_dir():
            path = path / "config.json"
        elif not isinstance(name, os.PathLike) and path.suffix not in (".toml", ".json"):
            whole, count = without_layers(name)
            return cls.named(name) if count is None else cls.load(whole).cut(count)
        if path.suffix == ".toml":
            return _from_toml(path)
        from tracelens.predict.workload.huggingface import read_config

        return cls(**read_config(path))

    @classmethod
    def named(cls, name: str) -> ModelConfig:
        """A model of this package by name or alias, never a file; compared as ``load`` says. UsageError."""
        whole, count = without_layers(name)
        if count is not None:
            return cls.named(whole).cut(count)
        wanted = normalized(name)
        if wanted in cls.names():
            return _bundled(wanted)
        spelled = _spellings()
        stem = spelled.get(spelling_key(name))
        if stem is None:
            bare, sizes = without_sizes(name)
            stem = spelled.get(bare) if sizes else None
            counted = 0 if stem is None else _bundled(stem).parameters().total
            if not any(abs(counted / size - 1) < _SAME_SIZE for size in sizes):
                stem = None
        if stem is None:
            raise UsageError.unknown("model", name, [*cls.names(), *_aliases()])
        return _bundled(stem)

    @classmethod
    @functools.cache
    def names(cls) -> tuple[str, ...]:
        """Names of the models of this package, sorted. Reads the folder, not the files."""
        return tuple(sorted(path.stem for path in bundled(FOLDER).iterdir()))

    @classmethod
    def all(cls) -> tuple[ModelConfig, ...]:
        """Every model of this package, in the order of ``names``."""
        return tuple(_bundled(name) for name in cls.names())

    @classmethod
    def with_windows(cls) -> tuple[ModelConfig, ...]:
        """The models of this package in which layers see a sliding window; the files of the others are not parsed."""
        texts = {name: (bundled(FOLDER) / f"{name}.toml").read_bytes() for name in cls.names()}
        models = (_bundled(name) for name, text in texts.items() if b"window" in text)
        return tuple(model for model in models if model.window is not None)

    def cut(self, count: int) -> ModelConfig:
        """The first ``count`` layers between the same ends. UsageError where it has fewer."""
        layers = self.layers
        if not 0 < count <= len(layers):
            raise UsageError(f"{self.name} has {len(layers)} layers, not {count}")
        name, label = f"{self.name}-{count}-layers", f"{self.label}, {count} layers"
        return replace(self, name=name, label=label, aliases=(), blocks="".join(layers[:count]))

    @property
    def layers(self) -> tuple[str, ...]:
        """``blocks`` in layers, see ``layers_of``."""
        return layers_of(self.blocks)

    @property
    def attention_blocks(self) -> int:
        """How many blocks are attention."""
        return sum(map(is_attention, self.blocks))

    def too_long(self, tokens: int) -> str | None:
        """That sequences of so many tokens have no rows in a learned table of positions; None where they have."""
        if not self.positions or tokens <= self.positions:
            return None
        return f"{self.name} has {self.positions:,} learned positions: sequences of {tokens:,} tokens are beyond it"

    def parameters(self) -> ParameterCount:
        """Elements of all weights, from the same list of operations that FLOPs come from."""
        ops = batch_ops.forward_ops(self, batch=1, sequence=1)
        further = batch_ops.further_token_ops(self, batch=1, sequence=1)
        vision = sum(op.count * op.weights for op in batch_ops.vision_ops(self, images=1, patches=1))
        return ParameterCount(
            total=sum(op.count * op.weights for op in ops) + vision,
            active=sum(op.count * op.active_weights for op in ops),
            vision=vision,
            further=sum(op.count * op.weights for op in further),
        )

    def flops_per_token(self, sequence: int) -> FlopsPerToken:
        """Sums of perf models over a sequence of ``sequence`` tokens, per token. Attention is causal.

        Only matrix products count, as in published model FLOPs: no normalization, activation or lookup. ``training``
        is forward and backward, prediction of further tokens included, without what is computed twice.
        """
        forward = batch_ops.forward_ops(self, batch=1, sequence=sequence)
        training = (*forward, *batch_ops.further_token_ops(self, batch=1, sequence=sequence))
        return FlopsPerToken(
            forward=sum(op.forward_flops for op in forward) / sequence,
            training=sum(op.forward_flops + op.backward_flops for op in training) / sequence,
        )


def expanded(runs: str, own: Sequence[str] = ()) -> str:
    """Blocks written as runs: ``3(*-) 2(*E)`` is ``*-*-*-*E*E``. ``own``: letters besides those of block types.

    ValueError for anything else.
    """
    text, blocks = runs.strip(), ""
    letters = f"[{re.escape(''.join((*block_types(), *own)))}]+"
    run = re.compile(rf"(?:(\d{{1,9}})\(({letters})\)|({letters}))\s*")
    while text:
        found = run.match(text)
        if found is None or int(found[1] or 1) > _MOST_REPEATS:
            raise ValueError(runs)
        blocks += found[2] * int(found[1]) if found[1] else found[3]
        text = text[found.end() :]
    return blocks


@functools.cache
def _aliases() -> dict[str, str]:
    """Each alias, and its model; no file is parsed as a whole."""
    found: dict[str, str] = {}
    for name in ModelConfig.names():
        line = re.search(r"^aliases = .*", (bundled(FOLDER) / f"{name}.toml").read_text(encoding="utf-8"), re.MULTILINE)
        found |= dict.fromkeys(tomllib.loads(line[0])["aliases"] if line else (), name)
    return found


@functools.cache
def _spellings() -> dict[str, str]:
    """What names are compared by, and the models that it stands for."""
    named = _aliases() | {name: name for name in ModelConfig.names()}
    short = {spelling_key(without_point(name)): stem for name, stem in named.items()}
    return short | {spelling_key(name): stem for name, stem in named.items()}


@functools.cache
def _bundled(name: str) -> ModelConfig:
    return _from_toml(bundled(FOLDER) / f"{name}.toml")


def _from_toml(path: BundledFile) -> ModelConfig:
    root = FigureTable.of_file(path, kind="model")
    dtype = root.text("dtype")
    norm = root.text("norm") or "rms"
    if norm not in get_args(Norm):
        raise root.error("norm", 'must be "rms" or "layer"')
    if dtype is not None and DType.parse(dtype) is None:
        raise root.error("dtype", "must be an element type, like bf16")
    figures = root.figures(ModelShape, _NOT_IN_FILES)
    letters, variants = _variants(root)
    tables = {kind.table: kind.figures for kind in block_types().values() if kind.table and kind.figures}
    given = ((name, _inner(root, name, figures_type)) for name, figures_type in tables.items())
    model = ModelConfig(
        name=path.stem,
        label=root.text("label") or path.stem,
        source=root.source("source"),
        aliases=root.texts("aliases"),
        notes=root.texts("notes"),
        blocks=_blocks(root, "blocks", letters),
        mtp_blocks=_blocks(root, "mtp_blocks", letters) if "mtp_blocks" in root else "",
        variants=variants,
        norm="layer" if norm == "layer" else "rms",
        vocab=_vocabulary(root),
        dtype=DType.parse(dtype),
        **{name: _inner(root, name, kind) for name, kind in _TABLES.items()},
        quantization=_quantization(root),
        block_figures=tuple((name, value) for name, value in given if value is not None),
        **figures,
    )
    root.finish()
    return model


def _vocabulary(root: FigureTable) -> int:
    words = root.whole("vocab", least=0)
    if words is None:
        raise root.error("vocab", "must be a whole number, at least 0")
    return words


def _quantization(root: FigureTable) -> Quantization | None:
    """How the released checkpoint holds its weights, part by part; None: in the model's own type."""
    table = root.table("quantization")
    if table is None:
        return None
    table.source("source")
    parts: dict[str, Any] = {part: _narrow(table, part) for part in PARTS}
    found = Quantization(name=table.text("name") or "narrow", **parts)
    table.finish()
    return found


def _narrow(table: FigureTable, part: str) -> NarrowWeights | None:
    given = table.table(part)
    if given is None:
        return None
    held, computed = (DType.parse(given.text(key)) for key in ("dtype", "computed"))
    if held is None or (computed is None and "computed" in given):
        raise given.error("dtype" if held is None else "computed", "must be an element type, like fp8")
    narrow = NarrowWeights(dtype=held, computed=computed, group=given.whole("group") or 0)
    given.finish()
    return narrow


def _blocks(root: FigureTable, key: str, letters: Mapping[str, str]) -> str:
    try:
        blocks = expanded(root.text(key) or "", tuple(letters))
    except ValueError:
        known = " ".join((*block_types(), *letters))
        raise root.error(key, f'must be runs of the letters {known}, like "3(*-) 58(*E)"') from None
    if not blocks:
        raise root.error(key, 'must say the residual blocks, like "32(*-)"')
    return "".join(letters.get(letter, letter) for letter in blocks)


def _variants(root: FigureTable) -> tuple[dict[str, str], tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]]:
    """Letters of a file's own for blocks with other figures: the letters that they stand for, and those figures."""
    types, letters, found = block_types(), dict[str, str](), []
    own = frozenset(string.ascii_letters) - set(types)
    for number, (letter, table) in enumerate(root.tables("variants", own).items()):
        base = table.text("block")
        if base is None or base not in types:
            raise table.error("block", f"must be one of the letters {' '.join(types)}")
        letters[letter] = model_shape.variant_letter(base, number)
        given: dict[str, Any] = {name: table.whole(name) for name in _VARIED}
        given |= {name: _inner(table, name, kind) for name, kind in _TABLES.items()}
        given |= {name: table.flag(name) or None for name in ("sinks", "key_is_value")}
        changes = sorted((name, value) for name, value in given.items() if value is not None)
        found.append((letters[letter], tuple(changes)))
        table.finish()
    return letters, tuple(found)


def _inner(root: FigureTable, name: str, kind: type[Any]) -> Any:
    """A table as the dataclass ``kind``; None when absent."""
    table = root.table(name)
    if table is None:
        return None
    found = kind(**table.figures(kind))
    table.finish()
    return found


def weights_of_name(model: object) -> str | None:
    """The type of weights that the name of a checkpoint says; None for a file, which says its own, and other names.

    >>> weights_of_name("Qwen/Qwen3-8B-AWQ"), weights_of_name("qwen3-8b"), weights_of_name("awq/config.json")
    ('int4', None, None)
    """
    if not isinstance(model, str) or model.endswith((".json", ".toml")) or Path(model).is_dir():
        return None
    return spelled_type(model.rpartition("/")[2])


def unread_weights(model: object) -> str | None:
    """What a step of training makes of the type of weights that a checkpoint's name says; None where it says none."""
    said = weights_of_name(model)
    if said in (None, "bf16", "fp16"):
        return None
    return f"weights in {said}, as the name {model} says, are not read: a training step computes in --precision"
