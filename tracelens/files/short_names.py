"""Kernel names short enough to read; the whole name stands beside, as a tooltip or in the data."""

from __future__ import annotations

from tracelens.lazy.patterns import lazy_pattern

#: Letters of a short name; a longer one keeps its beginning and its end, which tell such names apart.
MAX_LETTERS = 72
#: Levels of template arguments that stay; what is deeper becomes an ellipsis.
_TEMPLATE_LEVELS = 2
_SCOPE = lazy_pattern(r"\b[A-Za-z_]\w*+::")
_LAMBDA = lazy_pattern(r"(?:::)?\{lambda[^{}]*+\}")
_TENSILE = lazy_pattern(r"_MT\d++x\d++x\d++")


def short_kernel_name(name: str) -> str:
    """
    >>> short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
    ...                   "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::Half>)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<Half>, array<3ul>>'
    >>> short_kernel_name("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEvPT0_PT_PfS4_i")
    'add_rmsnorm_quant_kernel'
    >>> short_kernel_name("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x224x64_MI16x16x1_SN_LDSB1_AFC1")
    'Cijk_Alik_Bljk_BBS_BH MT256x224x64'
    >>> short_kernel_name("aten::mm")
    'aten::mm'
    """
    if name.startswith("Cijk_"):
        tile = _TENSILE.search(name)
        return "_".join(name.split("_")[:5]) + (f" {tile[0][1:]}" if tile else "")
    name = _last_identifier(name) if name.startswith("_ZN") else name
    if name.startswith("void ") or "<" in name or "(anonymous" in name:
        plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("std::array<char*", "array<#")
        name = _LAMBDA.sub("", _without_arguments(_SCOPE.sub("", plain))) or name
    if len(name) <= MAX_LETTERS:
        return name
    tail = MAX_LETTERS // 3
    return f"{name[: MAX_LETTERS - tail - 1]}…{name[-tail:]}"


def _last_identifier(mangled: str) -> str:
    """The innermost name of ``_ZN<length><name>...``, the whole text where it is none."""
    at, found = len("_ZN"), mangled
    while at < len(mangled) and mangled[at].isdecimal() and mangled[at].isascii():
        digits = at
        while at < min(len(mangled), digits + 4) and mangled[at].isdecimal() and mangled[at].isascii():
            at += 1
        length = int(mangled[digits:at])
        found, at = mangled[at : at + length] or mangled, at + length
    return found


def _without_arguments(name: str) -> str:
    """Without the list of parameters, and with template arguments only so deep."""
    kept: list[str] = []
    depth = parentheses = 0
    for letter in name:
        if letter == "(":
            parentheses += 1
        elif letter == ")":
            parentheses -= 1
        elif parentheses:
            continue
        elif letter == ">" and kept[-1:] != ["-"]:
            if depth <= _TEMPLATE_LEVELS:
                kept.append(">")
            depth -= 1
        elif letter == "<":
            depth += 1
            if depth <= _TEMPLATE_LEVELS:
                kept.append("<")
            elif depth == _TEMPLATE_LEVELS + 1:
                kept.append("<…>")
        elif depth <= _TEMPLATE_LEVELS:
            kept.append(letter)
    return " ".join("".join(kept).split()).replace(" >", ">").replace("array<#, ", "array<").strip()
