"""What a kernel's name says apart from its tile sizes, template arguments and numbering."""

from __future__ import annotations

import re
from functools import lru_cache

from tracelens.lazy.patterns import lazy_pattern

#: The functor of PyTorch's elementwise and reduction kernels is what tells them apart.
_FUNCTOR = lazy_pattern(r"[Ff]unctor|_kernel_cuda|Op")
_WORD = lazy_pattern(r"\w+")
#: Characters of a name in a sentence.
_WIDTH = 48
_NUMBERED = lazy_pattern(r"_\d+(?:_kd)?$|(?:_\d+)?\.kd$")


@lru_cache(maxsize=1 << 14)
def family(kernel: str) -> str:
    """The kernel without what builds and problem sizes change.

    >>> family("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"), family("triton_poi_fused_add_gelu_7")
    ('nvjet_tst', 'triton_poi_fused_add_gelu')
    >>> family("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    >>> family("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    'ampere_bf16_s16816gemm_bf16'
    >>> family("void (anonymous namespace)::softmax_warp_forward<float, float>(float*)")
    'softmax_warp_forward'
    >>> family("void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>(int)")
    'vectorized_layer_norm_kernel'
    """
    # As GNU's demangler and as CUDA's call a namespace without a name
    named = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    head, _, arguments = named.partition("<")
    name = head.partition("(")[0].strip()
    for prefix in ("void ", "int ", "float "):
        name = name.removeprefix(prefix)
    name = name.rpartition("::")[2] or head
    if name.startswith("triton"):
        return _NUMBERED.sub("", name)
    is_generic = "elementwise" in name or "reduce" in name
    functor = next((word for word in _WORD.findall(arguments) if _FUNCTOR.search(word)), None) if is_generic else None
    words = name.split("_")
    # Sizes such as 128x64 or MT256x32x16 end what names have in common
    size = next((i for i, word in enumerate(words) if i and re.search(r"\d+x\d+", word)), len(words))
    kept = [word for word in words[:size] if not word.isdecimal()] or words[:1]
    return "_".join(kept) + (f"<{functor}>" if functor else "")


def different(before: str, after: str) -> tuple[str, str]:
    """Two kernels as short as tells them apart."""
    short = family(before), family(after)
    if short[0] != short[1]:
        return short
    same = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    return _around(before, same), _around(after, same)


def _around(name: str, at: int) -> str:
    """The name where it begins to differ, short enough for a sentence."""
    if len(name) <= _WIDTH:
        return name
    start = max(0, min(at - _WIDTH // 4, len(name) - _WIDTH))
    return ("…" if start else "") + name[start : start + _WIDTH] + ("…" if start + _WIDTH < len(name) else "")
