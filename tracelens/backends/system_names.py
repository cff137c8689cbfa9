"""How published tables spell devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracelens.backends.system import System
from tracelens.errors import UsageError
from tracelens.files.toml_figures import normalized

#: How far a stated size of memory may be from the file's: with or without what error correction takes.
_SIZE_SPREAD = 0.12
#: Words of a device's name that no file's name or alias needs.
_PLAIN_WORDS = frozenset(
    {"nvidia", "amd", "instinct", "gpu", "tensor", "core", "google", "hbm3", "hbm3e", "oam", "gpus"}
)


def system_of(text: str) -> tuple[System, str | None]:
    """The device, limited to the power that its name states (``H100-96GB-HBM2e-500W``), and what was read as what."""
    text = re.sub(r"^\s*\d+\s*[x×]\s*|\s*[x×]\s*\d+\s*$", "", text.strip())
    try:
        return System.load(text).in_a_node(), None
    except UsageError as error:
        unknown = error
    word = normalized(re.sub(r"[(),]", " ", text)).strip("-")
    watts = re.search(r"(?:^|-)(\d{3,4})-?w(?:atts?)?(?:-|$)", word)
    if watts:
        word = word.replace(watts[0], "-", 1).strip("-")
    for tried, gigabytes in _device_names(word):
        try:
            found = System.load("-".join(tried)).in_a_node()
        except UsageError:
            continue
        if gigabytes and not _has_memory(found, gigabytes):
            continue
        note = f"{text} read as {found.device.name}"
        return found.at_power(float(watts[1]) if watts else None), note + (f" at {watts[1]} W" if watts else "")
    raise unknown


def _device_names(word: str) -> Iterator[tuple[list[str], int | None]]:
    """Words to look for a device by, the likeliest first; with a size where that is none of them."""
    parts = [part for part in word.split("-") if part not in _PLAIN_WORDS]
    sizes = [part for part in parts if re.fullmatch(r"\d+gi?b?", part)]
    others = [part for part in parts if part not in sizes]
    yield parts, None
    yield [*others, *sizes], None
    yield [*others[:1], *sizes, *others[1:]], None
    yield [*others[:1], "sxm", *sizes], None
    plain = [part for part in others if not part.startswith(("sxm", "nvl", "hgx", "dgx", "hbm"))]
    gigabytes = int(re.sub(r"\D", "", sizes[0])) if sizes else None
    yield plain, gigabytes
    # One word among those of a machine: "A3 Mega H100", "BM.GPU.H100.8".
    pieces = [piece for part in plain for piece in part.split(".")]
    yield from (([piece], gigabytes) for piece in pieces if len(pieces) > 1)


def _has_memory(system: System, gigabytes: int) -> bool:
    """Whether the device has about that much."""
    hbm = system.device.hbm
    return hbm is not None and hbm.nominal_gib is not None and abs(hbm.nominal_gib / gigabytes - 1) < _SIZE_SPREAD
