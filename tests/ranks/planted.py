"""A made-up job of many ranks with known stragglers, clocks and bandwidths. Imports nothing of tracelens.

Every rank computes, then enters a collective; the collective ends for all of them when the last has entered and the
bytes have moved at the planted rate. Times are floats of µs on one true clock until they are written on each host's own.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

WIDTHS = {"Float": 4, "BFloat16": 2, "Half": 2, "Float8_e4m3fn": 1, "Long": 8, "Char": 1}
#: bus bandwidth over algorithm bandwidth, n ranks (nccl-tests, doc/PERFORMANCE.md)
FACTORS = {
    "allreduce": lambda n: 2 * (n - 1) / n, "_allgather_base": lambda n: (n - 1) / n, "allgather": lambda n: (n - 1) / n,
    "_reduce_scatter_base": lambda n: (n - 1) / n, "all_to_all": lambda n: (n - 1) / n,
    "all_to_allv": lambda n: (n - 1) / n, "broadcast": lambda n: 1.0, "reduce": lambda n: 1.0,
    "gather": lambda n: (n - 1) / n, "allreduce_coalesced": lambda n: 2 * (n - 1) / n,
    "reduce_scatter_tensor_coalesced": lambda n: (n - 1) / n, "all_gather_into_tensor_coalesced": lambda n: (n - 1) / n,
}  # fmt: skip


@dataclass
class Clock:
    """What a host's clock shows at a true time: ``offset_us`` ahead, and ``drift`` faster."""

    offset_us: float = 0.0
    drift: float = 0.0

    def shows(self, at_us: float) -> float:
        return at_us + self.offset_us + self.drift * (at_us - 1_000_000)


