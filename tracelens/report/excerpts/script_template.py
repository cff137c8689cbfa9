"""Replays an op as a trace recorded it, and judges a candidate; needs PyTorch only. Written by ``tracelens replay``.

python THIS_FILE [--candidate FILE.py] [--device cuda|cpu] [--repeats 100] [--import LIBRARY]

FILE.py has a function called like the op (for ``aten::mm``: ``mm``). It takes what the op takes, arguments behind the
star of the op's schema by name, and returns what the op returns, or changes what the op changes, and nothing else.
It is called with every recorded shape and random values, before and after it is timed. Right is an element that is
off the op run in a wider type by no more than ``TOLERANCES`` allows, and twice what the op itself is off at most.

A time is the median of device time (events on its stream) with cold caches: a large buffer is written before each call.

Exit code: 0 measured, and the candidate is right; 1 the candidate is wrong or fails, and no time of it is shown;
2 it could not be judged here, or only for calls of less than 95 % of the op's device time.
"""

import argparse
import importlib
import importlib.util
import itertools
import math
import statistics
import sys
import time
from typing import Any

RECORDED: dict[str, Any] = {}  # what was recorded
NAME = f"{RECORDED.get('namespace')}::{RECORDED.get('name')}"
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

# (relative, absolute): the defaults of torch.testing.assert_close, PyTorch 2.13; types of 8 bits: one step of their
# fraction (OCP 8-bit floating point, 3 and 2 bits). Whole numbers and booleans have to be equal.
TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7), "float8_e4m3fn": (0.125, 1e-5),
    "float8_e4m3fnuz": (0.125, 1e-5), "float8_e5m2": (0.25, 1e-5), "float8_e5m2fnuz": (0.25, 1e-5),
}  # fmt: skip
# How often what the op itself is off, at most: as FlashAttention's own tests judge its kernels (test_flash_attn.py).
TIMES_ITS_OWN = 2
# Share of the largest element that the op itself may be off: less than half a step of the coarsest type, 2 bits.
_LIKE = 0.125
_WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "complex64": "complex128"}
# What is written before each call: more than the last caches hold (50 MB of L2 on H100; 256 MB on MI300X, in front of
# its memory). A CPU's clock is the host's.
_FLUSHED_BYTES = {"cuda": 256 << 20, "hip": 512 << 20, "cpu": 64 << 20}

# Share of the op's device time that a candidate has to be right for.
_LEAST_JUDGED = 0.95
# For what every call is given and older recordings do not say.
_STAND_INS = {"number": 1, "float": 1.0, "int": 0, "bool": False}


class RefusedError(Exception):
    """The candidate is; in a sentence."""


class UnjudgedError(Exception):
    """Nothing can be said of a call here; in a sentence."""


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


class Arguments:
    """Of one call, in the order of the schema. ``written``: which of them the op changes."""

    def __init__(self, values: list[Any], names: list[str], written: list[bool]) -> None:
        self.values, self.written = values, written
        self._positional = [value for value, name in zip(values, names, strict=True) if not name]
        self._named = {name: value for value, name in zip(values, names, strict=True) if name}
        self.names = names

    def given_to(self, function: Any) -> Any:
        return function(*self._positional, **self._named)


