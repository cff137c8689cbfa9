"""How names of models are spelled: what of a name says which shape it is."""

from __future__ import annotations

import re

from tracelens.files.toml_figures import normalized
from tracelens.lazy.patterns import lazy_pattern

#: Words of tuning, precision, data, makers and releases, which change no shape.
_FILLER = lazy_pattern(
    r"instruct|it|base|chat|hf|pt|sft|lora|qlora|peft|dpo|thinking|preview|exp|model|meta|nvidia|amd|pretrain(ing|ed)?"
    r"|fine-?tun(e|ing|ed)|dropless|tokendrop|dynamic|static|block|kv|quantized|ocp"
    r"|(nv|mx)?fp(4|8|16)|bf16|int[48]|awq|gptq|w\d{1,2}a\d{1,2}|per-?tensor|v[01](\.\d{1,2})?|2[456](0[1-9]|1[0-2])|0[1-9]\d\d|\d{1,4}k"
)
_SIZE = lazy_pattern(r"a?(\d{1,5}(?:\.\d{1,4})?)([bt])")
_LAYERS = lazy_pattern(r"[\s,_(-](?:proxy[\s_-])?(\d{1,4})[\s_-]?(layers?|l)\)?$", re.IGNORECASE)


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
    return [word for word in last.split("-") if word and not _FILLER.fullmatch(word)]


def _joined(words: list[str]) -> str:
    """Together, but numbers apart from numbers."""
    return re.sub(r"(?<=\d)[.\-](?=\d)", "_", "-".join(words)).replace("-", "")