@dataclass
class Job:
    """Configuration, and afterwards the truth: ``starts[(group, number)][rank]``, ``ends`` alike."""

    ranks: int = 4
    ranks_per_host: int = 4
    steps: int = 3
    rounds: int = 8
    straggler: int | tuple[int, ...] | None = None
    late_us: float = 300.0
    compute_us: float = 500.0
    jitter_us: float = 20.0
    end_jitter_us: float = 0.0
    bus_gb_s: float = 200.0
    clocks: dict[int, Clock] = field(default_factory=dict)
    collectives: tuple[tuple[str, str, int], ...] = (("allreduce", "BFloat16", 4_000_000),)
    exchange_tb_s: float | None = None
    tokens: int = 4096
    hidden: int = 2048
    with_world_size: bool = True
    padding: int = 0
    seed: int = 1
    starts: dict = field(default_factory=dict)
    ends: dict = field(default_factory=dict)
    shapes: dict = field(default_factory=dict)

    def host(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def late(self) -> tuple[int, ...]:
        return self.straggler if isinstance(self.straggler, tuple) else (self.straggler,)

    def groups(self) -> dict[str, list[list[int]]]:
        """Name of each group -> its members: the world, and pairs of neighbours."""
        world = list(range(self.ranks))
        pairs = [[a, a + 1] for a in range(0, self.ranks - 1, 2)]
        return {"0": [world], **{str(i): [pair] for i, pair in enumerate(pairs, 1)}}

    def write(self, folder: Path, name: str = "rank{}.json", only: tuple[int, ...] | None = None) -> list[Path]:
        """One trace per rank."""
        noise = random.Random(self.seed)  # noqa: S311
        now = [1_000_000.0] * self.ranks
        events: list[list[dict]] = [[] for _ in range(self.ranks)]
        correlation = [0] * self.ranks
        counter: dict[str, int] = {}

        def kernel(
            rank: int, title: str, start: float, end: float, stream: int, args: dict, op: dict | None = None
        ) -> None:
            correlation[rank] += 1
            clock = self.clocks.get(self.host(rank), Clock())
            begin, finish, launch = (round(clock.shows(t), 3) for t in (start, end, start - 20))
            tie = {"correlation": correlation[rank], "External id": correlation[rank]}
            if op is not None:
                events[rank].append(
                    {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": round(launch - 1, 3), "dur": 4, **op}
                )
            events[rank].append(
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1,
                    "tid": 1,
                    "ts": launch,
                    "dur": 2,
                    "args": tie,
                }
            )
            device = rank % self.ranks_per_host
            events[rank].append(
                {"ph": "X", "cat": "kernel", "name": title, "pid": device, "tid": stream, "ts": begin,
                 "dur": round(finish - begin, 3), "args": {"device": device, "stream": stream, **tie, **args}}
            )  # fmt: skip

        def compute(rank: int, late: float) -> None:
            spent = self.compute_us + noise.uniform(0, self.jitter_us) + late
            kernel(rank, "Cijk_Ailk_Bljk_BBS", now[rank], now[rank] + spent, 7, {})
            now[rank] += spent + 1
            for _ in range(self.padding):
                kernel(rank, "void at::native::vectorized_elementwise_kernel<4, F>", now[rank], now[rank] + 2, 7, {},
                       {"name": "aten::add", "args": {"Input Dims": [[1024, 1024], [1024, 1024], []], "Input type": ["float", "float", "Scalar"]}})  # fmt: skip
                now[rank] += 3

        def together(group: str, members: list[int], moving_us: float, make) -> None:
            number = counter[group] = counter.get(group, -1) + 1
            starts = {rank: now[rank] for rank in members}
            latest = max(starts.values())
            self.starts[group, number], self.ends[group, number] = starts, {}
            for rank in members:
                end = latest + moving_us + noise.uniform(-1, 1) * self.end_jitter_us
                self.ends[group, number][rank] = end
                title, args, op = make(rank)
                kernel(rank, title, starts[rank], end, 20, args, op)
                # What a rank's clock shows of the end is noisy; when it goes on is not
                now[rank] = latest + moving_us + self.end_jitter_us + 2

        for step in range(self.steps):
            begin = list(now)
            for _ in range(self.rounds):
                for collective, dtype, elements in self.collectives:
                    for group, lists in self.groups().items():
                        for members in lists:
                            for rank in members:
                                compute(rank, self.late_us if rank in self.late() else 0.0)
                            self.collective(together, group, members, collective, dtype, elements, noise)
                if self.exchange_tb_s is not None:
                    self.exchanges(together, compute, noise)
            for rank in range(self.ranks):
                clock = self.clocks.get(self.host(rank), Clock())
                start, end = clock.shows(begin[rank] - 30), clock.shows(now[rank] - 30)
                events[rank].append(
                    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                     "ts": round(start, 3), "dur": round(end - start - 0.001, 3), "args": {}}
                )  # fmt: skip
        configured = [
            {"pg_name": group, "pg_desc": "default_pg" if group == "0" else "undefined", "pg_size": len(m), "ranks": m}
            for group, lists in self.groups().items() for m in lists
        ]  # fmt: skip
        configured.append({"pg_name": "ep", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "ranks": list(range(self.ranks))})
        paths = []
        for rank in range(self.ranks) if only is None else only:
            info = {"backend": "nccl", "rank": rank, "world_size": self.ranks, "pg_config": configured}
            content = {"host_name": f"node-{self.host(rank)}", "distributedInfo": info, "traceEvents": events[rank]}
            path = folder / name.format(rank)
            text = json.dumps(content).encode()
            path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
            paths.append(path)
        return paths

    def collective(
        self, together, group: str, members: list[int], collective: str, dtype: str, elements: int, noise
    ) -> None:
        n = len(members)
        width = WIDTHS[dtype]
        splits = {rank: [] for rank in members}
        if collective == "all_to_allv":
            splits = {rank: [noise.randrange(1, 2 * elements // n) for _ in members] for rank in members}
            full = sum(sum(s) for s in splits.values()) / n * width
        else:
            full = elements * width
        moving_us = full / 1e3 / (self.bus_gb_s / FACTORS[collective](n))
        gathers = "gather" in collective
        number_in = {
            rank: sum(splits[rank]) if collective == "all_to_allv" else elements // n if gathers else elements
            for rank in members
        }
        scatters = "reduce_scatter" in collective
        number_out = elements // n if scatters else elements

        def make(rank: int):
            args = {
                "Collective name": collective, "In msg nelems": number_in[rank], "Out msg nelems": number_out,
                "Group size": n, "dtype": dtype, "Process Group Name": group, "Process Group Ranks": str(members),
                "In split size": str(splits[rank]), "Out split size": "[]",
            }  # fmt: skip
            return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", args, None

        together(group, members, moving_us, make)
        self.shapes[group] = (collective, full)

    def exchanges(self, together, compute, noise) -> None:
        """Dispatch and combine as DeepEP runs them: as many rows either way, at the planted rate with the last rank there."""
        members = list(range(self.ranks))
        rows = {rank: self.tokens + noise.randrange(self.tokens) for rank in members}
        for name, kind, tokens in (
            ("DeepEPDispatch", "dispatch", dict.fromkeys(members, self.tokens)),
            ("DeepEPCombine", "combine", rows),
        ):
            for rank in members:
                compute(rank, self.late_us if rank in self.late() else 0.0)
            most = max(rows.values()) * self.hidden * 2
            moving_us = most / 1e6 / self.exchange_tb_s

            def make(rank: int, name=name, kind=kind, tokens=tokens):
                args = {"Input Dims": [[tokens[rank], self.hidden], []], "Input type": ["c10::BFloat16", ""]}
                return f"void deep_ep::intranode::{kind}<8, 768>(int4*)", {}, {"name": name, "args": args}

            together("ep", members, moving_us, make)
            self.shapes[name] = tokens
