"""Watts of kernels: worked examples with the arithmetic visible, and laws that hold for any work on any device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens as tl
from benchmarks.fit_power import MOSTLY_OWN, Family, in_order, loop_samples, own_share, samples, shown
from tracelens.errors import InputError, UsageError
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import FamilyPower, PowerConstants
from tracelens.hardware.power import (
    BY_CLOCK,
    CARRIED,
    KernelWork,
    clock_share,
    family_named,
    idle_power,
    kernel_power,
    limited,
    power_constants,
    room_w,
)

MEASURED = [spec.name for spec in HardwareSpec.all() if spec.power is not None]
KNOWN = [spec.name for spec in HardwareSpec.all() if power_constants(spec) is not None]
FAMILIES = sorted({name for spec in HardwareSpec.all() if spec.power for name in spec.power.families})
PLAIN = PowerConstants(
    limit_w=700, idle_w=100, share=1.0, most=1.01, link_pj=10, source="made up",
    families={"gemm": FamilyPower(
        terms={"active_w": 50, "hbm_pj": 40, "l2_pj": 10, "launch_uj": 2}, flop_pj={"bf16": 0.5}, sharpness=40, low=0.9,
        high=1.2,
    )},
)  # fmt: skip


def work(us: float, family: str = "gemm", **done: float) -> KernelWork:
    """One kernel; FLOPs and bytes by name."""
    parts = {name: np.array([done.pop(name, 0.0)]) for name in ("hbm_bytes", "l2_bytes", "link_bytes")}
    clocked = np.array([done.pop("clocked", 1.0)])
    flops = {name: np.array([count]) for name, count in done.items()}
    return KernelWork(family=family, time_us=np.array([us]), flops=flops, clocked=clocked, **parts)


def test_watts_are_energies_over_time() -> None:
    """In 1 ms: 0.2 TFLOP x 0.5 pJ = 0.1 J, 1 GB x 40 pJ = 0.04 J, 2 GB of L2 x 10 pJ = 0.02 J, a launch of 2 uJ."""
    drawn = kernel_power(PLAIN, work(1000, bf16=2e11, hbm_bytes=1e9, l2_bytes=2e9))
    assert drawn.power_w[0] == pytest.approx(100 + 50 + 100 + 40 + 20 + 0.002)
    assert drawn.low_w[0] == pytest.approx(0.9 * drawn.power_w[0])
    assert drawn.energy_mj(np.array([1000.0])).power_w[0] == pytest.approx(310.002)


def test_a_link_has_an_energy_of_its_own() -> None:
    """400 GB/s x 10 pJ per byte are 4 W."""
    without, with_link = (kernel_power(PLAIN, work(1000, link_bytes=nbytes)).power_w[0] for nbytes in (0, 4e8))
    assert with_link - without == pytest.approx(4)


def test_a_kernel_at_the_limit_takes_as_much_longer_as_its_clock_falls() -> None:
    """600 W over idle at the full clock; 175 W over idle are left: (175 / 600) ** (1 / 1.7) of the clock, all of it compute."""
    product = work(1000, bf16=4e12)
    full, (held, us) = kernel_power(PLAIN, product).power_w[0], limited(PLAIN, product, 275)
    over = full - 100
    assert us[0] == pytest.approx(1000 * (over / 175) ** (1 / 1.7))
    assert held.power_w[0] == pytest.approx(275)


def test_bytes_keep_their_time_and_lose_energy_with_the_clock() -> None:
    stream = work(1000, hbm_bytes=6e9, clocked=0.0)
    over = kernel_power(PLAIN, stream).power_w[0] - 100
    held, us = limited(PLAIN, stream, 250)
    assert us[0] == pytest.approx(1000)
    assert clock_share(PLAIN, np.array([100 + over]), 250, 0.0)[0] == pytest.approx((150 / over) ** (1 / 0.7))
    assert held.power_w[0] == pytest.approx(250)


def test_bf16_products_under_a_limit_are_those_that_were_published() -> None:
    """One script on H100 PCIe (114 units at 350 W) and SXM (132 at 700 W): 496 and 797 TFLOPS, per unit 0.72."""
    constants = power_constants(HardwareSpec.load("h100-sxm"))
    assert constants is not None
    per_unit_w = room_w(_of(350)) / 114 / (room_w(constants) / 132)
    assert per_unit_w ** (1 / (1 + BY_CLOCK)) == pytest.approx((496 / 114) / (797 / 132), rel=0.03)


def _of(watts: float) -> PowerConstants:
    found = power_constants(HardwareSpec.load("h100-pcie"))
    assert found is not None
    assert found.limit_w == watts
    return found


def test_a_limit_below_the_waiting_device_is_refused() -> None:
    with pytest.raises(UsageError, match="above the 100 W that the waiting device draws, got 90 W"):
        limited(PLAIN, work(1000, bf16=1e11), 90)


def test_a_family_that_nobody_measured_is_unknown() -> None:
    alone = replace(PLAIN, families={})
    assert np.isnan(kernel_power(alone, work(10, bf16=1e9)).power_w[0])


def test_another_type_takes_the_nearest_energy() -> None:
    """FP8 that nobody measured costs what BF16 does; a class of its own the dearest of all."""
    same = [kernel_power(PLAIN, work(1000, **{name: 2e11})).power_w[0] for name in ("bf16", "fp8", "unheard_of")]
    assert same[1:] == same[:1] * 2


def test_a_device_of_the_same_architecture_takes_energies_and_says_so() -> None:
    own, theirs = (power_constants(HardwareSpec.load(name)) for name in ("h100-sxm", "h200-sxm"))
    assert own is not None
    assert theirs is not None
    assert (own.carried_from, theirs.carried_from) == ("h200-sxm", None)
    mine, its = own.families["gemm vllm"], theirs.families["gemm vllm"]
    assert mine.flop_pj == its.flop_pj
    assert mine.high == pytest.approx(its.high * CARRIED)
    pcie = power_constants(HardwareSpec.load("h100-pcie"))
    assert pcie is not None
    assert pcie.idle_w == pytest.approx(theirs.idle_w * 350 / 700)
    b300, gb200 = (power_constants(HardwareSpec.load(name)) for name in ("b300", "gb200"))
    assert b300 is not None
    assert gb200 is not None
    assert b300.idle_w in (gb200.idle_w, constants_of("b200").idle_w), "a higher limit makes no device wait hotter"


def test_cdna4_takes_the_energies_of_b200_and_says_so() -> None:
    own, theirs = power_constants(HardwareSpec.load("mi355x")), constants_of("b200")
    assert own is not None
    assert (own.carried_from, own.limit_w, own.idle_w) == ("b200", 1400, theirs.idle_w)
    assert own.families["gemm vllm"].high == pytest.approx(theirs.families["gemm vllm"].high * CARRIED)


@pytest.mark.parametrize("name", ["mi300x", "a100-sxm-80gb", "tpu-v5e"])
def test_architectures_that_nobody_measured_are_unknown(name: str) -> None:
    assert power_constants(HardwareSpec.load(name)) is None


def test_a_table_without_a_limit_or_with_too_much_idle_is_refused(tmp_path) -> None:
    text = (
        'vendor = "acme"\n[power]\nidle_w = 500\nshare = 1\nmost = 1\nsource = "x"\n'
        'families = [{ family = "gemm", sharpness = 2, low = 0.9, high = 1.1 }]\n'
    )
    file = tmp_path / "one.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"one.toml: chip.power must be there with \[power\]"):
        HardwareSpec.load(file)
    file.write_text(text + '[chip.power]\ntdp_w = 400\nsource = "x"\n')
    with pytest.raises(InputError, match=r"power\.idle_w must be below the limit of 400 W, got 500"):
        HardwareSpec.load(file)


AMOUNT = st.floats(0, 1e16)
TIME = st.floats(0.5, 1e7)
WORKS = st.builds(
    lambda us, family, precision, flops, hbm, l2, clocked: work(
        us, family, **{precision: flops}, hbm_bytes=hbm, l2_bytes=l2, clocked=clocked
    ),
    TIME, st.sampled_from([*FAMILIES, "unheard-of"]), st.sampled_from(["bf16", "fp8", "nvfp4", "attention"]), AMOUNT,
    AMOUNT, AMOUNT, st.floats(0, 1),
)  # fmt: skip


def constants_of(name: str) -> PowerConstants:
    found = power_constants(HardwareSpec.load(name))
    assert found is not None
    return found


@given(WORKS, st.sampled_from(KNOWN))
def test_watts_are_between_idle_and_the_limit(some: KernelWork, name: str) -> None:
    constants = constants_of(name)
    drawn = kernel_power(constants, some)
    assert idle_power(constants) <= drawn.low_w[0] <= drawn.power_w[0] <= drawn.high_w[0]
    assert drawn.power_w[0] <= constants.share * constants.limit_w * (1 + 1e-9)
    assert drawn.high_w[0] <= constants.most * constants.limit_w


@given(WORKS, st.sampled_from(KNOWN), st.floats(1, 100), st.integers(0, 3))
def test_more_work_or_time_never_takes_less_energy(some: KernelWork, name: str, times: float, what: int) -> None:
    constants = constants_of(name)
    more = [
        replace(some, flops={key: flops * times for key, flops in some.flops.items()}),
        replace(some, hbm_bytes=some.hbm_bytes * times), replace(some, l2_bytes=some.l2_bytes * times),
        replace(some, time_us=some.time_us * times),
    ][what]  # fmt: skip
    less, much = (kernel_power(constants, each).energy_mj(each.time_us).power_w[0] for each in (some, more))
    assert much >= less * (1 - 1e-9)


@given(WORKS, st.sampled_from(KNOWN), st.floats(0.35, 1), st.floats(0.35, 1))
def test_a_lower_limit_is_never_faster_and_never_exceeded(
    some: KernelWork, name: str, one: float, other: float
) -> None:
    constants = constants_of(name)
    low, high = sorted(each * constants.limit_w for each in (one, other))
    (at_low, slow), (at_high, fast) = limited(constants, some, low), limited(constants, some, high)
    assert slow[0] >= fast[0] * (1 - 1e-9)
    assert fast[0] >= some.time_us[0]
    assert at_low.power_w[0] <= at_high.power_w[0] * (1 + 1e-9)
    assert idle_power(constants) <= at_low.power_w[0] <= low * (1 + 1e-9)


@given(WORKS, st.sampled_from(KNOWN), st.one_of(st.none(), st.floats(1, 3)))
def test_without_a_lower_limit_times_and_watts_stay(some: KernelWork, name: str, above: float | None) -> None:
    constants = constants_of(name)
    held, us = limited(constants, some, None if above is None else above * constants.limit_w)
    assert us is some.time_us
    assert all((a == b).all() for a, b in zip(held, kernel_power(constants, some), strict=True))


@pytest.mark.parametrize("name", MEASURED)
def test_every_measured_family_says_how_far_off_it_was(name: str) -> None:
    power = HardwareSpec.load(name).power
    assert power is not None
    needed = ("gemm", "moe", "context-attention", "generation-attention", "quantize-matrix")
    assert {f"{family} vllm" for family in needed} <= set(power.families)
    assert all(row.error_percent and row.rows for row in power.families.values())
    assert all(row.low <= 1 <= row.high for row in power.families.values())


def test_kernels_of_an_unknown_library_draw_as_those_that_graphs_launch() -> None:
    b200 = constants_of("b200")
    assert {"moe vllm", "moe trtllm"} <= set(b200.families)
    named = {
        library: family_named(b200, work(10, f"moe {library}".strip(), bf16=1)) for library in ("", "trtllm", "sglang")
    }
    assert named == {"": "moe vllm", "trtllm": "moe trtllm", "sglang": "moe vllm"}
    assert family_named(b200, work(10, "unheard-of", bf16=1)) == "gemm vllm"
    assert family_named(b200, work(10, "unheard-of", hbm_bytes=1)) == "quantize-matrix vllm"


@pytest.mark.shared
@pytest.mark.parametrize("name", ["encoder-attention", "quantize-matrix", "mla-generation-module"])
def test_energies_not_fitted_on_a_shape_group_meet_its_settled_readings(shared_data: Path, name: str) -> None:
    """The error that device files state is that of each half of the shape groups by the energies of the other."""
    table = pd.read_parquet(shared_data / "power" / f"{name.replace('-', '_')}.parquet")
    rows = table[(table["device"] == "b200_sxm") & (table["latency_ms"] > 0.02) & (table["framework"] == "trtllm")]
    b200 = HardwareSpec.load("b200")
    assert b200.power is not None
    family, base = Family(name, f"{name} trtllm", b200, rows), replace(b200.power, families={})
    ratio = family.unseen(base)[0]
    error = float(np.abs(ratio[family.settled] - 1).mean() * 100)
    stated = b200.power.families[f"{name} trtllm"]
    assert error == pytest.approx(stated.error_percent, abs=0.1)
    assert error < 12
    over = 1 / ratio[family.settled]
    assert 0.85 < (over >= stated.low).mean() < 0.95
    assert (over <= stated.high).mean() > 0.85, "higher than nine tenths of readings where their loops read low"


def test_half_of_what_a_loop_of_a_second_reads_is_its_own() -> None:
    """Samples at 0, 0.1 ... s, each a mean of the second before: of eleven 0 + 0.1 + ... + 1 = 5.5 are the loop's."""
    assert own_share(np.array([1, 3, 11, 21])).tolist() == pytest.approx([0, 0.1, 0.5, 15.5 / 21])
    # A layer of 20 ms that ran 20 times before, 0.4 s: of three samples (0.4 + 0.5 + 0.6) / 3; of 60 ms all
    assert own_share(np.array([3, 3]), np.array([0.4, 1.2])).tolist() == pytest.approx([0.5, 1])
    idle_before, busy_before = (float(shown(PLAIN, np.array([700.0]), np.array([0.5]), busy)[0]) for busy in (0, 1))
    assert (idle_before, busy_before) == (100 + 0.5 * 600, 700)


