"""Replays one op as a trace recorded it; needs PyTorch only. Written by ``tracelens replay``.

python THIS_FILE [--device cuda|cpu] [--repeats 100] [--import LIBRARY]
"""

import argparse
import functools
import importlib
import math
import sys
import time
from typing import Any

CALL: dict[str, Any] = {}  # what was recorded
NAME = f"{CALL.get('namespace')}::{CALL.get('name')}"
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

# For what every call is given and older recordings do not say.
_STAND_INS = {"number": 1, "float": 1.0, "int": 0, "bool": False}


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
    if given is None and "Optional" not in kind:
        return argument.default_value if argument.has_default_value() else _STAND_INS.get(kind)
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
    """A function that calls the op, and what of its arguments was not recorded."""
    packet = getattr(getattr(torch.ops, CALL["namespace"]), CALL["name"], None)
    if packet is None:
        raise SystemExit(f"{NAME}: PyTorch has no such op here; name the library that registers it with --import")
    sizes = [size for slot in CALL["arguments"] if slot["kind"] == "tensor" for size in slot["shape"]]
    limit = max(min(sizes, default=1), 1)
    given = [value(torch, slot, device, limit) for slot in CALL["arguments"]]
    problems: list[tuple[int, str, int]] = []
    for overload in packet.overloads():
        op = getattr(packet, overload)
        if len(op._schema.arguments) != len(given):
            continue
        function, taken, missing = prepared(torch, op, given, device)
        try:
            function()
        except (TypeError, RuntimeError, NotImplementedError) as error:
            problems.append((*problem(torch, error, missing, device), len(problems)))
            continue
        return function, taken
    what = (
        min(problems, key=lambda found: (found[0], found[2]))[1] if problems else f"none takes {len(given)} arguments"
    )
    raise SystemExit(f"{NAME} cannot be called here: {what}")


def prepared(torch: Any, op: Any, given: list[Any], device: str) -> Any:
    """A function that calls an overload; what was not recorded and is taken as something; what is missing."""
    named, positional, taken, missing = {}, [], [], []
    for argument, recorded in zip(op._schema.arguments, given, strict=True):
        ready = converted(torch, argument, recorded, device)
        if argument.kwarg_only:
            named[argument.name] = ready
        else:
            positional.append(ready)
        if ready is None and "Optional" not in str(argument.type):
            missing.append(argument.name)
        elif recorded is None and ready is not None and not argument.has_default_value():
            taken.append(f"{argument.name}={ready}")
    return functools.partial(op, *positional, **named), taken, missing


def problem(torch: Any, error: Exception, missing: list[str], device: str) -> tuple[int, str]:
    """(rank, what) of a call that failed, the most telling first."""
    said = str(error).splitlines()[0]
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in said:
        raise error
    if isinstance(error, NotImplementedError) and "backend" in said:
        return 0, f"it has no implementation for {device}"
    if missing:
        return 1, f"{' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not recorded"
    return 2, said.split(". ")[0][:300]


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


def size_gb(torch: Any) -> float:
    """Of all tensors that the op is given."""
    slots = [each for slot in CALL["arguments"] for each in (slot.get("tensors") or [slot]) if each and "shape" in each]
    return 1e-9 * sum(int(math.prod(slot["shape"]) * getattr(torch, _TYPES[slot["dtype"]]).itemsize) for slot in slots)


def main() -> None:
    import torch  # type: ignore

    parser = argparse.ArgumentParser(description=NAME)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--import", dest="libraries", action="append", default=[], metavar="LIBRARY",
                        help="a Python package that registers the op, such as fbgemm_gpu or vllm")  # fmt: skip
    asked = parser.parse_args()
    for library in asked.libraries:
        importlib.import_module(library)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            function, taken = call(torch, asked.device)
            lines = [f"{NAME} -> {shapes(function())}"]
            time_us = measured_us(torch, function, asked.device, asked.repeats)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise SystemExit(
            f"{NAME}: not enough memory on {asked.device}: its tensors take {size_gb(torch):.2f} GB"
        ) from None
    lines += [f"not recorded, so taken as: {', '.join(taken)}"] if taken else []
    times = {f"measured now on {asked.device}": time_us, **CALL["expected_us"]}
    lines += [f"{us:12.2f} us {what}" for what, us in times.items()]
    stream = sys.stdout
    stream.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
