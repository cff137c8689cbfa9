"""Replays one op as a trace recorded it; needs PyTorch only. Written by ``tracelens replay``.

python THIS_FILE [--device cuda|cpu] [--repeats 100]
"""

import argparse
import functools
import sys
import time
from typing import Any

CALL: dict[str, Any] = {}  # what was recorded
_TYPES = {
    "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "signed char": "int8", "char": "int8",
    "unsigned char": "uint8", "bool": "bool", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz", "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip
# c10::ScalarType, by which schemas record a dtype.
_SCALAR_TYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
                 "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"]  # fmt: skip


def tensor(torch: Any, slot: Any, device: str, limit: int) -> Any:
    """Values are random; whole numbers are below ``limit``, so that they are valid as positions."""
    dtype = getattr(torch, _TYPES[slot["dtype"]])
    shape = slot["shape"]
    strides = slot["strides"]
    if strides is None or len(strides) != len(shape):
        strides = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    length = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex or dtype.itemsize > 1 else torch.float32
        values = torch.randn(length, device=device, dtype=wide).to(dtype)
    else:
        values = torch.randint(0, 2 if dtype == torch.bool else limit, (length,), device=device).to(dtype)
    return torch.as_strided(values, shape, strides)


def value(torch: Any, slot: Any, device: str, limit: int) -> Any:
    """One recorded argument."""
    if slot["kind"] == "tensor":
        return tensor(torch, slot, device, limit)
    if slot["kind"] == "tensors":
        return [None if each is None else tensor(torch, each, device, limit) for each in slot["tensors"]]
    return slot["value"]


def converted(torch: Any, argument: Any, given: Any, device: str) -> Any:
    """What a schema records as a number or text, as the call takes it."""
    kind = str(argument.type)
    if given is None and "Optional" not in kind and argument.has_default_value():
        return argument.default_value
    if "Device" in kind and given is not None:
        return torch.device(device)
    if argument.name == "dtype" and isinstance(given, int):
        return getattr(torch, _SCALAR_TYPES[given])
    if argument.name in ("layout", "memory_format", "generator"):
        return None
    if "float" in kind and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    return given


def call(torch: Any, device: str) -> Any:
    """A function that calls the op, and its arguments."""
    sizes = [size for slot in CALL["arguments"] if slot["kind"] == "tensor" for size in slot["shape"]]
    limit = max(min(sizes, default=1), 1)
    given = [value(torch, slot, device, limit) for slot in CALL["arguments"]]
    packet = getattr(getattr(torch.ops, CALL["namespace"]), CALL["name"])
    problems = []
    for overload in packet.overloads():
        op = getattr(packet, overload)
        arguments = op._schema.arguments
        if len(arguments) != len(given):
            continue
        ready = [converted(torch, a, v, device) for a, v in zip(arguments, given, strict=True)]
        positional = [v for a, v in zip(arguments, ready, strict=True) if not a.kwarg_only]
        named = {a.name: v for a, v in zip(arguments, ready, strict=True) if a.kwarg_only}
        try:
            op(*positional, **named)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            problems.append(f"{op}: {str(error).splitlines()[0]}")
            continue
        return functools.partial(op, *positional, **named), given
    raise SystemExit(f"{CALL['namespace']}::{CALL['name']} cannot be called here:\n" + "\n".join(problems))


def measured_us(torch: Any, function: Any, device: str, repeats: int) -> float:
    """Mean time of a call."""
    for _ in range(min(10, repeats)):
        function()
    if device.startswith("cuda"):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            function()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - begin) * 1e6 / repeats


def shapes(result: Any) -> Any:
    """The shapes of all tensors of a result."""
    if isinstance(result, (list, tuple)):
        return [shapes(each) for each in result]
    return list(result.shape) if hasattr(result, "shape") else result


def main() -> None:
    import torch  # type: ignore

    parser = argparse.ArgumentParser(description=f"{CALL['namespace']}::{CALL['name']}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        function, _ = call(torch, asked.device)
        lines = [f"{CALL['namespace']}::{CALL['name']} -> {shapes(function())}"]
        time_us = measured_us(torch, function, asked.device, asked.repeats)
    times = {f"measured now on {asked.device}": time_us, **CALL["expected_us"]}
    lines += [f"{us:12.2f} us {what}" for what, us in times.items()]
    stream = sys.stdout
    stream.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