def test_samples_are_those_of_loops_as_long_and_never_fewer_than_the_digits_show() -> None:
    """A mean of ten whole mW may look like one of five, two or one; what looks like one may be one."""
    sums = np.random.default_rng(40).integers(5_000_000, 7_000_000, 400)
    rows = pd.DataFrame({"power_w": sums / 10 / 1000, "latency_ms": np.linspace(1, 2, 400), "x_dtype": "bf16"})
    found = loop_samples(rows)
    assert (found[sums % 10 != 0] == 10).mean() > 0.95
    assert set(found[sums % 10 == 0]) == {1}
    assert (found % np.array([samples(watts) for watts in rows["power_w"]]) == 0).all()


@pytest.mark.shared
def test_long_layers_fill_the_second_before_their_loops_and_so_read_what_they_draw(shared_data: Path) -> None:
    """MLA's prompts on B200 by TensorRT-LLM: with what warms layers up, the law of loops is nearer to all readings, and
    energies of the other shape groups to those that are all but the layer's own.
    """
    table = pd.read_parquet(shared_data / "power" / "mla_context_module.parquet")
    rows = table[(table["device"] == "b200_sxm") & (table["latency_ms"] > 0.02) & (table["framework"] == "trtllm")]
    b200 = HardwareSpec.load("b200")
    assert b200.power is not None
    family, base = (
        Family("mla-context-module", "mla-context-module trtllm", b200, rows),
        replace(b200.power, families={}),
    )
    shows, drawn, loop, over = family.unseen_loop(base)
    own = family.own > MOSTLY_OWN
    assert own.sum() >= 20
    assert abs(drawn[own] - 1).mean() < 0.08
    assert abs(shows[family.settled] - 1).mean() < 0.08
    assert (loop.before.max() < 0.4, loop.lag, over > 1.2) == (True, None, True)
    family.own = own_share(loop_samples(family.rows))
    assert abs(family.unseen_loop(base)[0][family.settled] - 1).mean() > 1.2 * abs(shows[family.settled] - 1).mean()