class Bench:
    """PyTorch on a device: its op, its arrays (``xp``), and its clock."""

    def __init__(self, torch: Any, device: str, repeats: int) -> None:
        self.xp, self.device, self._repeats = torch, device, repeats
        self.on_gpu = device.startswith("cuda")
        if self.on_gpu:
            torch.cuda.set_device(torch.device(device).index or 0)
        self._op: Any = None
        kind = ("hip" if torch.version.hip else "cuda") if self.on_gpu else "cpu"
        self._flushed = torch.empty(_FLUSHED_BYTES[kind], dtype=torch.int8, device=device)

    def prepare(self, call: Any) -> list[str]:
        """Finds the overload that takes the call; what was not recorded and is taken as something. UnjudgedError."""
        torch = self.xp
        packet = getattr(getattr(torch.ops, RECORDED["namespace"]), RECORDED["name"], None)
        if packet is None:
            raise UnjudgedError("PyTorch has no such op here; name the library that registers it with --import")
        problems: list[tuple[int, int, str]] = []
        for overload in packet.overloads():
            self._op = getattr(packet, overload)
            if len(self._op._schema.arguments) != len(call["arguments"]):
                continue
            taken, missing = stand_ins(torch, self._op, call, self.device)
            try:
                self.arguments(call, 0).given_to(self._op)
            except (TypeError, RuntimeError, NotImplementedError) as error:
                rank, said = problem(torch, error, missing, self.device)
                problems.append((rank, len(problems), said))
                continue
            return taken
        raise UnjudgedError(min(problems)[2] if problems else f"none takes {len(call['arguments'])} arguments")

    def op(self, arguments: Arguments) -> Any:
        return arguments.given_to(self._op)

    def seed(self, seed: int) -> None:
        self.xp.manual_seed(seed)

    def arguments(self, call: Any, seed: int) -> Arguments:
        """The same for the same seed."""
        self.seed(seed)
        sizes = [size for slot in call["arguments"] if slot["kind"] == "tensor" for size in slot["shape"]]
        limit = max(min(sizes, default=100), 1)
        values, names, written = [], [], []
        for argument, slot in zip(self._op._schema.arguments, call["arguments"], strict=True):
            values.append(converted(self.xp, argument, value(self.xp, slot, self.device, limit), self.device))
            names.append(argument.name if argument.kwarg_only else "")
            written.append(argument.alias_info is not None and argument.alias_info.is_write)
        return Arguments(values, names, written)

    def wider(self, arguments: Arguments) -> Arguments:
        """With tensors, and types that are named, of twice the width."""
        return Arguments([self._widened(each) for each in arguments.values], arguments.names, arguments.written)

    def _widened(self, each: Any) -> Any:
        if isinstance(each, list):
            return [self._widened(one) for one in each]
        dtype = each.dtype if isinstance(each, self.xp.Tensor) else each
        known = _WIDER.get(str(dtype).removeprefix("torch.")) if isinstance(dtype, self.xp.dtype) else None
        if known is None:
            return each
        return each.to(getattr(self.xp, known)) if isinstance(each, self.xp.Tensor) else getattr(self.xp, known)

    def exact(self, call: Any, seed: int) -> Any:
        """What the op gives in a wider type; None where it has none."""
        tf32, self.xp.backends.cudnn.allow_tf32 = self.xp.backends.cudnn.allow_tf32, False
        try:
            return outputs(self.op, self.wider(self.arguments(call, seed)))
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if out_of_memory(self.xp, error):
                raise
            return None
        finally:
            self.xp.backends.cudnn.allow_tf32 = tf32

    def comparable(self, array: Any) -> Any:
        """The array in the widest type of its kind."""
        dtype = array.dtype
        if dtype.is_complex:
            return array.to(self.xp.complex128)
        return array.to(self.xp.float64 if dtype.is_floating_point else self.xp.int64)

    def done(self, found: list[Any]) -> list[Any]:
        """Copies of results as they stand in the order of the stream, when the device is done."""
        copies = [each.clone() if isinstance(each, self.xp.Tensor) else each for each in found]
        if self.on_gpu:
            self.xp.cuda.synchronize()
        return copies

    def refill(self, old: Any, new: Any) -> None:
        """Values of a tensor into the memory of one like it."""
        flat = [self.xp.as_strided(t, (t.untyped_storage().nbytes() // t.element_size(),), (1,), 0) for t in (old, new)]
        flat[0].copy_(flat[1])

    def times_us(self, functions: list[Any]) -> list[float]:
        """The median device time of each, by turns, with cold caches."""
        for function in functions * min(3, self._repeats):
            function()
        times: list[list[float]] = [[] for _ in functions]
        for _ in range(self._repeats):
            for function, found in zip(functions, times, strict=True):
                self._flushed.zero_()
                found.append(self._timed(function))
        if self.on_gpu:
            self.xp.cuda.synchronize()
        return [statistics.median(each if isinstance(each, float) else each() for each in found) for found in times]

    def _timed(self, function: Any) -> Any:
        """The time (us), or what says it once the device is done."""
        if not self.on_gpu:
            begin = time.perf_counter()
            function()
            return (time.perf_counter() - begin) * 1e6
        start, end = (self.xp.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        return lambda: float(start.elapsed_time(end)) * 1e3


def stand_ins(torch: Any, op: Any, call: Any, device: str) -> tuple[list[str], list[str]]:
    """What of a call was not recorded and is taken as something; what is missing."""
    taken, missing = [], []
    for argument, slot in zip(op._schema.arguments, call["arguments"], strict=True):
        if slot["kind"] != "value":
            continue
        ready = converted(torch, argument, slot["value"], device)
        if ready is None and "Optional" not in str(argument.type):
            missing.append(argument.name)
        elif slot["value"] is None and ready is not None and not argument.has_default_value():
            taken.append(f"{argument.name}={ready}")
    return taken, missing


def problem(torch: Any, error: Exception, missing: list[str], device: str) -> tuple[int, str]:
    """(rank, what) of a call that failed, the most telling first."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if out_of_memory(torch, error):
        raise error
    if isinstance(error, NotImplementedError) and "backend" in said:
        return 0, f"it has no implementation for {device}"
    if missing:
        return 1, f"{' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not recorded"
    return 2, said.split(". ")[0][:300]


def out_of_memory(torch: Any, error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


def outputs(function: Any, arguments: Arguments) -> list[Any]:
    """What a call returns and what it writes, one after the other."""
    found: list[Any] = []

    def add(each: Any) -> None:
        if isinstance(each, (list, tuple)):
            for one in each:
                add(one)
        else:
            found.append(each)

    add(function(arguments))
    add([each for each, is_written in zip(arguments.values, arguments.written, strict=True) if is_written])
    return found


def is_array(each: Any) -> bool:
    return hasattr(each, "shape") and hasattr(each, "dtype")


def difference(bench: Any, got: Any, own: Any, exact: Any) -> str:
    """How an array is off by more than is allowed, in words; empty where it is not.

    ``own``: what the op gave; ``exact``: in a wider type, None where it has none. Where these are not finite, the array
    has to be as the op's.
    """
    if not is_array(got) or tuple(got.shape) != tuple(own.shape) or got.dtype != own.dtype:
        given = f"{list(got.shape)} of {got.dtype}" if is_array(got) else type(got).__name__
        return f"it is {given}, and not {list(own.shape)} of {own.dtype}"
    xp, (relative, absolute) = bench.xp, TOLERANCES.get(str(own.dtype).removeprefix("torch."), (0.0, 0.0))
    got, own = bench.comparable(got), bench.comparable(own)
    is_wider = bool(relative) and exact is not None
    exact = bench.comparable(exact) if is_wider else own
    finite = xp.isfinite(exact) & xp.isfinite(own)
    if not math.prod(finite.shape):
        return ""
    if not bool(finite.any()):
        raise UnjudgedError("its result is not finite for random values")
    none = exact * 0
    size, own_off = (abs(xp.where(finite, each, none)) for each in (exact, own - exact))
    if float(own_off.max()) > _LIKE * float(size.max()):  # In a wider type the op does something else
        is_wider, exact, size = False, own, abs(xp.where(finite, own, none))
    # Beside its zeros a result is as exact as its other elements; without a wider type nothing says how exact
    slack = TIMES_ITS_OWN * own_off.max() if is_wider else relative * (size**2 * 1.0).mean() ** 0.5
    allowed = absolute + relative * size + slack
    off = abs(xp.where(finite, got - exact, none)) * 1.0
    same = (got == own) | (xp.isnan(got) & xp.isnan(own))
    wrong = ~same & ~(finite & (off <= allowed))
    if not bool(wrong.any()):
        return ""
    off = xp.where(xp.isnan(off) | ~finite, off * 0 + math.inf, off)
    at = int(xp.where(wrong, off - allowed, off * 0 - math.inf).reshape(-1).argmax())
    worst, most = (float((each + 0 * allowed).reshape(-1)[at]) for each in (xp.where(wrong, off, allowed), allowed))
    return (
        f"{int(wrong.sum())} of {math.prod(finite.shape)} elements are wrong, one by {worst:.3g}; {most:.3g} is allowed"
    )


class Reference:
    """What the op gives for a call and a seed; ``exact`` where it can be run in a wider type, else its own."""

    def __init__(self, bench: Any, call: Any, seed: int) -> None:
        self._bench = bench
        given, before = bench.arguments(call, seed), bench.arguments(call, seed)
        self.own = outputs(bench.op, given)
        self.changes = any(is_written and not alike(bench, [now], [then]) for now, then, is_written
                           in zip(given.values, before.values, given.written, strict=True))  # fmt: skip
        exact = bench.exact(call, seed)
        self.is_wider = exact is not None and len(exact) == len(self.own)
        self._exact = exact if exact is not None and self.is_wider else [None] * len(self.own)
        again = bench.arguments(call, seed)
        bench.seed(seed + 1)
        second = outputs(bench.op, again)
        # What a seed changes is no result to hold another against
        self._compared = [is_array(one) and not difference(bench, other, one, None)
                          for one, other in zip(self.own, second, strict=True)]  # fmt: skip
        if not any(self._compared):
            raise UnjudgedError(
                "its result is random" if any(map(is_array, self.own)) else "it has no result to compare"
            )

    def hold(self, found: list[Any]) -> None:
        """RefusedError, saying where."""
        if len(found) != len(self.own):
            raise RefusedError(f"it gives {len(found)} results, the op {len(self.own)}")
        for i, (got, own, exact, is_compared) in enumerate(
            zip(found, self.own, self._exact, self._compared, strict=True)
        ):
            said = difference(self._bench, got, own, exact) if is_compared else ""
            if said:
                raise RefusedError(f"result {i + 1}: {said}" if len(found) > 1 else said)


def tensors(values: list[Any]) -> list[Any]:
    return [one for each in values for one in (each if isinstance(each, list) else [each]) if is_array(one)]


def alike(bench: Any, one: list[Any], other: list[Any]) -> bool:
    """Whether all tensors of two lists are equal."""
    for a, b in zip(tensors(one), tensors(other), strict=True):
        if tuple(a.shape) != tuple(b.shape) or not bool((bench.comparable(a) == bench.comparable(b)).all()):
            return False
    return True


def judge(bench: Any, candidate: Any, call: Any, seed: int, given: Arguments | None = None) -> Reference:
    """What a candidate was held to. RefusedError where a result is wrong, or it changes what the op does not.

    ``given``: arguments of an earlier call, whose memory gets the new values.
    """
    reference = Reference(bench, call, seed)
    new, before = bench.arguments(call, seed), bench.arguments(call, seed)
    if given is not None:
        for old, each in zip(tensors(given.values), tensors(new.values), strict=True):
            bench.refill(old, each)
        new = given
    try:
        found = bench.done(outputs(lambda arguments: arguments.given_to(candidate), new))
    except Exception as error:
        raise RefusedError(f"it fails: {type(error).__name__}: {str(error)[:300]}") from error
    reference.hold(found)
    for each, old, is_written in zip(new.values, before.values, new.written, strict=True):
        if not is_written and not alike(bench, [each], [old]):
            raise RefusedError("it changes an argument that the op leaves as it was")
    return reference


def measure(bench: Any, call: Any, candidate: Any) -> tuple[list[float], list[str]]:
    """Times (us) of the op and of the candidate, if any; what to say of the call. RefusedError or UnjudgedError."""
    taken = bench.prepare(call)
    said = [f"not recorded, so taken as: {', '.join(taken)}"] if taken else []
    given = bench.arguments(call, 0)
    functions = [lambda: bench.op(given)]
    if candidate is None:
        return bench.times_us(functions), said
    first, second = (judge(bench, candidate, call, seed) for seed in (10, 20))
    if alike(bench, first.own, second.own) and not (first.changes or second.changes):
        raise UnjudgedError("its result is the same whatever its random values are, so that any candidate may be right")
    own = bench.arguments(call, 0)
    try:
        times = bench.times_us([*functions, lambda: own.given_to(candidate)])
    except RuntimeError as error:
        raise RefusedError(f"it fails while it is timed: {str(error)[:300]}") from error
    if not judge(bench, candidate, call, 30, own).is_wider:
        said.append("compared with the op itself: it does not run in a wider type")
    return times, said


def shapes(result: Any) -> Any:
    """The shapes of all tensors of a result."""
    if isinstance(result, (list, tuple)):
        return [shapes(each) for each in result]
    return list(result.shape) if hasattr(result, "shape") else result


def step_us(factor: float) -> float | None:
    """How long the step takes when the op takes ``factor`` times as long, between replays of the recording."""
    points = RECORDED["step"]["us_by_factor"]
    for (low, before), (high, after) in itertools.pairwise(points):
        if low <= factor <= high:
            return float(before + (after - before) * (factor - low) / (high - low))
    return None


def gains(judged: list[tuple[float, list[float]]]) -> list[str]:
    """What a candidate gains. ``judged``: (share of the op's device time, times of op and candidate) of each call."""
    share = sum(weight for weight, _ in judged)
    after = sum(weight * candidate / own for weight, (own, candidate) in judged)
    factor = 1 - share + after
    step, rest = RECORDED["step"], 1 - share
    lines = [f"right for {len(judged)} distinct calls, {100 * share:.1f} % of the op's device time in the recording"]
    with_rest = f"; with the other {100 * rest:.1f} % as recorded {1 / factor:.2f}x" if rest > 5e-4 else ""
    lines.append(f"the op: {share / after:.2f}x as fast, weighted by recorded time{with_rest}")
    before, found = step_us(1.0), step_us(factor)
    if before is None or found is None:
        return [*lines, f"the {step['what']}: not known where the op takes {factor:.2f} times as long"]
    shown = f"{before / 1e3:.3f} -> {found / 1e3:.3f} ms ({100 * (found / before - 1):+.2f} %)"
    return [*lines, f"the {step['what']}: {shown}, as `tracelens whatif TRACE --scale {NAME}={factor:.4f}` says"]


def run(bench: Any, candidate: Any) -> tuple[int, list[str]]:
    """Exit code and what to print."""
    lines: list[str] = []
    judged: list[tuple[float, list[float]]] = []
    for call in RECORDED["calls"]:
        head = f"{NAME} {'; '.join(shown(slot) for slot in call['arguments'])}"
        weight = f"{call['count']} calls, {100 * call['share']:.1f} % of the op's device time"
        try:
            times, said = measure(bench, call, candidate)
            result = shapes(bench.op(bench.arguments(call, 0)))
        except UnjudgedError as why:
            lines += [f"{head}   ({weight})", f"cannot be called here: {why}"]
            continue
        except RefusedError as why:
            return 1, [f"{head}: the candidate is refused: {why}"]
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(bench.xp, error):
                raise
            size = f"its tensors take {size_gb(bench.xp, call):.2f} GB"
            lines += [f"{head}   ({weight})", f"not enough memory on {bench.device}: {size}"]
            continue
        judged.append((call["share"], times))
        lines += [f"{head} -> {result}   ({weight})", *said]
        expected = {f"measured now on {bench.device}": times[0], **call["expected_us"]}
        lines += [f"{us:12.2f} us {what}" for what, us in expected.items()]
        lines += [f"{us:12.2f} us the candidate, {times[0] / us:.2f}x as fast" for us in times[1:]]
    if not judged:
        return 2, [*lines, "nothing could be measured here"]
    if candidate is None:
        return 0, lines
    said = gains(judged)
    if str(bench.device).startswith("cpu"):
        said[-1] = f"the {RECORDED['step']['what']}: not said of {RECORDED['device'] or 'its device'} by times of a CPU"
    if sum(weight for weight, _ in judged) < _LEAST_JUDGED - 1e-4:
        return 2, [*lines, said[0], f"not judged as a whole: that takes {100 * _LEAST_JUDGED:.0f} %"]
    return 0, lines + said


def shown(slot: Any) -> str:
    """An argument in short."""
    if slot["kind"] == "tensors":
        return f"{len(slot['tensors'])} tensors"
    return str(slot["shape"] if slot["kind"] == "tensor" else slot["value"])


def size_gb(torch: Any, call: Any) -> float:
    """Of all tensors that the op is given."""
    slots = [each for slot in call["arguments"] for each in (slot.get("tensors") or [slot]) if each and "shape" in each]
    return 1e-9 * sum(int(math.prod(slot["shape"]) * getattr(torch, _TYPES[slot["dtype"]]).itemsize) for slot in slots)


def candidate_of(path: str) -> Any:
    """The function of a file."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    module = None if spec is None or spec.loader is None else importlib.util.module_from_spec(spec)
    if spec is None or spec.loader is None or module is None:
        raise UnjudgedError(f"{path} is not a Python file")
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnjudgedError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, RECORDED["name"], None)
    if not callable(function):
        raise UnjudgedError(f"{path} has no function {RECORDED['name']}")
    return function


def imported(name: str, why: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UnjudgedError(f"{why}, which cannot be imported: {type(error).__name__}: {error}") from error


def bench_on(torch: Any, device: str, repeats: int) -> Bench:
    try:
        return Bench(torch, device, repeats)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UnjudgedError(f"--device {device} cannot be used: {type(error).__name__}: {first}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=NAME)
    parser.add_argument("--device", help="default: cuda where there is a GPU, else cpu")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--candidate", metavar="FILE.py", help=f"a file with a function {RECORDED['name']} to judge")
    parser.add_argument("--import", dest="libraries", action="append", default=[], metavar="LIBRARY",
                        help="a Python package that registers the op, such as fbgemm_gpu or vllm")  # fmt: skip
    asked = parser.parse_args()
    try:
        torch = imported("torch", "this script needs PyTorch")
        for library in asked.libraries:
            imported(library, f"--import {library}")
        candidate = None if asked.candidate is None else candidate_of(asked.candidate)
        device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
        with torch.no_grad():
            code, lines = run(bench_on(torch, device, max(asked.repeats, 1)), candidate)
        where = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a CPU"
        lines += [f"measured on {where}; recorded on {RECORDED['device']}"] if code == 0 else []
    except UnjudgedError as why:
        code, lines = 2, [str(why)]
    stream = sys.stdout
    stream.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
