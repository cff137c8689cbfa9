"""Fits the energies of kernels on measured watts, and reports the error on shape groups not fitted.

    python benchmarks/fit_power.py FOLDER [--write] [--errors FILE] [--quiet]

FOLDER holds aiconfigurator's tables with ``power_w`` and ``power_limit_w`` by family (``gemm.parquet``; reading them
takes pyarrow), of kernels in a loop. Rows above 20 us are fitted, in two halves by shape group, never by row; errors
are |estimate / measured - 1| in percent, mean / median, each half by the energies of the other, at the measured time
and, after it, at the estimated one. ``scatter`` is how far settled readings are from the median of their nearest five
by shape, time and library: no model of shapes and times can be far below it.

What a reading is (ai-dynamo/aiconfigurator, collector/helper.py, ``benchmark_with_power``): the mean of NVML's power at
0, 0.1, 0.2 ... s of a loop, each of which is the mean of the second before it (NVML's reference,
``nvmlDeviceGetPowerUsage``). Of n samples a share of ``own_share(n)`` is the kernel's own: 0 of one, a half of eleven,
which is the most that a loop of 1 s has; with the runs that warm it up (``WARM_UPS``) all of a kernel of 50 ms. The
rest is what ran before: the kernel measured before it, or set-up. Most read too low, so the fit is a median of
``settled`` readings (whose digits show six samples or more, as those of every second such loop do) with a weight of
three, and for others the upper quarter (an error above them counts a third).

``loop`` is the error of energies that are fitted with that law: a share ``before`` per table says how much of the
second before a loop was as busy as the loop, or, where the order of the cases is known (``ORDERS``), as what ran
``lag`` cases earlier, at its estimated time and by the same energies, or as an idle device where nothing did; products
have a share per type, as their weights are made in different ways. ``lag`` is fitted, too: of TensorRT-LLM's products
it is how many devices a node has, 8 on B200 and 4 on GB200. Loops of decoding attention are short, each device ran
several in a second: its readings follow the mean of those cases of the list that took a second of all the node's
devices (``second_before``), a loop each after a set-up of ``setup_s`` and, by vLLM, ``sequence_s`` per sequence, both
fitted. Readings weigh by their own share. What devices draw by these energies is ``drawn`` times the readings, and
``own`` how far that is from readings of which more than ``MOSTLY_OWN`` is the kernel's. Rows of ``EAGER`` that take
more than twice what the device's rates allow are in the fit and in the errors of all, not among the settled: the host
paces such a loop, its kernel is shorter. A reading of
``quantize-scale`` is of the loop that quantizes, too; its time is the difference of two loops.

``--write`` puts energies fitted on all groups into the device files, ``--errors`` the errors into a table.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from tracelens.backends.base import ColumnBatch
from tracelens.backends.kernels import kernel_table
from tracelens.backends.roofline_and_tile import works
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import POWER_TERMS, FamilyPower, PowerConstants
from tracelens.hardware.power import DECODING, STATE, KernelWork, kernel_power
from tracelens.hardware.spec import FOLDER
from tracelens.predict.calibration.device import quoted, replaced_tables, rounded
from tracelens.predict.calibration.fitting import Descent, gauss_newton
from tracelens.predict.estimation.estimate import estimate, precision_of
from tracelens.predict.estimation.table_kinds import KINDS, batches, with_sizes

COLUMNS = ("time_us", "hbm_bytes", "l2_bytes")
LEAST_US, SETTLED, MOST_SAMPLES = 20.0, 6, 60
GROUPS = {
    "gemm": ("n", "k"), "moe": ("hidden_size", "inter_size", "num_experts", "topk"),
    "context-attention": ("num_heads", "num_key_value_heads", "head_dim", "window_size"),
    "generation-attention": ("num_heads", "num_key_value_heads", "head_dim", "window_size"),
}  # fmt: skip
Bounds: TypeAlias = Mapping[str, tuple[float, float, float]]
#: Fewer shape groups than these are divided further, by the ways in which ranks share a layer.
FEW, SHARES = 4, ("moe_tp_size", "moe_ep_size")
#: Tables measured without graphs, and which of their rows; how often the least time counts as paced by the host.
EAGER, PACED = {"gemm vllm": ("gemm_dtype", "fp8_block")}, 2.0
#: s between samples of a loop, and of NVML's own mean.
SAMPLE_S, MEAN_S = 0.1, 1.0
#: How often a kernel ran right before its loop: num_warmups, eagerly and again as a graph (helper.py), of which
#: collectors of layers say 10 and others 3. Of 0, 6, 20 and 40 runs, 20 fit readings of MLA's and DSA's prompts best:
#: errors of 9.9, 8.3, 7.0, 7.1 and 13.8, 11.0, 9.4, 9.9 %.
LAYERS, WARM_UPS, OTHERS_WARM_UPS = "module", 20, 6
#: Readings of which so much is the kernel's are what it draws.
MOSTLY_OWN = 0.8
#: In which order collectors run their cases, the slowest columns first, those of one bracket together, "-": downwards
#: (collector: trtllm and vllm's collect_gemm.py, collect_attn.py and collect_computescale.py, case_generator.py).
#: A list is of one device type and library; its devices take the next case each, so what ran before a loop is some
#: cases earlier (``lag``).
_HEADS = ("head_dim", "num_heads", "num_key_value_heads", "window_size")
ORDERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "gemm trtllm": (("-n",), ("-k",), ("gemm_dtype",), ("-m",)),
    "gemm vllm": (("-m",), ("-n",), ("-k",), ("gemm_dtype",)),
    "context-attention": (_HEADS, ("-isl",), ("-batch_size",), ("attn_dtype", "kv_cache_dtype")),
    "generation-attention": (_HEADS, ("batch_size",), ("step",), ("kv_cache_dtype",)),
    "quantize-scale": (("-m",), ("-k",)),
}
#: Batch sizes of decoding in the order of the Python set that collectors (collect_attn.py) put 1, 2, 4 ... 2048 into.
BATCHES = (32, 1, 2, 64, 4, 128, 256, 512, 8, 1024, 2048, 16)
#: Tokens times heads of a decoding case at most: as many key as query heads, and fewer. A length is in the list where
#: ``LEAST_BATCH`` sequences have room; those of ``LARGE_BATCH`` leave out their longest (attention_generation.yaml).
MOST_TOKENS, LEAST_BATCH, LARGE_BATCH = (2**23, 2**24), 8, 256
#: Devices that take cases of one list.
DEVICES, NODES = 8, {"gb200": 4}
#: Most replays of a loop, and s that it takes at most (helper.py).
MOST_RUNS, LOOP_S = 3000, 1.0
#: Columns whose product is at most the largest in the table: larger cases were not run.
LIMITED_BY = {"context-attention": ("batch_size", "isl")}
#: Types whose weights are made in different ways before a loop: TensorRT-LLM's of NVFP4 pass through the host.
SET_UP_BY = {"gemm": "gemm_dtype"}
LAGS = range(1, 17)
#: Of how many rows of about the same time the samples are compared, and which of them count as complete.
_ALIKE, _COMPLETE = 21, 0.8
#: Start, least and most of a constant; of ``active_w`` the most is a share of the limit.
BOUNDS = {
    "sharpness": (3.0, 1.5, 12.0), "active_w": (60.0, 0.1, 0.25), "hbm_pj": (40.0, 0.01, 150.0),
    "l2_pj": (15.0, 0.01, 150.0), "flop_pj": (0.4, 0.005, 3.0),
    # chunks of a scan multiply more than the recurrence that FLOPs count
    "state_pj": (3.0, 0.005, 60.0),
    # the share of the second before a loop that was as busy
    "before": (0.6, 0.02, 1.0),
    # what a decoding case takes before its loop, and for each of its sequences
    "setup_s": (0.1, 0.01, 3.0), "sequence_s": (1e-4, 1e-6, 1e-2),
}  # fmt: skip
_DESCENT = Descent(rounds=100, noise=0.05, step=1e-3, tolerance=1e-6)
_NEIGHBOURS = 5
#: Errors that the table of them has, and how they are called there.
CSV_COLUMNS = {
    "drawn, own": "own", "watts, settled": "settled", "watts, all": "all", "watts, loop, settled": "loop_settled",
    "watts, loop, all": "loop_all", "scatter": "scatter",
}  # fmt: skip
#: Fewer rows say nothing.
ENOUGH = 20
FIGURES = (("watts", ""), ("watts", ", loop"), ("watts", ", est. time"), ("energy", ", est. time"))
SETTLED_WEIGHT, LAG_WEIGHT, STARTS = 3.0, 1 / 3, (1.0, 0.3, 3.0)
LINK = (
    10.4,
    "NVIDIA Grace Hopper whitepaper: NVLink-C2C takes 1.3 pJ per bit; not measured for NVLink between devices",
)
SOURCE = (
    "aiconfigurator measured tables (Apache-2.0) with power_w, NVML in loops of 1 s or less: {rows} rows above 20 us, "
    "all shape groups; benchmarks/fit_power.py; error_percent, low and high: of each half by the energies of the "
    "other; high at least what devices draw by the law of such loops"
)


def samples(watts: float) -> int:
    """Over how many samples of whole mW a mean was taken, at least."""
    found = (n for n in range(1, MOST_SAMPLES) if abs(watts * 1e3 * n - round(watts * 1e3 * n)) < 2e-3)
    return next(found, MOST_SAMPLES)


def loop_samples(rows: pd.DataFrame) -> np.ndarray:
    """Samples of each loop: the multiple of ``samples`` that loops of about the same time and the same types had, since
    a sum that a divisor of their number divides looks like fewer. What looks like one stays one: some are.
    """
    found = rows["power_w"].map(samples)
    types = rows.filter(regex="_dtype$").astype(str).agg("/".join, axis=1) if len(rows) else found
    for _, alike in rows.sort_values("latency_ms", kind="stable").groupby(types):
        least = found[alike.index]
        most = least.rolling(_ALIKE, center=True, min_periods=1).quantile(_COMPLETE)
        found[alike.index] = least * np.where(least > 1, np.maximum(np.rint(most / least), 1), 1).astype(int)
    return found.to_numpy()


def own_share(counts: np.ndarray, warmed_s: np.ndarray | float = 0.0) -> np.ndarray:
    """The share of a reading of so many samples that the loop itself drew, and the runs before it of ``warmed_s``."""
    before = np.broadcast_to(warmed_s, len(counts)).tolist()
    return np.array([
        np.minimum((np.arange(count) * SAMPLE_S + each) / MEAN_S, 1).mean()
        for count, each in zip(counts.tolist(), before, strict=True)
    ])  # fmt: skip


def in_order(name: str, library: str, table: pd.DataFrame) -> pd.DataFrame | None:
    """All cases of the list that ``table`` is a part of, in their order; None where that is unknown."""
    order = ORDERS.get(f"{name} {library}", ORDERS.get(name))
    if order is None:
        return None
    blocks = [[column.lstrip("-") for column in block] for block in order]
    cases = pd.DataFrame({"of": [0]})
    for block, columns in zip(order, blocks, strict=True):
        values = table[columns].drop_duplicates()
        values = values.sort_values(columns, ascending=[not column.startswith("-") for column in block])
        if name == DECODING and columns == ["batch_size"]:
            values = values.sort_values("batch_size", key=lambda sizes: sizes.map(BATCHES.index))
        cases = cases.merge(values.assign(of=0), on="of")
    for dtype in (column for column in cases if column.endswith("_dtype")):
        for size in (columns[0] for columns in blocks if len(columns) == 1 and columns != [dtype]):
            cases = cases.merge(table[[dtype, size]].drop_duplicates(), on=[dtype, size])
    if name in LIMITED_BY:
        most = table[list(LIMITED_BY[name])].prod(axis=1).max()
        cases = cases[cases[list(LIMITED_BY[name])].prod(axis=1) <= most].reset_index(drop=True)
    if name == DECODING:
        cases = decoding_cases(cases, library)
    return cases.drop(columns="of")


def decoding_cases(cases: pd.DataFrame, library: str) -> pd.DataFrame:
    """Those of all sizes that collectors run."""
    most = np.where(cases["num_heads"] == cases["num_key_value_heads"], *MOST_TOKENS)
    if library == "vllm":
        most = most * 128 // cases["head_dim"]
    tokens = cases["batch_size"].clip(lower=LEAST_BATCH) * (cases["step"] + 1)
    cases = cases[tokens * cases["num_heads"] <= most]
    longest = cases.groupby([*_HEADS, "batch_size"])["step"].transform("max")
    return cases[(cases["batch_size"] < LARGE_BATCH) | (cases["step"] < longest)].reset_index(drop=True)


def column_batches(name: str, table: pd.DataFrame) -> Iterator[tuple[np.ndarray, ColumnBatch]]:
    """Rows of one measured table and their batch, rows of types without estimates left out."""
    kernels = kernel_table(name)
    if kernels is not None:
        yield from batches(kernels, table, np.arange(len(table)))
        return
    sized = with_sizes(table, KINDS[name])
    for dtype, part in sized.groupby(KINDS[name].dtype):
        precision = precision_of(str(dtype))
        if precision is not None:
            yield part.index.to_numpy(), KINDS[name].columns(part, precision)


def joined(parts: list[tuple[np.ndarray, KernelWork]], rows: int) -> KernelWork:
    """One work of all rows."""
    first = parts[0][1]
    names = sorted({name for _, part in parts for name in part.flops})
    whole = {key: np.full(rows, np.nan) for key in COLUMNS}
    flops = {name: np.zeros(rows) for name in names}
    for at, part in parts:
        for key, values in whole.items():
            values[at] = getattr(part, key)
        for name, values in part.flops.items():
            flops[name][at] = values
    return KernelWork(family=first.family, flops=flops, **whole)


def part_of(work: KernelWork, at: np.ndarray) -> KernelWork:
    kept = {key: getattr(work, key)[at] for key in COLUMNS}
    return replace(work, flops={name: values[at] for name, values in work.flops.items()}, **kept)


def halves(rows: pd.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """0 or 1 per row, rows of one shape group alike; of few groups by how a rank shares them, too."""
    shared = [name for name in SHARES if name in rows]
    for chosen in (keys, [*keys, *shared]):
        groups = rows[list(chosen)].astype(str).agg("/".join, axis=1)
        order = sorted(set(groups), key=lambda text: zlib.crc32(text.encode()))
        half = groups.map({text: at % 2 for at, text in enumerate(order)}).to_numpy()
        if len(order) >= FEW:
            break
    return half


def titles(name: str, rows: pd.DataFrame) -> pd.Series:
    """The row of ``[power]`` that each row of a table belongs to, as column batches name them."""
    convolves = rows.get("kernel_source", pd.Series("", rows.index)).str.contains("conv1d")
    return name + convolves.map({True: "-conv ", False: " "}) + rows["framework"]


class Loop(NamedTuple):
    """What loops of one table show: energies, the share of the second before each that was busy, what was drawn then
    (None where that is of one case), and how many cases earlier that was (None where the order is unknown, and the case
    before is as the loop's own).
    """

    row: FamilyPower
    before: np.ndarray
    earlier_w: np.ndarray | None = None
    lag: int | None = None


class Family:
    """Kernels of one table by one library on one device: rows above 20 us, and their work at the measured time."""

    def __init__(
        self, name: str, family: str, device: HardwareSpec, table: pd.DataFrame, every: pd.DataFrame | None = None
    ) -> None:
        """``every``: the table with short kernels of this library on this device, of whose cases the list is made."""
        self.table, self.name, self.device = name, family, device
        own = table[table["latency_ms"] * 1e3 > LEAST_US].reset_index(drop=True)
        counts = loop_samples(own)
        estimated = estimate(name, own)["time_us"].to_numpy(float)
        kept = np.isfinite(estimated)
        own, counts = own[kept].reset_index(drop=True), counts[kept]
        self.estimated_us = estimated[kept]
        self.rows, self.watts = own, own["power_w"].to_numpy(float)
        warm_ups = WARM_UPS if name.endswith(LAYERS) else OTHERS_WARM_UPS
        self.own = own_share(counts, warm_ups * own["latency_ms"].to_numpy(float) * 1e-3)
        self.settled = np.array([samples(watts) >= SETTLED for watts in self.watts.tolist()])
        self.work = self._work(own)
        self.paced = self._paced()
        kernels = kernel_table(name)
        keys = [key for key in (GROUPS[name] if kernels is None else kernels.groups) if key in own]
        self.half = halves(own, keys)
        set_up = SET_UP_BY.get(name)
        self.types = np.zeros(len(own), int) if set_up is None else pd.factorize(own[set_up], sort=True)[0]
        self.cases = in_order(name, family.rpartition(" ")[2], table if every is None else every)
        self._earlier: dict[int, KernelWork] = {}
        self.listed: KernelWork | None = None
        if self.cases is not None:
            columns = list(self.cases)
            places = self.cases.assign(place=np.arange(len(self.cases)))
            self.places = own[columns].merge(places, on=columns, how="left")["place"].to_numpy(int)
            if name == DECODING:
                self.listed = self._estimated(self.cases, own.iloc[np.zeros(len(self.cases), int)])

    def earlier(self, lag: int) -> KernelWork:
        """Of each row what was measured ``lag`` cases earlier, in estimated times; NaN where nothing was."""
        if lag not in self._earlier:
            assert self.cases is not None
            found = self._estimated(self.cases.iloc[np.maximum(self.places - lag, 0)], self.rows)
            self._earlier[lag] = replace(found, time_us=np.where(self.places < lag, np.nan, found.time_us))
        return self._earlier[lag]

    def _estimated(self, cases: pd.DataFrame, others: pd.DataFrame) -> KernelWork:
        """Work of cases in estimated times, their other columns as those of ``others``."""
        columns = others.drop(columns=["latency_ms", *cases]).reset_index(drop=True)
        rows = pd.concat([columns, cases.reset_index(drop=True)], axis=1)
        us = estimate(self.table, rows)["time_us"].to_numpy(float)
        found = self._work(rows.assign(latency_ms=us * 1e-3))
        assert found is not None
        return found

    def second_before(self, constants: PowerConstants, setup_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which share of the second before each row's loop the node's devices were busy, and what they drew then: of
        cases of the list that took a second of all devices, the mean.
        """
        assert self.listed is not None
        loop_s = np.minimum(MOST_RUNS * self.listed.time_us * 1e-6, LOOP_S)
        devices_s = MEAN_S * NODES.get(self.device.name, DEVICES)
        over_idle_w = kernel_power(constants, self.listed).power_w - constants.idle_w
        clock, busy_s, joules = (
            np.append(0.0, each.cumsum()) for each in (setup_s + loop_s, loop_s, loop_s * over_idle_w)
        )
        now = clock[self.places]
        since = np.maximum(now - devices_s, 0.0)
        ran, drew = (np.interp(now, clock, each) - np.interp(since, clock, each) for each in (busy_s, joules))
        return ran / devices_s, constants.idle_w + drew / np.maximum(ran, 1e-9)

    def _work(self, rows: pd.DataFrame) -> KernelWork | None:
        us = rows["latency_ms"].to_numpy(float) * 1e3
        parts = [
            (at[inner], work)
            for at, batch in column_batches(self.table, rows)
            for inner, work in works(batch, self.device, us[at])
        ]
        return replace(joined(parts, len(rows)), family=self.name) if parts else None

    def _paced(self) -> np.ndarray:
        """Rows of ``EAGER`` that the host paces."""
        column, dtype = EAGER.get(self.name, ("", ""))
        precision, memory, work = precision_of(dtype), self.device.hbm, self.work
        rate = None if precision is None else self.device.rate("matrix", precision.dtype)
        if work is None or rate is None or memory is None:
            return np.zeros(len(self.rows), bool)
        least_us = 1e-6 * (sum(work.flops.values()) / rate.peak_tflops_s + work.hbm_bytes / memory.peak_tb_s)
        return (self.rows[column] == dtype).to_numpy() & (work.time_us > PACED * least_us)

    def bounds(self) -> Bounds:
        assert self.work is not None
        start, least, share = BOUNDS["active_w"]
        watts = (start, least, share * (self.device.tdp_w or 0.0))
        found = {"sharpness": BOUNDS["sharpness"], "active_w": watts, "l2_pj": BOUNDS["l2_pj"]}
        if self.work.hbm_bytes.any():
            found["hbm_pj"] = BOUNDS["hbm_pj"]
        return found | {
            f"flop_pj.{name}": BOUNDS["state_pj" if name == STATE else "flop_pj"] for name in self.work.flops
        }

    def fit(self, base: PowerConstants, rows: np.ndarray) -> FamilyPower:
        """On some rows, by logarithms, which see by how much an estimate is too small."""
        assert self.work is not None
        work, settled, target = part_of(self.work, rows), self.settled[rows], np.log(self.watts[rows])

        def weighed(values: Mapping[str, float]) -> np.ndarray:
            off = np.log(kernel_power(with_row(base, self.name, row_of(values)), work).power_w) - target
            return np.where(settled, SETTLED_WEIGHT * off, np.where(off > 0, LAG_WEIGHT * off, off))

        return row_of(descended(self.bounds(), weighed)[0])

    def fit_loop(self, base: PowerConstants, rows: np.ndarray) -> Loop:
        """What the device draws where readings are what such a loop shows, and what ran before."""
        own, target = SETTLED_WEIGHT * self.own[rows], np.log(self.watts[rows])
        shares = {f"before.{each}": BOUNDS["before"] for each in range(self.types.max() + 1)}
        if self.listed is not None:
            sets_up = ("setup_s", "sequence_s") if self.name.endswith("vllm") else ("setup_s",)
            shares = {name: BOUNDS[name] for name in sets_up}
        bounds = {**self.bounds(), **shares}

        def loop_of(values: Mapping[str, float], lag: int | None) -> Loop:
            row = row_of(values)
            if self.listed is None or self.cases is None:
                return Loop(row, np.array([values[name] for name in shares])[self.types], lag=lag)
            setup_s = values["setup_s"] + values.get("sequence_s", 0.0) * self.cases["batch_size"].to_numpy(float)
            return Loop(row, *self.second_before(with_row(base, self.name, row), setup_s))

        def off(values: Mapping[str, float], lag: int | None) -> np.ndarray:
            return own * (np.log(self.shown(base, loop_of(values, lag), rows)) - target)

        values, _ = descended(bounds, partial(off, lag=None))
        if self.cases is None or self.listed is not None:
            return loop_of(values, None)
        nearest = sorted(LAGS, key=lambda lag: float((off(values, lag) ** 2).sum()))[:2]
        made = [(descended(bounds, partial(off, lag=lag), values), lag) for lag in nearest]
        (values, _), lag = min(made, key=lambda each: each[0][1])
        return loop_of(values, lag)

    def shown(self, base: PowerConstants, loop: Loop, rows: np.ndarray) -> np.ndarray:
        """Readings of loops of some rows: their own watts, and a share of what ran before them."""
        assert self.work is not None
        constants = with_row(base, self.name, loop.row)
        drawn = earlier = kernel_power(constants, part_of(self.work, rows)).power_w
        if loop.earlier_w is not None:
            earlier = loop.earlier_w[rows]
        elif loop.lag is not None:
            earlier = kernel_power(constants, part_of(self.earlier(loop.lag), rows)).power_w
        return shown(base, drawn, self.own[rows], loop.before[rows], np.nan_to_num(earlier, nan=base.idle_w))

    def unseen(self, base: PowerConstants) -> tuple[np.ndarray, np.ndarray]:
        """Estimates over readings by the energies of the other half, at measured and at estimated times."""
        ratio, at_estimate = np.ones(len(self.watts)), np.ones(len(self.watts))
        for side in (0, 1):
            of = self.half == side
            made = self.fit(base, ~of)
            ratio[of] = self.ratios(base, made)[of]
            at_estimate[of] = self.ratios(base, made, self.estimated_us)[of]
        return ratio, at_estimate

    def unseen_loop(self, base: PowerConstants) -> tuple[np.ndarray, np.ndarray, Loop, float]:
        """What a loop shows by energies of the other half, and what the device draws, over readings; the loop by those
        of all; draw over settled readings.
        """
        ratio, drawn = np.ones((2, len(self.watts)))
        for side in (0, 1):
            of = self.half == side
            loop = self.fit_loop(base, ~of)
            drawn[of] = self.ratios(base, loop.row)[of]
            ratio[of] = self.shown(base, loop, of) / self.watts[of]
        loop = self.fit_loop(base, np.ones(len(ratio), bool))
        over = self.ratios(base, loop.row)[self.settled if self.settled.any() else slice(None)]
        return ratio, drawn, loop, float(np.median(over))

    def ratios(self, base: PowerConstants, row: FamilyPower, us: np.ndarray | None = None) -> np.ndarray:
        assert self.work is not None
        work = self.work if us is None else replace(self.work, time_us=us)
        return kernel_power(with_row(base, self.name, row), work).power_w / self.watts


def shown(
    base: PowerConstants,
    drawn: np.ndarray,
    own: np.ndarray,
    before: np.ndarray | float,
    earlier: np.ndarray | float | None = None,
) -> np.ndarray:
    """Readings of loops that draw so much, of which a share is their own, after what drew ``earlier`` (the same)."""
    earlier = drawn if earlier is None else earlier
    return base.idle_w + own * (drawn - base.idle_w) + (1 - own) * before * (earlier - base.idle_w)


def descended(
    bounds: Bounds, off: Callable[[Mapping[str, float]], np.ndarray], first: Mapping[str, float] | None = None
) -> tuple[dict[str, float], float]:
    """The constants that make the squares of ``off`` least, from ``first`` or the best of ``STARTS``; their sum."""
    low, high = (np.log([each[side] for each in bounds.values()]) for side in (1, 2))

    def named(x: np.ndarray) -> dict[str, float]:
        return dict(zip(bounds, np.exp(x).tolist(), strict=True))

    def errors(x: np.ndarray) -> np.ndarray:
        return off(named(x))

    starts = [np.log([by * each[0] for each in bounds.values()]) for by in STARTS]
    if first is not None:
        starts = [np.log([first[name] for name in bounds])]
    made = (gauss_newton(errors, start.clip(low, high), low, high, _DESCENT) for start in starts)
    x, _ = min(made, key=lambda each: each[1])
    x, error = gauss_newton(errors, x, low, high, _DESCENT)
    return named(x), error


def row_of(values: Mapping[str, float]) -> FamilyPower:
    """Constants at the least that is tried leave their term out."""
    values = {name: value for name, value in values.items() if value > 1.01 * BOUNDS[name.partition(".")[0]][1]}
    flops = {name.partition(".")[2]: value for name, value in values.items() if name.startswith("flop_pj.")}
    terms = {name: value for name, value in values.items() if name in POWER_TERMS}
    return FamilyPower(
        terms=terms, flop_pj=flops, sharpness=values.get("sharpness", BOUNDS["sharpness"][1]), low=1.0, high=1.0
    )


def with_row(base: PowerConstants, name: str, row: FamilyPower) -> PowerConstants:
    return replace(base, families={**base.families, name: row})


def scatter(family: Family) -> np.ndarray:
    """How far each settled reading is from the median of the nearest settled ones by shape, time and words."""
    rows = family.rows[family.settled & ~family.paced]
    words = [name for name in rows if rows[name].dtype.kind not in "if" and name not in ("device", "version", "model")]
    sizes = [name for name in rows if rows[name].dtype.kind in "if" and not name.startswith("power_")]
    found = []
    for _, part in rows.groupby(words):
        if len(part) > _NEIGHBOURS:
            at = np.log1p(part[sizes].to_numpy(float))
            watts = part["power_w"].to_numpy(float)
            for row in range(len(part)):
                far = ((at - at[row]) ** 2).sum(axis=1)
                far[row] = np.inf
                found.append(np.median(watts[np.argsort(far, kind="stable")[:_NEIGHBOURS]]) / watts[row] - 1)
    return np.abs(found) * 100


def report(
    family: Family, base: PowerConstants, found: Errors, *, quiet: bool
) -> tuple[FamilyPower, dict[str, object]]:
    """Prints a row of errors; returns energies fitted on all groups, with what was not fitted's error and interval, and
    the row of the table of errors.
    """
    ratio, at_estimate = family.unseen(base)
    looped, drawn, loop, over = family.unseen_loop(base)
    before, lag = float(loop.before.mean()), "" if loop.lag is None else loop.lag
    energy = at_estimate * family.estimated_us / (family.rows["latency_ms"].to_numpy(float) * 1e3)
    row = family.fit(base, np.ones(len(ratio), bool))
    settled, near = family.settled & ~family.paced, scatter(family)
    shown_errors = {"scatter": near, "drawn, own": np.abs(drawn[family.own > MOSTLY_OWN] - 1) * 100}
    for each, values in zip(FIGURES, (ratio, looped, at_estimate, energy), strict=True):
        for which, rows in (("settled", settled), ("all", settled | True)):
            shown_errors[f"{''.join(each)}, {which}"] = np.abs(values[rows] - 1) * 100
    for name, errors in shown_errors.items():
        found.setdefault((family.table, name), []).append(errors)
    if not quiet:
        cells = " | ".join(mean_median(each) for each in shown_errors.values())
        print(
            f"| {family.name} | {family.device.name} | {len(ratio)} | {int(settled.sum())} | {before:.2f} | {lag} "
            f"| {over:.2f} | {cells} | {constants_text(row)}", flush=True,
        )  # fmt: skip
    seen = ratio[settled] if settled.sum() >= ENOUGH else ratio
    low, high = np.percentile(1 / seen, (10, 90))
    error = float(np.abs(seen - 1).mean()) * 100
    kind, _, library = family.name.partition(" ")
    cells_of = {
        "family": kind, "library": library, "device": family.device.name, "rows": len(ratio),
        "settled": int(settled.sum()), "before": round(before, 2), "lag": lag, "drawn_over_readings": round(over, 2),
    }  # fmt: skip
    for name, column in CSV_COLUMNS.items():
        errors = shown_errors[name]
        cells_of[f"{column}_mean_percent"] = round(float(errors.mean()), 1) if len(errors) else None
        cells_of[f"{column}_median_percent"] = round(float(np.median(errors)), 1) if len(errors) else None
    high = max(float(high), over, 1.0)
    fitted = replace(row, low=min(float(low), 1.0), high=high, error_percent=error, rows=len(ratio))
    return fitted, cells_of


def mean_median(errors: np.ndarray) -> str:
    return f"{errors.mean():.1f} / {np.median(errors):.1f}" if len(errors) else "-"


def constants_text(row: FamilyPower) -> str:
    named = {**row.terms, "sharpness": row.sharpness, **{f"pJ {name}": value for name, value in row.flop_pj.items()}}
    return " ".join(f"{name} {value:.3g}" for name, value in named.items())


def lines(power: PowerConstants) -> list[str]:
    """The ``[power]`` table of a device file."""
    found = [f"{key} = {rounded(getattr(power, key))}" for key in ("idle_w", "share", "most")]
    found += [
        f"link_pj = {LINK[0]}",
        f"link_source = {quoted(LINK[1])}",
        f"source = {quoted(power.source)}",
        "families = [",
    ]
    for name, row in power.families.items():
        cells = [f"family = {quoted(name)}", *(f"{key} = {rounded(value)}" for key, value in row.terms.items())]
        flops = ", ".join(f"{key} = {rounded(value)}" for key, value in row.flop_pj.items())
        cells += [f"flop_pj = {{ {flops} }}"] if flops else []
        cells += [f"{key} = {rounded(getattr(row, key))}" for key in ("sharpness", "low", "high", "error_percent")]
        found.append("  { " + ", ".join([*cells, f"rows = {row.rows}"]) + " },")
    return [*found, "]"]


Errors: TypeAlias = dict[tuple[str, str], list[np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="put the energies into the device files of the package")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="CSV of the errors by family, library and device")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    tables = {path.stem.replace("_", "-"): pd.read_parquet(path) for path in sorted(args.folder.glob("*.parquet"))}
    found: Errors = {}
    timed = [f"{what}{time}, {which}" for what, time in FIGURES for which in ("settled", "all")]
    columns = ["scatter", "drawn, own", *timed]
    print(f"| family | device | rows | settled | before | lag | drawn | {' | '.join(columns)} |")
    errors: list[dict[str, object]] = []
    for name in sorted({name for table in tables.values() for name in table["device"].unique()}):
        device = HardwareSpec.load(str(name))
        every = pd.concat([table[table["device"] == name][["power_w", "power_limit_w"]] for table in tables.values()])
        over = every["power_w"] / every["power_limit_w"]
        base = PowerConstants(
            limit_w=float(every["power_limit_w"].iloc[0]), idle_w=float(every["power_w"].quantile(0.001)),
            share=float(over.quantile(0.98)), most=float(over.max()), link_pj=LINK[0], families={}, source="",
        )  # fmt: skip
        made: dict[str, FamilyPower] = {}
        for family_name, table in tables.items():
            long = table[(table["device"] == name) & (table["latency_ms"] * 1e3 > LEAST_US)]
            for title, own in long.groupby(titles(family_name, long)):
                every = table[(table["device"] == name) & table["framework"].isin(own["framework"])]
                family = Family(family_name, str(title), device, own, every) if len(own) >= ENOUGH else None
                if family is not None and family.work is not None:
                    made[family.name], cells = report(family, base, found, quiet=args.quiet)
                    errors.append(cells)
        rows = sum(row.rows or 0 for row in made.values())
        power = replace(base, families=made, source=SOURCE.format(rows=rows))
        print(f"{device.name}: idle {power.idle_w:.0f} W, {power.share:.3f} of the limit, at most {power.most:.3f}")
        if args.write:
            file = FOLDER / f"{device.name}.toml"
            file.write_text(
                replaced_tables(file.read_text(encoding="utf-8"), {"power": lines(power)}), encoding="utf-8"
            )
    for family_name in tables:
        print(
            f"| {family_name} | all | "
            + " | ".join(mean_median(np.concatenate(found[family_name, each])) for each in columns)
        )
    if args.errors is not None:
        pd.DataFrame(errors).sort_values(["device", "family", "library"]).to_csv(
            args.errors, index=False, lineterminator="\n"
        )


if __name__ == "__main__":
    main()