@pytest.mark.shared
def test_products_all_but_alike_read_the_limit_or_what_is_left_of_it_after_a_second_of_idling(
    shared_data: Path,
) -> None:
    """B200, FP8 in blocks, 2,560 x 10,240: 2,817 and 3,328 rows read 973 and 977 W, 3,072 between them 615 W."""
    table = pd.read_parquet(shared_data / "power" / "gemm.parquet")
    of = (table["device"] == "b200_sxm") & (table["framework"] == "trtllm") & (table["gemm_dtype"] == "fp8_block")
    rows = table[of & (table["n"] == 2560) & (table["k"] == 10240) & table["m"].between(2816, 4097)]
    power, watts = HardwareSpec.load("b200").power, rows["power_w"].to_numpy(float)
    assert power is not None
    after_idle = shown(power, np.array([976.0]), own_share(np.array([10])), 0.0)[0]
    near = np.minimum(abs(watts / 976 - 1), abs(watts / after_idle - 1))
    assert near.max() < 0.1
    assert len(rows) >= 6
    assert 0.2 < (watts > 900).mean() < 0.8


def test_a_list_of_cases_is_in_the_collector_s_order_without_sizes_that_a_type_was_never_seen_with() -> None:
    """TensorRT-LLM's products: n and k downwards, then types, then rows of A downwards; NVFP4 has no row of one."""
    rows = pd.DataFrame(
        [(64, 32, "bfloat16", 1), (128, 32, "bfloat16", 2), (128, 16, "nvfp4", 2), (64, 16, "bfloat16", 2)],
        columns=["n", "k", "gemm_dtype", "m"],
    )
    cases = in_order("gemm", "trtllm", rows)
    assert cases is not None
    assert cases[["n", "k", "gemm_dtype", "m"]].to_numpy().tolist() == [
        [128, 32, "bfloat16", 2], [128, 32, "bfloat16", 1],
        [128, 16, "bfloat16", 2], [128, 16, "bfloat16", 1], [128, 16, "nvfp4", 2],
        [64, 32, "bfloat16", 2], [64, 32, "bfloat16", 1],
        [64, 16, "bfloat16", 2], [64, 16, "bfloat16", 1],
    ]  # fmt: skip
    assert in_order("mla-bmm", "trtllm", rows) is None


