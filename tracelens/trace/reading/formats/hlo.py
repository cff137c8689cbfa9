"""Programs that XLA compiled, as profiles hold them (``HloProto`` of xla's hlo.proto and xla_data.proto): what each
instruction multiplies, computes, reads and writes.

An instruction becomes the signature of an op: the shapes and types of its operands, and under ``kernel_kwargs`` pairs
that ``perf_models.xla`` reads. What a fusion computes is what its instructions do; what it reads of an operand is what
their slices take of it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tracelens.trace.reading.wire import Wire
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

#: What one instruction may be made of; beyond that its work is not counted.
MOST_INSTRUCTIONS = 20_000
#: PrimitiveType of xla_data.proto, as HLO's text spells them.
TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4",
    23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn",
    33: "f8e8m0fnu",
}  # fmt: skip
NAMES = frozenset(TYPES.values())
#: What changes only where, or as what, elements stand: no arithmetic.
_MOVES = (
    "parameter constant bitcast bitcast-convert reshape broadcast copy copy-start copy-done transpose slice "
    "dynamic-slice dynamic-update-slice concatenate pad gather iota get-tuple-element tuple reverse fusion call "
    "while conditional custom-call after-all partition-id replica-id optimization-barrier domain infeed outfeed "
    "send recv send-done recv-done async-start async-update async-done add-dependency get-dimension-size "
    "set-dimension-size rng rng-bit-generator rng-get-and-update-state opaque"
)
MOVES = frozenset(_MOVES.split())
_SLICES = ("slice", "dynamic-slice", "gather")
#: Instructions that pass an operand on as it is.
_VIEWS = ("bitcast", "reshape", "get-tuple-element", "copy-done", "optimization-barrier")
COLLECTIVES = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all", "ragged-all-to-all": "all_to_all", "collective-permute": "send",
    "collective-broadcast": "broadcast",
}  # fmt: skip
#: Of which the start returns the operands before the results.
_BOTH = ("all-gather", "collective-permute")
# Field numbers of HloInstructionProto.
_NAME, _OPCODE, _SHAPE, _METADATA, _WINDOW, _CONVOLUTION = 1, 2, 3, 7, 15, 16
_TARGET, _DOT, _ID, _OPERANDS, _CALLED, _CONFIG, _GROUPS = 28, 30, 35, 36, 38, 43, 49
_FEATURE_GROUPS, _BATCH_GROUPS, _PARAMETER, _TUPLE_INDEX, _DEVICES, _RAGGED_DOT = 50, 58, 9, 13, 87, 90

Facts: TypeAlias = dict[str, Any]


class Array(NamedTuple):
    """One array of a shape; of a tuple several."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


