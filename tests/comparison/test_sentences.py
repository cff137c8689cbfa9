"""What the first lines of a comparison say of changes that were made on purpose."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import force_setattr

from tests.analysis.conftest import Builder
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.comparison.call_matching import by_kernel
from tracelens.comparison.change_sentences import parts_text
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import AT_ONCE, NOISE, Comparison
from tracelens.comparison.inputs import as_reported, as_whole_ops
from tracelens.comparison.sides import Call, CallWork, Recorded, Side
from tracelens.comparison.traced_side import recorded
from tracelens.types.units import NS_PER_MS

#: (op, its kernels with the ns of each) in order.
Ops = list[tuple[Call, list[tuple[str, int]]]]


def op(name: str, *kernels: tuple[str, int], category: str = "elementwise", module: str | None = None) -> Ops:
    return [(Call(name=f"aten::{name}", category=category, shapes="((4,),)", module=module), list(kernels))]


def replayed(ops: Ops) -> Ops:
    """The kernels alone, as a graph launches them."""
    return [
        (Call(name="cudaGraphLaunch", category=call.category, kernel=kernel), [(kernel, ns)])
        for call, kernels in ops
        for kernel, ns in kernels
    ]


def side(*steps: Ops, hidden_ns: int = 0) -> Side:
    """A step each; of each call ``hidden_ns`` lie behind something else."""
    calls = list(dict.fromkeys(call for step in steps for call, _ in step))
    names = list(dict.fromkeys(name for step in steps for _, kernels in step for name, _ in kernels))
    units = [(number, *each) for number, step in enumerate(steps) for each in step]
    ns = np.array([sum(own for _, own in kernels) for *_, kernels in units], np.int64)
    step = np.array([number for number, *_ in units], np.int64)
    events = [(at, names.index(name), own) for at, (*_, kernels) in enumerate(units) for name, own in kernels]
    event_unit, event_kernel, event_ns = np.array(events, np.int64).T
    one = Recorded(
        source="built", calls=tuple(calls), rates=(CallWork(),) * len(calls), kernel_ns=ns, step=step,
        call=np.array([calls.index(call) for _, call, _ in units], np.int64), piece_unit=np.arange(len(units)),
        piece_step=step, piece_ns=ns - hidden_ns, durations_ns=np.bincount(step, ns - hidden_ns).astype(np.int64),
        event_unit=event_unit, event_kernel=event_kernel, event_ns=event_ns, kernel_names=tuple(names),
        repeats=np.ones(len(units)), has_steps=True,
    )  # fmt: skip
    return Side(name="built", parts=((one,),))


def texts(found: Comparison) -> list[str]:
    return [change.text for change in found.changes]


LAYER = [*op("mm", ("gemm", 600), category="GEMM"), *op("norm", ("mean", 30), ("scale", 10)), *op("add", ("add", 50))]


def test_kernels_of_a_graph_are_those_of_the_ops() -> None:
    eager, graph = side(LAYER * 3, LAYER * 3), side(replayed(LAYER * 3), replayed(LAYER * 3))
    for found in (compare_sides(eager, graph), compare_sides(graph, eager)):
        assert (found.matched_share, found.rows) == ((1.0, 1.0), ())
        assert any("compared kernel by kernel" in note for note in found.notes)
    assert compare_sides(graph, graph).notes == compare_sides(eager, eager).notes == ()


def test_kernels_of_one_name_with_other_work_have_no_other_shapes() -> None:
    """Of 9 products by one kernel, 8 of 1 GFLOP and one of 20, a graph replays the former: the latter is as it was."""
    small, large = (Call(name="mm", category="GEMM", shapes=shapes, dtypes="") for shapes in ("small", "large"))
    few, one_more = [(small, [("gemm", 10)])] * 8, [(large, [("gemm", 200)])]
    eager, graph = side(few + one_more), side(replayed(few) + one_more)
    for one in (eager.first, graph.first):
        known = tuple(
            CallWork(flops={"small": 1e9, "large": 2e10}.get(call.shapes or "", np.nan)) for call in one.calls
        )
        force_setattr(one, "rates", known)
    found = compare_sides(eager, graph)
    assert any("compared kernel by kernel" in note for note in found.notes)
    assert not any("FLOPs" in text for text in texts(found))


@given(st.lists(st.tuples(st.integers(1, 99), st.lists(st.integers(1, 99), min_size=1, max_size=4)), min_size=1))
def test_ops_taken_apart_keep_their_time(calls: list[tuple[int, list[int]]]) -> None:
    ops = [
        each
        for number, (_, ns) in enumerate(calls)
        for each in op(f"{number}", *((f"k{i}", n) for i, n in enumerate(ns)))
    ]
    parted, _ = by_kernel(side(ops, hidden_ns=1), side(replayed(ops)))
    one, whole = parted.first, side(ops, hidden_ns=1).first
    assert one.kernel_ns.tolist() == one.event_ns.tolist() == [ns for _, own in calls for ns in own]
    assert np.bincount(one.piece_step, one.piece_ns).tolist() == whole.durations_ns.tolist()
    # Of every op its kernels have what it had
    op_of_kernel = np.repeat(np.arange(len(calls)), [len(own) for _, own in calls])
    assert np.bincount(op_of_kernel[one.piece_unit], one.piece_ns).tolist() == whole.piece_ns.tolist()


def test_one_layer_more_is_one_sentence() -> None:
    layer = [(replace(call, module=f"Model/Block/{call.name}"), kernels) for call, kernels in LAYER]
    found = compare_sides(side(layer * 4), side(layer * 5))
    assert texts(found) == ["Model/Block +0.00069 ms: 4 -> 5 times: GEMM +0.0006 ms, elementwise +9e-05 ms"]
    assert texts(compare_sides(side(LAYER * 4), side(LAYER * 5)))[0].startswith("ops +0.00069 ms: 4 -> 5 times")


def test_a_comparison_shows_what_changed() -> None:
    assert repr(compare_sides(side(LAYER * 4), side(LAYER * 5))).splitlines() == [
        "built -> built: 0.003 -> 0.003 ms",
        "  ops +0.00069 ms: 4 -> 5 times: GEMM +0.0006 ms, elementwise +9e-05 ms",
    ]
    assert repr(compare_sides(side(LAYER), side(LAYER))).endswith("\n  nothing changed")


def test_what_is_within_the_noise_says_what_it_mostly_is() -> None:
    """Of steps of one op that takes 100 to 900 ns, 40 more in the mean are chance; the others do not change."""
    spread = [[(call, [(name, ns if call.name != "aten::add" else each) for name, ns in kernels]) for call, kernels in LAYER]
              for each in (100, 500, 900)]  # fmt: skip
    moved = [[(call, [(name, ns + 40 * (ns in (100, 500, 900))) for name, ns in kernels]) for call, kernels in step]
             for step in spread]  # fmt: skip
    assert texts(compare_sides(side(*spread), side(*moved))) == [
        "within the noise +4e-05 ms: 1 row, the largest is elementwise +4e-05 ms: 8 % slower, same kernels, 1 call of aten::add"
    ]


def test_a_step_that_took_longer_than_the_others_is_named() -> None:
    slow = [(call, [(name, 5 * ns) for name, ns in kernels]) for call, kernels in LAYER]
    found = compare_sides(side(*[LAYER] * 6), side(LAYER, LAYER, slow, *[LAYER] * 3))
    # 5 * 690 ns, of which 4 * 690 / 6 are in the mean
    assert (
        "B: step 3 of 6 took 0.00345 ms against a median of 0.00069 ms; this adds 0.00046 ms to the mean step, most of it GEMM"
        in found.notes
    )
    assert not compare_sides(side(*[LAYER] * 6), side(*[LAYER] * 6)).notes


@pytest.mark.parametrize(
    ("other", "said"), [("gelu", "aten::mm -> aten::gelu"), ("mm", "different kernel (one -> two)")]
)
def test_another_kernel_is_told_where_its_time_is_noise(other: str, said: str) -> None:
    def steps(name: str, kernel: str) -> Side:
        return side(*([*op(name, (kernel, 1000 + 7 * n)), *op("add", ("add", 400 - n))] for n in range(6)))

    found = compare_sides(steps("mm", "one"), steps(other, "two"))
    assert found.change_ms == 0
    assert any(re.search(f"within the noise: .*{re.escape(said)}", text) for text in texts(found))
    assert sum(change.change_ms for change in found.changes) == 0


def test_a_kernel_that_only_one_side_has_is_new_or_gone() -> None:
    one, two = op("mm", ("gemm", 5_000_000)), op("mm", ("gemm", 5_000_000), ("reduce", 2_000_000))
    assert texts(compare_sides(side(one), side(two))) == [
        "elementwise +2 ms: 1 kernel became 2 (reduce is new) on 1 call of aten::mm"
    ]
    assert texts(compare_sides(side(two), side(one))) == [
        "elementwise -2 ms: 2 kernels became 1 (reduce is gone) on 1 call of aten::mm"
    ]


def test_communication_that_nothing_hides_any_more_is_not_slower() -> None:
    ops = op("ncclAllReduce", ("ncclDevKernel_AllReduce", 50 * NS_PER_MS), category="collectives")
    found = compare_sides(side(ops, hidden_ns=40 * NS_PER_MS), side(ops))
    (text,) = texts(found)
    assert text.startswith(
        "exposed communication +40.0 ms: hidden less behind computation, same kernels (as long), 1 call"
    )


def products(slower: float = 1.0, *, layers: int = 4, slow_layers: int = 4, attention: float = 1.0) -> Ops:
    """Three products and attention a layer; the products of the last ``slow_layers`` take ``slower`` times as long."""
    found: Ops = [*op("norm", ("norm", 40_000))]
    for layer in range(layers):
        by = slower if layer >= layers - slow_layers else 1.0
        for n, ns in enumerate((100_000, 300_000, 200_000)):
            found += op(f"mm{n}", (f"gemm{n}", round(ns * by)), category="GEMM")
        found += op("sdpa", ("flash", round(80_000 * attention)), category="SDPA_fwd")
    return found


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (products(1.25, attention=1.25), "compute-bound ops +0.68 ms: clock 20 % lower on all compute-bound ops"),
        # Attention runs at the same clock
        (products(1.25), "GEMM +0.6 ms: 25 % slower, same kernels, 12 calls"),
        # So do the products of the other layers
        (products(2.0, slow_layers=1, attention=1.25),
         "GEMM +0.6 ms: 25 % slower in the mean, the median kernel as before, same kernels"),
    ],
)  # fmt: skip
def test_a_clock_changes_every_compute_bound_call(after: Ops, said: str) -> None:
    # Of one step each, three slow calls of twelve may be chance
    (first, *_) = texts(compare_sides(side(*[products()] * 2), side(*[after] * 2)))
    assert first.startswith(said)


def test_the_median_is_by_time() -> None:
    """Of two copies a step the long one is what takes time, and became slower."""

    def copies(long: int) -> Side:
        return side(*[[*op("one", ("copy", 1_000)), *op("one", ("copy", long))]] * 3)

    (text,) = texts(compare_sides(copies(900_000), copies(1_500_000)))
    assert text.startswith("elementwise +0.6 ms: 67 % slower, same kernels")


def test_a_larger_message_is_no_slower_collective() -> None:
    def steps(sent: int) -> Side:
        kernel = "ncclDevKernel_AllReduce"
        call = Call(name="record_param_comms", category="collectives", kernel=kernel, shapes=f"(({sent},),)")
        return side(*[[(call, [(kernel, sent)]), *op("add", ("add", 500))]] * 3)

    (text,) = texts(compare_sides(steps(1_000_000), steps(1_500_000)))
    assert text.startswith(
        "exposed communication +0.5 ms: different messages or groups on 1 call of ncclDevKernel_AllReduce"
    )


def test_the_same_message_among_more_ranks_is_another_collective() -> None:
    """A reduce-scatter of 4 ranks sends 3/4 of its input, of 8 ranks 7/8 of the same: it is no slower."""

    def sent(ranks: int) -> Side:
        built = Builder()
        args = {"Collective name": "reduce_scatter", "In msg nelems": 1000, "Group size": ranks, "dtype": "Float"}
        built.op("record_param_comms", 0, 20, **args, **{"Input Dims": [[1000]], "Input type": ["float"]})
        built.launch(5, "ncclDevKernel_ReduceScatter_Sum", 30, 100 * (ranks - 1) // ranks)
        return Side(name="built", parts=((recorded(built.trace(), AnalysisOptions()),),))

    (text,) = texts(compare_sides(sent(4), sent(8)))
    assert text.startswith("exposed communication +0.012 ms: different messages or groups on 1 call")


def test_what_runs_at_once_in_reports_is_called_overlap() -> None:
    ops = LAYER * 3
    one, other = (as_reported(side(ops, hidden_ns=hidden)) for hidden in (0, 5))
    (text,) = texts(compare_sides(one, other))
    assert text.endswith("the largest is overlap -4.5e-05 ms: more runs at the same time")


def test_what_a_report_has_by_kernel_is_the_op_that_a_trace_has_whole() -> None:
    """An op of 3 + 2 ns beside an op of 4 ns; in the report the first is its kernels, counted by op. Then 1 ns more."""
    whole = op("index", ("gather", 3), ("scan", 2))
    parted = [(Call(name="aten::index", category=own, kernel=kernel), [(kernel, ns)])
              for own, kernel, ns in (("index", "gather", 3), ("sort", "scan", 2))]  # fmt: skip
    for more in (0, 1):
        slower = op("index", ("gather", 3 + more), ("scan", 2))
        sides = as_whole_ops(
            as_reported(side(parted + op("add", ("k", 4)))), as_reported(side(slower + op("add", ("k", 4))))
        )
        found = compare_sides(*sides)
        changed = {row.name: round(row.change_ms * NS_PER_MS) for row in found.rows if row.category != AT_ONCE}
        assert changed == ({"aten::index": 1} if more else {})
        calls = {(row.a and row.a.calls, row.b and row.b.calls) for row in (*found.rows, *found.unchanged)}
        assert calls == {(1, 1)}
        assert {call.kernel for each in sides for call in each.first.calls} == {""}
    untouched = as_reported(side(whole)), as_reported(side(whole))
    assert [each.first.calls for each in as_whole_ops(*untouched)] == [each.first.calls for each in untouched]


def noisy(random: np.random.Generator, slower: float = 1.0) -> Side:
    """Four steps of twelve ops of 0.1 ms, each call 1 % beside it, one op slower."""
    ns = 1e5 * random.normal(1, 0.01, (4, 12)) * np.append(slower, np.ones(11))
    return side(*([each for n, own in enumerate(step) for each in op(f"op{n}", ("k", int(own)))] for step in ns))


@pytest.mark.sweep
def test_two_recordings_of_the_same_thing_are_not_said_to_differ() -> None:
    """Of 20 pairs one may be; twelve ops put together as slower and as faster ones would be in a third."""
    random = np.random.default_rng(0)
    told = [[change.text for change in compare_sides(noisy(random), noisy(random)).changes if change.cause != NOISE]
            for _ in range(100)]  # fmt: skip
    assert sum(map(bool, told)) <= 5, told


def test_what_changed_is_told_without_what_chance_moved_the_same_way() -> None:
    random = np.random.default_rng(0)
    for _ in range(10):
        first, *rest = compare_sides(noisy(random), noisy(random, slower=1.5)).changes
        assert re.fullmatch(
            r"elementwise \+0.0[45]\d+ ms: (4[6-9]|5[0-4]) % slower, same kernels, 1 call of aten::op0 \(k\)",
            first.text,
        )
        assert [change.cause for change in rest] == [NOISE]


def one_step(random: np.random.Generator, slower: float = 1.0, sent: str = "gemm") -> Side:
    """Of 24 layers of two kernels of 100 us, each 2 % beside it and all of them 1 %, the product takes so much longer."""
    each = 1e5 * random.normal(1, 0.01) * random.normal(1, 0.02, (24, 2))
    return side([call for a, b in each.tolist()
                 for call in (*op("mm", (sent, int(slower * a)), category="GEMM"), *op("add", ("add", int(b))))])  # fmt: skip


def test_of_one_step_each_only_what_exceeds_its_repeats_is_a_change() -> None:
    """Both kinds of kernels lie 1 % apart as a whole: the usual 1.5 % explains that, and not 30 %."""
    random = np.random.default_rng(0)
    for _ in range(20):
        same, found = (compare_sides(one_step(random), one_step(random, slower)) for slower in (1.0, 1.3))
        assert [change.cause for change in same.changes] == [NOISE]
        assert same.changes[0].text.startswith("differs by ")
        assert "measured once on each side, so chance cannot be told: 2 rows, the largest are " in same.changes[0].text
        assert re.match(r"GEMM \+0\.\d+ ms: (2[4-9]|3[0-6]) % slower, same kernels, 24 calls", found.changes[0].text)
        assert found.low_ms is None is found.changes[0].low_ms


def test_facts_of_one_step_are_told_whatever_their_time() -> None:
    random = np.random.default_rng(0)
    (first, rest) = compare_sides(one_step(random), one_step(random, sent="gemm_v2")).changes
    assert re.fullmatch(r"GEMM [+-]0\.\d+ ms: different kernel \(gemm -> gemm_v2\) on 24 calls of aten::mm", first.text)
    assert rest.cause == NOISE


def test_a_device_slower_in_all_it_computes_is_no_matter_of_the_clock_beside_collectives() -> None:
    """Products and what memory bounds take 1.3 times as long, and collectives, half of the time, as long as before."""
    sent = [(Call(name="nccl:all_reduce", category="collectives", shapes="((4,),)"), [("AllReduce", 4000)])]

    def step(slower: float) -> Ops:
        products = [op(f"mm{n}", (f"gemm{n}", int(1000 * slower)), category="GEMM") for n in range(3)]
        return [*(call for one in products for call in one), *op("norm", ("mean", int(1000 * slower))), *sent]

    (told,) = compare_sides(side(*[step(1.0)] * 2), side(*[step(1.3)] * 2)).changes
    assert told.text.startswith("all computation +0.0012 ms: 30 % slower alike")


def test_other_shapes_are_told_where_their_time_is_noise() -> None:
    """Attention of half as many heads, each twice as wide, takes as long."""

    def steps(shapes: str) -> Side:
        call = Call(name="aten::sdpa", category="SDPA_fwd", shapes=shapes)
        return side(*[[(call, [("flash", 1000 + 7 * n)]), *op("add", ("add", 500))] for n in range(3)])

    told = texts(compare_sides(steps("((2, 32, 64, 128),)"), steps("((2, 16, 64, 256),)")))
    assert told == ["SDPA_fwd +0 ms, within the noise: different shapes on 1 call of aten::sdpa"]


def test_faster_products_beside_the_same_attention_are_no_matter_of_the_clock() -> None:
    """Another library of products, of two kernels, takes 0.9 of their time; attention is a fiftieth of the rest."""

    def step(ratio: float) -> Ops:
        products = [op(f"mm{n}", (f"gemm{n % 2}", int(10_000 * ratio)), category="GEMM") for n in range(10)]
        return [*(call for one in products for call in one), *op("sdpa", ("flash", 2000), category="SDPA_fwd")]

    (told,) = texts(compare_sides(side(step(1.0)), side(step(0.9))))
    assert told.startswith("GEMM -0.01 ms: 10 % faster, same kernels")


def test_another_type_of_all_ops_is_one_sentence() -> None:
    def step(dtype: str, slower: int) -> Ops:
        return [
            (replace(call, dtypes=f"('{dtype}',)"), [(name, slower * ns) for name, ns in kernels])
            for call, kernels in LAYER
        ]

    found = compare_sides(side(*[step("c10::BFloat16", 1)] * 3), side(*[step("float", 2)] * 3))
    # 600 ns of GEMM, and 40 and 50 of elementwise ops, twice as long
    (text,) = texts(found)
    assert text == (
        "ops +0.00069 ms: different type (BFloat16 -> float) on 3 calls of aten::mm, aten::add, aten::norm: GEMM +0.0006 ms, "
        "elementwise +9e-05 ms"
    )
    assert parts_text(found) == "computation 0.00069 -> 0.00138 ms"


def test_calls_of_as_many_times_the_work_are_one_sentence() -> None:
    """A batch twice as large: of the product, in 3 of the step's 5 us, and of what follows it."""

    def step(batch: int) -> Ops:
        found = []
        for name, category, ns in (("mm", "GEMM", 3000), ("gelu", "elementwise", 2000)):
            call = Call(name=f"aten::{name}", category=category, shapes=f"(({batch}, 8),)", work=f"{name} {batch}")
            found.append((call, [(name, ns * batch)]))
        return found

    sides = [side(*[step(batch)] * 3) for batch in (1, 2)]
    for one, batch in zip(sides, (1, 2), strict=True):
        force_setattr(one.first, "rates", (CallWork(flops=1e9 * batch), CallWork(flops=1e6 * batch)))
    assert texts(compare_sides(*sides)) == [
        "ops +0.005 ms: different shapes (2 x the FLOPs) on 2 calls of aten::mm, aten::gelu: GEMM +0.003 ms, elementwise +0.002 ms"
    ]


def test_sides_with_little_in_common_are_said_to_be_others() -> None:
    one, two = side(*[op("mm", ("gemm", 90)) + op("add", ("add", 10))] * 2), side(*[op("add", ("add", 10))] * 2)
    (note,) = [note for note in compare_sides(one, two).notes if "workload" in note]
    assert note == "only 10% of A's kernel time is in work that B does too: check that both run the same workload"
    assert not [note for note in compare_sides(one, one).notes if "workload" in note]


@given(
    st.lists(
        st.tuples(st.sampled_from(["GEMM", "elementwise", "collectives", "copy"]), st.integers(1, 999)), min_size=1
    )
)
def test_parts_add_up_to_the_step(calls: list[tuple[str, int]]) -> None:
    ops = [each for n, (category, ns) in enumerate(calls) for each in op(f"op{n}", ("k", ns * 1000), category=category)]
    text = parts_text(compare_sides(side(ops), side(ops)))
    told = [float(ms) for ms in re.findall(r"([\d.]+) -> ", text)]
    assert sum(told) * 1e3 == pytest.approx(sum(ns for _, ns in calls), rel=0.06)