def test_a_list_of_decoding_cases_has_batch_sizes_in_the_order_of_a_set_and_only_those_with_room() -> None:
    """64 of 64 heads leave 131,072 tokens: lengths of 8,192 have room for 16 sequences, of 32,768 for four, which is too
    few; 2,048 sequences leave out the longest of theirs.
    """
    sizes = [(1, 31), (16, 8191), (2048, 31), (8, 32767), (2048, 63)]
    rows = pd.DataFrame(sizes, columns=["batch_size", "step"]).assign(
        head_dim=128, num_heads=64, num_key_value_heads=64, window_size=0, kv_cache_dtype="fp8"
    )
    for library in ("trtllm", "vllm"):
        cases = in_order("generation-attention", library, rows)
        assert cases is not None
        found = cases[["batch_size", "step"]].to_numpy().tolist()
        assert found[-1] == [16, 8191]
        assert [each for each in found if each[0] == 2048] == [[2048, 31]]
        assert sorted({step for _, step in found}) == [31, 63, 8191]


@pytest.mark.shared
@pytest.mark.parametrize("device", ["b200_sxm", "gb200"])
def test_what_ran_before_tells_in_readings_of_loops_too_short_for_a_second_sample(
    shared_data: Path, device: str
) -> None:
    """TensorRT-LLM's decoding cases of 16 sequences follow those of 2,048, those of 2 and 64 follow small ones."""
    table = pd.read_parquet(shared_data / "power" / "generation_attention.parquet")
    every = table[(table["device"] == device) & (table["framework"] == "trtllm")]
    cases = in_order("generation-attention", "trtllm", every)
    assert cases is not None
    assert len(every.merge(cases, on=list(cases))) == len(every)
    short = every[every["latency_ms"] < 0.02].groupby("batch_size")["power_w"].median()
    assert short[16] > 1.4 * short[[2, 64]].max()