class Instruction(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """``raw``: the other fields, as (value or start, end or -1) in the order of the file."""

    wire: Wire
    name: str = ""
    opcode: str = ""
    arrays: tuple[Array, ...] = ()
    operands: tuple[int, ...] = ()
    called: tuple[int, ...] = ()
    raw: dict[int, list[tuple[int, int]]]

    def number(self, field: int, absent: int = 0) -> int:
        found = self.raw.get(field)
        return found[-1][0] if found and found[-1][1] < 0 else absent

    def text(self, field: int) -> str:
        found = self.raw.get(field)
        return self.wire.text(*found[-1]) if found and found[-1][1] >= 0 else ""

    def inner(self, field: int) -> dict[int, list[tuple[int, int]]]:
        found = self.raw.get(field)
        return fields_of(self.wire, *found[-1]) if found and found[-1][1] >= 0 else {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The backend's configuration, where it is JSON; nested ones joined, as their names differ by version."""
        try:
            value = msgspec.json.decode(self.text(_CONFIG).encode())
        except (msgspec.DecodeError, RecursionError):
            return {}
        if not isinstance(value, dict):
            return {}
        inner = [each for key, each in value.items() if key.endswith("_config") and isinstance(each, dict)]
        return {key: each for part in (value, *inner) for key, each in part.items()}

    @property
    def metadata(self) -> tuple[str, str, int, int]:
        """(the framework's name of it, file, line, number of its stack frame); empty or 0 where not recorded."""
        found = self.inner(_METADATA)
        name, file = (self.wire.text(*found[i][-1]) if i in found and found[i][-1][1] >= 0 else "" for i in (2, 3))
        line, frame = (found[i][-1][0] if i in found else 0 for i in (4, 15))
        return name, file, line, frame


def fields_of(wire: Wire, start: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """(value or start, end or -1) of all fields of a message by number."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, value, stop in wire.fields(start, end):
        found.setdefault(number, []).append((value, stop))
    return found


def numbers(wire: Wire, given: list[tuple[int, int]] | None) -> tuple[int, ...]:
    """A repeated whole number, packed or not."""
    found: list[int] = []
    for value, stop in given or ():
        found.extend((value,) if stop < 0 else wire.varints(value, stop))
    return tuple(found)


def arrays_of(wire: Wire, start: int, end: int) -> Iterator[Array]:
    """The arrays of a ShapeProto, those of nested tuples in order; tokens and opaque parts have none."""
    shape = fields_of(wire, start, end)
    for value, stop in shape.get(4, ()):
        yield from arrays_of(wire, value, stop)
    dtype, dims = TYPES.get(shape[2][-1][0]) if 2 in shape else None, numbers(wire, shape.get(3))
    if dtype is not None and all(0 <= n < 1 << 40 for n in dims):
        yield Array(dtype, dims)


class Program:
    """One compiled module: its instructions by name and by number, read when asked for."""

    def __init__(self, wire: Wire, start: int, end: int) -> None:
        self._wire = wire
        self._read: dict[int, Instruction] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._of_name: dict[str, int] = {}
        self.members: dict[int, tuple[int, ...]] = {}
        self.roots: dict[int, int] = {}
        self.name, self.devices = "", 0
        self._frames: tuple[int, int] | None = None
        module = fields_of(wire, start, end).get(1, ())
        for number, value, stop in wire.fields(*module[-1]) if module else ():
            if number == 1 and stop >= 0:
                self.name = wire.text(value, stop)
            elif number == 3 and stop >= 0:
                self._add_computation(value, stop)
            elif number == 17 and stop >= 0:
                self._frames = value, stop
            elif number == 15 and stop >= 0:
                assigned = fields_of(wire, value, stop)
                self.devices = math.prod(assigned[i][-1][0] for i in (1, 2) if i in assigned)

    def _add_computation(self, start: int, end: int) -> None:
        others: list[tuple[int, int, int]] = []
        wire = self._wire
        starts, ends, _ = wire.repeated(start, end, 2, others)
        found = wire.columns(starts, ends, (_ID,), (_NAME,))
        ids = tuple(found.integers[_ID].tolist())
        self._spans.update(zip(ids, zip(starts.tolist(), ends.tolist(), strict=True), strict=True))
        # Computations follow those that they call: a name of the entry wins over one in a fusion
        for at, first, last in found.spans[_NAME]:
            self._of_name[wire.text(first, last)] = ids[at]
        about = {number: value for number, value, stop in others if stop < 0}
        number = about.get(5, 0)
        self.members[number], self.roots[number] = ids, about.get(6, ids[-1] if ids else 0)

    def named(self, name: str) -> Instruction | None:
        number = self._of_name.get(name.removeprefix("%"))
        return None if number is None else self.at(number)

    def at(self, number: int) -> Instruction | None:
        """The instruction of a number; None where the file lacks it."""
        if number not in self._read and number in self._spans:
            wire, raw = self._wire, fields_of(self._wire, *self._spans[number])
            text = {key: wire.text(*raw[key][-1]) for key in (_NAME, _OPCODE) if key in raw and raw[key][-1][1] >= 0}
            shape = raw.get(_SHAPE)
            self._read[number] = Instruction(
                wire=wire, name=text.get(_NAME, ""), opcode=text.get(_OPCODE, ""),
                arrays=tuple(arrays_of(wire, *shape[-1])) if shape else (),
                operands=numbers(wire, raw.get(_OPERANDS)), called=numbers(wire, raw.get(_CALLED)), raw=raw,
            )  # fmt: skip
        return self._read.get(number)

    def inputs(self, instruction: Instruction) -> list[Array]:
        """The arrays of its operands, those of tuples one by one."""
        operands = (self.at(number) for number in instruction.operands)
        return [array for operand in operands if operand is not None for array in operand.arrays]

    def first_inputs(self, instruction: Instruction) -> list[Array]:
        """The first array of each operand."""
        operands = (self.at(number) for number in instruction.operands)
        return [each.arrays[0] for each in operands if each is not None and each.arrays]

    def instructions(self, computation: int) -> Iterator[Instruction]:
        return (each for number in self.members.get(computation, ()) if (each := self.at(number)) is not None)

    def source(self, given: Instruction) -> tuple[str, str]:
        """(the framework's name of an instruction, ``file.py:12``), empty where they were not recorded."""
        name, file, line, frame = given.metadata
        if not file and frame > 0:
            file, line = self._place(frame)
        return name, f"{file}:{line}" if file and line > 0 else file

    @cached_property
    def _stack(self) -> dict[int, list[tuple[int, int]]]:
        return {} if self._frames is None else fields_of(self._wire, *self._frames)

    def _place(self, frame: int) -> tuple[str, int]:
        """(file, line) of a stack frame; numbers of frames, places and files count from 1."""
        wire, stack = self._wire, self._stack

        def entry(field: int, number: int) -> dict[int, list[tuple[int, int]]]:
            found = stack.get(field, ())
            return fields_of(wire, *found[number - 1]) if 0 < number <= len(found) else {}

        location = entry(4, frame).get(1, [(0, -1)])[-1][0]
        place = entry(3, location)
        file, files = place.get(1, [(0, -1)])[-1][0], stack.get(1, [])
        return wire.text(*files[file - 1]) if 0 < file <= len(files) else "", place.get(3, [(0, -1)])[-1][0]

    def signature(self, name: str) -> OpSignature | None:
        """What is known of the op that an instruction is; None where the program has none of that name."""
        found = self.named(name)
        if found is None:
            return None
        return signed(name, self.inputs(found), _Counting(self).of(found))


#: The attributes that say an op is XLA's, and what is known of it.
BACKEND, XLA, KNOWN = "kernel_backend", "xla", "kernel_kwargs"


def signed(name: str, inputs: list[Array], facts: Facts) -> OpSignature:
    """The signature of an op of XLA with these operands and facts; of a collective as PyTorch records those, too."""
    said = zip(_EXCHANGED, facts.get("collective", ()), strict=False)
    return OpSignature(
        name=name,
        shapes=tuple(array.dims for array in inputs),
        dtypes=tuple(array.dtype for array in inputs),
        attributes=(
            *((key, value) for key, value in said if value is not None),
            (BACKEND, XLA),
            (KNOWN, tuple(facts.items())),
        ),
    )


#: What ``_exchange`` says, as PyTorch's profiler calls it.
_EXCHANGED = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")

_LAYOUT = re.compile(r"\{[^{}]*\}")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*+)\[([0-9<=,]*+)\]")
#: What a TPU records of an op as numbers.
_RECORDED = ("flops", "model_flops", "bytes_accessed")
#: What only runs other ops.
CONTROL = ("while", "conditional", "call")


def recorded_op(
    wire: Wire,
    name: str,
    text: str,
    known: dict[str, Any],
    of_program: Callable[[int, str], OpSignature | None],
    *,
    holds: bool,
) -> OpSignature | None:
    """The signature of an op of a TPU: what its program says, else its text, and what was recorded beside it.

    ``holds``: others ran in it, and what it does is counted with them.
    """
    number = known.get("program_id")
    own = of_program(number, name) if isinstance(number, int) else None
    if own is None:
        inputs, facts = _of_text(text)
    else:
        inputs, facts = list(map(Array, own.dtypes or (), own.shapes or ())), dict(own.attribute(KNOWN))
    if not facts and not any(key in known for key in ("hlo_category", *_RECORDED)):
        return None
    return signed(name, inputs, _with_recorded(facts, wire, known, holds=holds))


def _with_recorded(facts: Facts, wire: Wire, known: dict[str, Any], *, holds: bool) -> Facts:
    """The facts of an op and what was recorded of it; of one that only runs others its names."""
    said = {key: known.get(of) for key, of in _NAMED.items()}
    facts |= {key: word.rstrip(":") for key, word in said.items() if isinstance(word, str) and word}
    if holds or facts.get("opcode") in CONTROL:
        return {key: facts[key] for key in ("opcode", *_NAMED) if key in facts}
    facts |= {key: known[key] for key in _RECORDED if isinstance(known.get(key), int) and known[key] >= 0}
    memory = known.get("memory_access_breakdown")
    hbm = _of_memory(wire, *memory) if isinstance(memory, tuple) else None
    return facts if hbm is None else facts | {"hbm_bytes": hbm}


#: What a TPU records of an op as text, by what it is called here.
_NAMED = {"category": "hlo_category", "jax": "tf_op", "source": "source"}


def _of_text(text: str) -> tuple[list[Array], Facts]:
    """(operands, what it reads and writes) of an instruction's text; nothing where it is no such text."""
    made, rest = _part(_LAYOUT.sub("", text[:_LONGEST_TEXT]).partition(" = ")[2])
    opcode, bracket, _ = rest.strip().partition("(")
    if not bracket or not opcode.replace("-", "").isalnum():
        return [], {}
    results, inputs = list(_arrays_in(made)), list(_arrays_in(_part(rest.strip()[len(opcode) :])[0]))
    facts: Facts = {"opcode": opcode, "out": results}
    word = opcode.removesuffix("-start").removesuffix("-done")
    if word in COLLECTIVES and not opcode.endswith("-done"):
        if opcode.endswith("-start") and word in _BOTH:
            results = results[len(inputs) : 2 * len(inputs)] or results
        ranks, stride = _group_of_text(text)
        return inputs, facts | {"collective": _exchange(word, inputs, results, ranks, stride)}
    return inputs, facts | ({"read": inputs, "written": results} if inputs else {})


def _group_of_text(text: str) -> tuple[int | None, int]:
    """(ranks that take part, distance between the first two): listed, or as a reshaped range."""
    if listed := _LISTED.search(text):
        ids = [int(n) for n in listed[1].split(",")]
        return len(ids), ids[1] - ids[0] if len(ids) > 1 else 1
    if ranged := _RANGED.search(text):
        dims, order = (tuple(int(n) for n in (ranged[i] or "").split(",") if n) for i in (2, 3))
        return int(ranged[1]), _stride_of_range(int(ranged[1]), dims, order)
    return None, 1


_LISTED = re.compile(r"replica_groups=\{\{(\d{1,9}(?:,\d{1,9})*+)\}")
_RANGED = re.compile(r"replica_groups=\[\d{1,9},(\d{1,9})\]<=\[(\d{1,9}(?:,\d{1,9})*+)\](?:T\(([\d,]*+)\))?")


def _part(text: str) -> tuple[str, str]:
    """(what stands in the brackets that a text begins with, else its first word; the rest)."""
    if not text.startswith("("):
        first, _, rest = text.partition(" ")
        return first, rest
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[: at + 1], text[at + 1 :]
    return text, ""


#: Beyond this, the text of an instruction is not read.
_LONGEST_TEXT = 20_000


def _arrays_in(text: str) -> Iterator[Array]:
    for dtype, dims in _ARRAY.findall(text):
        if dtype in NAMES:
            yield Array(dtype, tuple(int(n) for n in dims.replace("<=", "").split(",") if n.isdigit() and len(n) < 16))


def _of_memory(wire: Wire, start: int, end: int) -> int | None:
    """Bytes from and to HBM of a MemoryAccessBreakdown (xprof's op_metrics.proto); None where it names no memory."""
    parts = [fields_of(wire, value, stop) for value, stop in fields_of(wire, start, end).get(1, ()) if stop >= 0]
    if not any(2 in part for part in parts):
        return None
    return sum(part[3][-1][0] for part in parts if 3 in part and 2 in part and part[2][-1][0] == _HBM)


#: MemorySpace of xprof's op_metrics.proto.
_HBM = 1


class _Counting:
    """What the instructions of one op compute (``counts``: elements by opcode), multiply, read and write."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._counts: Counter[str] = Counter()
        self._products: list[tuple[Any, ...]] = []
        self._left = MOST_INSTRUCTIONS

    def of(self, given: Instruction) -> Facts:
        opcode, done = given.opcode, self._wrapped(given)
        jax, source = self._program.source(given)
        self._add(done)
        facts: Facts = {"opcode": opcode, "jax": jax, "source": source}
        facts["out"] = [(each.dtype, each.dims) for each in given.arrays]
        if target := given.text(_TARGET):
            facts["target"] = target
        word = done.opcode.removesuffix("-start").removesuffix("-done")
        if word in COLLECTIVES:
            inputs, outputs = self._program.inputs(done), list(done.arrays)
            if done.opcode.endswith("-start") and word in _BOTH:
                outputs = outputs[len(inputs) : 2 * len(inputs)] or outputs
            return facts | {"collective": _exchange(word, inputs, outputs, *_group(done, self._program.devices))}
        if opcode.endswith(("-done", "-update")) or opcode in CONTROL:
            return facts
        if self._left < 0:
            return facts
        read, written = self._moved(done)
        facts |= {"counts": tuple(self._counts.items()), "products": self._products, "read": read, "written": written}
        return facts | _of_configuration(done)

    def _wrapped(self, given: Instruction) -> Instruction:
        """What an ``async-start`` runs; others as they are."""
        if given.opcode == "async-start" and given.called:
            root = self._program.at(self._program.roots.get(given.called[0], -1))
            return root or given
        return given

    def _add(self, given: Instruction) -> None:
        self._left -= 1
        opcode, program = given.opcode, self._program
        if opcode in ("fusion", "call") and self._left > 0:
            for called in given.called:
                for inner in program.instructions(called):
                    self._add(inner)
            return
        out = given.arrays[0].elements if given.arrays else 0
        if opcode in ("dot", "ragged-dot", "convolution", "custom-call"):
            product = _product(program, given)
            self._products += [product] if product else []
        elif opcode in ("reduce", "reduce-window", "select-and-scatter"):
            self._counts[opcode] += max(_reduced(program, given, out), 0)
        elif opcode == "scatter":
            updates = program.inputs(given)
            self._counts[opcode] += updates[-1].elements if updates else 0
        elif opcode not in MOVES and opcode != "sort":
            self._counts[opcode] += out

    def _moved(self, given: Instruction) -> tuple[list[Array], list[Array]]:
        """What is read and written at least: of slices what they take, of an update in place what it replaces."""
        program = self._program
        if given.opcode == "fusion" and given.called:
            return self._moved_by_fusion(given, given.called[0])
        # Results; libraries' kernels return their scratch memory behind them, as bytes
        arrays = list(given.arrays)
        if given.text(_TARGET).startswith("__cu") and len(arrays) > 1:
            last = arrays[-1]
            if last.dtype in ("s8", "u8") and len(last.dims) == 1:
                arrays.pop()
        inputs, outputs = program.inputs(given), arrays
        if given.opcode in _SLICES:
            return [*outputs, *inputs[1:]], outputs
        if given.opcode == "dynamic-update-slice":
            return inputs[1:], inputs[1:2]
        if given.opcode == "scatter" and len(inputs) > 2:
            return [inputs[-1], *inputs[1:]], inputs[-1:]
        return inputs, outputs

    def _moved_by_fusion(self, given: Instruction, computation: int) -> tuple[list[Array], list[Array]]:
        program = self._program
        users: dict[int, list[Instruction]] = {}
        for each in program.instructions(computation):
            for operand in each.operands:
                users.setdefault(operand, []).append(each)
        read: list[Array] = []
        for number in program.members.get(computation, ()):
            parameter = program.at(number)
            if parameter is not None and parameter.opcode == "parameter":
                read += self._read_of(number, parameter, users)
        written = []
        for number, array in self._results(program.roots.get(computation, -1)):
            made = program.at(number)
            for _ in range(MOST_INSTRUCTIONS):  # to what stands behind views
                if made is None or made.opcode not in ("bitcast", "reshape", "copy") or not made.operands:
                    break
                made = program.at(made.operands[0])
            update = program.inputs(made)[1:2] if made is not None and made.opcode == "dynamic-update-slice" else []
            written += update or [array]
        return read, written

    def _read_of(self, number: int, given: Instruction, users: dict[int, list[Instruction]]) -> list[Array]:
        """A parameter of a fusion as far as its users take it, once."""
        whole, taken, waiting = list(given.arrays), list[Array](), [number]
        while waiting:
            at = waiting.pop()
            if at != number and at not in users:
                return whole
            for user in users.get(at, ()):
                is_first = user.operands[:1] == (at,)
                if user.opcode in _SLICES and is_first:
                    taken += user.arrays
                elif user.opcode in _VIEWS and len(user.arrays) == 1:
                    waiting.append(user.number(_ID))
                elif user.opcode != "dynamic-update-slice" or not is_first:
                    return whole
        return taken if _elements(taken) <= _elements(whole) else whole

    def _results(self, root: int) -> Iterator[tuple[int, Array]]:
        """(number, array) of what a computation returns."""
        made = self._program.at(root)
        if made is None:
            return
        if made.opcode != "tuple":
            yield from ((root, array) for array in made.arrays)
            return
        for operand in made.operands:
            part = self._program.at(operand)
            yield from ((operand, array) for array in (part.arrays if part is not None else ()))


def _elements(arrays: Any) -> int:
    return sum(array.elements for array in arrays)


def _reduced(program: Program, given: Instruction, out: int) -> int:
    """Steps of a reduction: elements that vanish, or of windows all but one of each."""
    inputs = program.first_inputs(given)
    size = inputs[0].elements if inputs else 0
    if given.opcode == "reduce":
        return size - out
    sizes = [n for n, *_ in _window(given)]
    return (math.prod(sizes) - 1) * (size if given.opcode == "select-and-scatter" else out)


def _window(given: Instruction) -> list[tuple[int, int, int, int, int]]:
    """(size, stride, padding before, dilation of the window, of the base) per dim."""
    wire = given.wire
    found = []
    for value, stop in given.inner(_WINDOW).get(1, ()):
        dim = {number: values[-1][0] for number, values in fields_of(wire, value, stop).items()}
        found.append((dim.get(1, 0), dim.get(2, 1), dim.get(3, 0), dim.get(5, 1) or 1, dim.get(6, 1) or 1))
    return found


def _group(given: Instruction, devices: int) -> tuple[int | None, int]:
    """(ranks that take part, distance between the first two)."""
    wire = given.wire
    devices_list = given.inner(_DEVICES)
    groups = given.raw.get(_GROUPS) or devices_list.get(1)
    if groups:
        ids = numbers(wire, fields_of(wire, *groups[0]).get(1))
        if ids:
            return len(ids), ids[1] - ids[0] if len(ids) > 1 else 1
    if 2 in devices_list:
        listed = fields_of(wire, *devices_list[2][-1])
        size = listed[2][-1][0] if 2 in listed else 0
        return size or None, _stride_of_range(size, *(numbers(wire, listed.get(field)) for field in (3, 4)))
    return devices or None, 1


def _exchange(word: str, inputs: list[Array], outputs: list[Array], ranks: int | None, stride: int) -> tuple[Any, ...]:
    """(kind, elements in, elements out, type, ranks or None, distance between ranks)."""
    dtype = inputs[0].dtype if inputs else ""
    return COLLECTIVES[word], _elements(inputs), _elements(outputs), dtype, ranks, stride


def _stride_of_range(size: int, dims: tuple[int, ...], order: tuple[int, ...]) -> int:
    """The distance between the first two of ``size`` that are a part of a reshaped and transposed range."""
    total = math.prod(dims)
    if size < 2 or not 0 < total <= 1 << 20 or size > total or sorted(order) not in ([], list(range(len(dims)))):
        return 1
    ids = np.arange(total).reshape(dims)
    flat = (ids.transpose(order) if order else ids).ravel()
    return int(flat[1] - flat[0])


def _product(program: Program, given: Instruction) -> tuple[Any, ...] | None:
    """A matrix product or a convolution, whatever calls it; None for another custom call."""
    if given.opcode in ("dot", "ragged-dot"):
        inner = given.inner(_DOT)
        if given.opcode == "ragged-dot" and (ragged := given.inner(_RAGGED_DOT).get(1)):
            inner = fields_of(given.wire, *ragged[-1])
        contracted, batch = (numbers(given.wire, inner.get(field)) for field in (1, 3))
        return _dot(program, given, contracted, batch)
    target = given.text(_TARGET)
    if target.startswith(("__cublas$", "__cublas_lt", "__triton_gemm", "__onednn$matmul")):
        dims = given.config.get("dot_dimension_numbers")
        dims = dims if isinstance(dims, dict) else {}
        sides = (dims.get(f"lhs_{side}_dimensions") for side in ("contracting", "batch"))
        contracted, batch = (tuple(int(n) for n in each) if isinstance(each, list) else () for each in sides)
        return _dot(program, given, contracted, batch)
    if given.opcode == "convolution" or target.startswith(("__cudnn$conv", "__onednn$conv")):
        return _convolution(program, given, target)
    return None


def _dot(
    program: Program, given: Instruction, contracted: tuple[int, ...], batch: tuple[int, ...]
) -> tuple[Any, ...] | None:
    """("dot", b, m, n, k, types of A, B and C)."""
    inputs = program.first_inputs(given)
    if len(inputs) < 2 or not given.arrays:
        return None
    a, b, c = inputs[0], inputs[1], given.arrays[0]
    rank = len(a.dims)
    contracted = contracted or (rank - 1,)
    if not rank or any(not 0 <= dim < rank for dim in (*contracted, *batch)):
        return None
    k, count = (math.prod(a.dims[dim] for dim in dims) for dims in (contracted, batch))
    m = math.prod(n for dim, n in enumerate(a.dims) if dim not in (*contracted, *batch))
    n = c.elements // (m * count) if m * count else 0
    return "dot", count, m, n, k, a.dtype, b.dtype, c.dtype


def _convolution(program: Program, given: Instruction, target: str) -> tuple[Any, ...] | None:
    """("convolution", x, w, out as [batch, channels, ...], [out, in, ...] and [batch, channels, ...], their types,
    which of the three is computed, FLOPs of what lies on no padding)."""
    inputs, results = program.first_inputs(given), given.arrays
    if len(inputs) < 2 or not results:
        return None
    x, w, out, made = inputs[0], inputs[1], results[0], "out"
    if "BackwardInput" in target:
        x, out, made = results[0], inputs[0], "x"
    elif "BackwardFilter" in target:
        w, out, made = results[0], inputs[1], "w"
    labels, wire = given.inner(_CONVOLUTION), given.wire

    def dims(array: Array, first: int, second: int, spatial: int) -> tuple[int, ...]:
        order = (
            *((labels[i][-1][0] if i in labels else 0) for i in (first, second)),
            *numbers(wire, labels.get(spatial)),
        )
        return tuple(array.dims[dim] if 0 <= dim < len(array.dims) else 1 for dim in order)

    of_x, of_w, of_out = dims(x, 7, 8, 11), dims(w, 4, 3, 6), dims(out, 9, 10, 12)
    window = _window(given)
    if not len(window) == len(of_x) - 2 == len(of_w) - 2 == len(of_out) - 2:
        return None
    valid = math.prod(_valid(*sizes) for sizes in zip(of_x[2:], of_out[2:], window, strict=True))
    groups = max(given.number(_BATCH_GROUPS, 1), 1)
    flops = 2 * of_w[1] * of_out[1] * (of_x[0] // groups) * valid
    return "convolution", of_x, of_w, of_out, (x.dtype, w.dtype, out.dtype), made, flops


def _valid(size: int, results: int, window: tuple[int, int, int, int, int]) -> int:
    """Pairs of a place in the window and a result for which the base holds an element, as XLA counts them."""
    kernel, stride, padding, window_dilation, base_dilation = window
    pairs = kernel * results
    if min(size, kernel, results, stride) < 1 or max(abs(padding), *window, size, results) > 1 << 31:
        return 0 if size < 1 or pairs < 1 else pairs
    if kernel > _MOST_PLACES or (base_dilation > 1 and pairs > _MOST_PLACES):
        return pairs // base_dilation
    begins = padding - np.arange(kernel) * window_dilation
    last = (size - 1) * base_dilation
    if base_dilation == 1:
        # Results r with 0 <= r * stride - begins <= last
        low, high = np.maximum(-(-begins // stride), 0), np.minimum((last + begins) // stride, results - 1)
        return int(np.maximum(high - low + 1, 0).sum())
    at = np.arange(results)[:, None] * stride - begins[None, :]
    return int(((at >= 0) & (at <= last) & (at % base_dilation == 0)).sum())


#: Of longer windows every place counts.
_MOST_PLACES = 1 << 22


def _of_configuration(given: Instruction) -> Facts:
    """What the configuration of a custom call says: attention of cuDNN, and the costs that a Pallas kernel declares."""
    config, target = given.config, given.text(_TARGET)
    declared = config.get("cost_estimate")
    if isinstance(declared, dict):
        known = {key: declared.get(key) for key in ("flops", "bytes_accessed")}
        return {
            key: int(value) for key, value in known.items() if isinstance(value, int | float | str) and _is_count(value)
        }
    if target.startswith("__cudnn$fmha"):
        shape = config.get("intermediate_tensor_shape")
        scores = shape.get("dimensions") if isinstance(shape, dict) else None
        if isinstance(scores, list) and len(scores) == 4 and all(map(_is_count, scores)):
            return {"scores": tuple(int(n) for n in scores), "mask": str(config.get("mask_type", ""))}
    return {}


def _is_count(value: Any) -> bool:
    return str(value).isascii() and str(value).isdigit() and len(str(value)) < 20