@pytest.mark.shared
def test_readings_of_decoding_are_explained_by_all_that_ran_in_the_second_before(shared_data: Path) -> None:
    """By TensorRT-LLM on B200: nearer to shapes that were not fitted than with a case before that is like the loop."""
    table = pd.read_parquet(shared_data / "power" / "generation_attention.parquet")
    every = table[(table["device"] == "b200_sxm") & (table["framework"] == "trtllm")]
    b200 = HardwareSpec.load("b200")
    assert b200.power is not None
    family = Family("generation-attention", "generation-attention trtllm", b200, every, every)
    base = replace(b200.power, families={})
    known = family.unseen_loop(base)[0]
    assert abs(known[family.settled] - 1).mean() < 0.15
    family.cases = family.listed = None
    assert abs(family.unseen_loop(base)[0] - 1).mean() > 1.2 * abs(known - 1).mean()


def test_readings_after_an_idle_second_are_low_by_what_is_not_their_own() -> None:
    """100 W idle, 700 W drawn, half of it the loop's: 400 W after nothing, 550 W after 400 W, 700 W after its like."""
    half = np.array([0.5])
    found = [shown(PLAIN, np.array([700.0]), half, 1.0, earlier)[0] for earlier in (100.0, 400.0, None)]
    assert found == [400, 550, 700]


@pytest.mark.shared
@pytest.mark.parametrize(("device", "devices"), [("b200_sxm", 8), ("gb200", 4)])
def test_as_many_loops_as_a_node_has_devices_read_what_other_products_left(
    shared_data: Path, device: str, devices: int
) -> None:
    """TensorRT-LLM's BF16 products: the devices of a node take the next case of one list each, so the first 8 or 4 of
    each list of rows follow small products of another type; the next as many, as large, follow their like.
    """
    table = pd.read_parquet(shared_data / "power" / "gemm.parquet")
    every = table[(table["device"] == device) & (table["framework"] == "trtllm")]
    cases = in_order("gemm", "trtllm", every)
    assert cases is not None
    columns = ["n", "k", "gemm_dtype"]
    cases["place"] = cases.groupby(columns).cumcount()
    rows = every.merge(cases, on=[*columns, "m"])
    rows = rows[(rows["gemm_dtype"] == "bfloat16") & (rows["latency_ms"] > 0.03) & (rows["k"] >= 2048)]
    share = rows["power_w"] / rows["power_limit_w"]
    first, next_ones = share[rows["place"] < devices], share[rows["place"].between(devices, 2 * devices - 1)]
    assert (len(first) >= 10, len(next_ones) >= 8) == (True, True)
    assert first.median() < 0.75 * next_ones.median()


@pytest.mark.shared
@pytest.mark.sweep
def test_readings_alone_tell_how_many_devices_took_cases_of_one_list(shared_data: Path) -> None:
    """TensorRT-LLM's products on GB200, a node of four: the lag that fits readings best, of 1 to 16 that are tried; with
    it the law of loops is nearer to readings of shapes that were not fitted than with a case before like the loop's.
    """
    table = pd.read_parquet(shared_data / "power" / "gemm.parquet")
    every = table[(table["device"] == "gb200") & (table["framework"] == "trtllm")]
    gb200 = HardwareSpec.load("gb200")
    assert gb200.power is not None
    family, base = Family("gemm", "gemm trtllm", gb200, every, every), replace(gb200.power, families={})
    shows, _, loop, _ = family.unseen_loop(base)
    assert loop.lag == 4
    settled = family.settled & ~family.paced
    known = abs(shows[settled] - 1).mean()
    family.cases = None
    assert known < 0.15 < abs(family.unseen_loop(base)[0][settled] - 1).mean()


def test_long_products_draw_the_limit_and_small_passes_do_not() -> None:
    """The fastest BF16 products: H200 draws 700 W, B200 1,000, GB200 1,200."""
    for device, limit in (("h200-sxm", 700), ("b200", 1000), ("gb200", 1200)):
        most = tl.estimate("gemm", {"m": 16384, "n": 16384, "k": 16384}, device=device)["power_w"][0]
        least = tl.estimate("quantize-scale", {"m": 16, "k": 1024}, device=device)["power_w"][0]
        assert 0.93 * limit < most < limit
        assert least < 0.7 * limit
