"""Requests: when they arrive, how long prompt and answer are. Generated from a seed, or replayed from a file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.files import quantities
from tracelens.lazy.records import dataclass

FS_PER_S = 10**15
#: Tokens of a prompt or answer: far above every model's context.
LONGEST = 10_000_000
#: Requests per second: one in thirty years, and as many as femtoseconds can tell apart.
SLOWEST, FASTEST = 1e-9, 1e12
#: A run's requests are all in memory, some hundred bytes each.
MOST_REQUESTS = 100_000_000
_MOST_VARIATION = 1e6
_MOST_SPREAD = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Columns, one entry per request in the order of arrival.

    ``arrival_fs`` is None in a closed loop: ``concurrency`` requests are in flight at any time, the next arrives when
    one ends. ``pieces`` are hashes of a prompt's consecutive beginnings, each ``piece_tokens`` long, empty where
    nothing is shared. ``priority``: lower is served first where the order is by priority.
    """

    arrival_fs: Sequence[int] | None
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    concurrency: int | None = None
    pieces: Sequence[tuple[int, ...]] = ()
    piece_tokens: int = 0
    priority: Sequence[int] = ()
    source: str = "generated"

    def __post_init__(self) -> None:
        if len(self.input_tokens) != len(self.output_tokens):
            raise UsageError(f"{len(self.input_tokens)} prompt lengths but {len(self.output_tokens)} output lengths")
        if (self.arrival_fs is None) == (self.concurrency is None):
            raise UsageError("requests need either arrival times or a concurrency, not both")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.arrival_fs and (self.arrival_fs[0] < 0 or list(self.arrival_fs) != sorted(self.arrival_fs)):
            raise UsageError("requests need to be in the order of their arrival, from 0 on")
        if len(self) and (min(self.input_tokens) < 1 or min(self.output_tokens) < 1):
            raise UsageError("a request needs at least one prompt token and one output token")

    def __len__(self) -> int:
        return len(self.input_tokens)


def _mean(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(quantities.count(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of token counts: ``fixed``, ``uniform``, ``lognormal``, ``zipf`` or ``empirical``.

    ``mean`` is the mean (of ``zipf``: the largest value); ``spread`` the half width over the mean (``uniform``), the
    coefficient of variation (``lognormal``) or the exponent (``zipf``). ``values`` are drawn from with equal chance.
    """

    kind: str = "fixed"
    mean: float = 1.0
    spread: float = 0.0
    values: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """``512``, ``uniform:512:0.5``, ``lognormal:512:1.2`` or ``zipf:4096:1.5``."""
        kind, _, rest = text.partition(":")
        try:
            if not rest:
                return cls(mean=float(quantities.count(text)))
            mean, *more = rest.split(":")
            numbers = [_mean(mean), *map(float, more)]
        except (ValueError, UsageError):
            raise UsageError(f"a length takes N or KIND:MEAN:SPREAD, not {text!r}") from None
        if kind not in ("fixed", "uniform", "lognormal", "zipf") or len(numbers) > 2:
            raise UsageError.unknown("length distribution", kind, ("fixed", "uniform", "lognormal", "zipf"))
        return cls(kind=kind, mean=numbers[0], spread=numbers[1] if len(numbers) > 1 else 0.0)

    @classmethod
    def of(cls, given: int | str | Lengths) -> Lengths:
        """A number, a text as ``parse`` reads it, or lengths."""
        return cls(mean=given) if isinstance(given, int) else cls.parse(given) if isinstance(given, str) else given

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths, at least 1 each."""
        if not 1 <= self.mean <= LONGEST or not 0 <= self.spread <= _MOST_SPREAD:
            raise UsageError(
                f"a length needs a mean from 1 to {LONGEST:,} and a spread from 0 to {_MOST_SPREAD}, "
                f"not {self.mean:g}, {self.spread:g}"
            )
        if self.kind == "fixed":
            return [round(self.mean)] * count
        if self.kind == "uniform":
            drawn = rng.uniform(self.mean * (1 - self.spread), self.mean * (1 + self.spread), count)
        elif self.kind == "lognormal":
            variance = np.log1p(self.spread**2)
            drawn = rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)
        elif self.kind == "zipf":
            ranks = np.arange(1, int(self.mean) + 1, dtype=float)
            weights = ranks ** -(self.spread or 1.0)
            drawn = rng.choice(ranks, size=count, p=weights / weights.sum())
        elif self.kind == "empirical" and self.values:
            drawn = rng.choice(np.array(self.values), size=count)
        else:
            raise UsageError.unknown("length distribution", self.kind, ("fixed", "uniform", "lognormal", "zipf"))
        return [max(1, round(value)) for value in drawn.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests come: ``poisson``, ``gamma`` (``variation`` is its coefficient of variation), ``constant`` or
    ``burst`` (groups of ``variation`` requests at once), at ``rate`` per second on average; or ``closed`` at
    ``concurrency``.
    """

    kind: str = "poisson"
    rate: float | None = None
    variation: float = 1.0
    concurrency: int | None = None

    def draw(self, rng: np.random.Generator, count: int) -> list[int] | None:
        """Arrival times in fs; None in a closed loop."""
        if self.kind == "closed":
            return None
        if self.rate is None or not SLOWEST <= self.rate <= FASTEST:
            raise UsageError(f"{self.kind} arrivals need a rate from {SLOWEST:g} to {FASTEST:g} per second")
        if not 1 / _MOST_VARIATION <= self.variation <= _MOST_VARIATION:
            raise UsageError(f"a variation of arrivals must be from {1 / _MOST_VARIATION:g} to {_MOST_VARIATION:g}")
        gaps: npt.NDArray[np.float64]
        if self.kind == "constant":
            return [round(index * FS_PER_S / self.rate) for index in range(count)]
        if self.kind == "poisson":
            gaps = rng.exponential(1 / self.rate, count)
        elif self.kind == "gamma":
            shape = 1 / self.variation**2
            gaps = rng.gamma(shape, 1 / (self.rate * shape), count)
        elif self.kind == "burst":
            size = max(1, round(self.variation))
            starts = np.cumsum(rng.exponential(size / self.rate, -(-count // size)))
            return [round(value * FS_PER_S) for value in np.repeat(starts, size)[:count].tolist()]
        else:
            raise UsageError.unknown("arrival process", self.kind, ("poisson", "gamma", "constant", "burst", "closed"))
        return [round(value * FS_PER_S) for value in np.cumsum(gaps).tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What ``generate`` makes requests from: ``count`` of them, or as many as arrive in ``duration_s``.

    ``shared_tokens``: every prompt begins with one of ``shared_groups`` texts of that length.
    """

    arrivals: Arrivals = field(default_factory=Arrivals)
    input: Lengths = field(default_factory=Lengths)
    output: Lengths = field(default_factory=Lengths)
    count: int | None = None
    duration_s: float | None = None
    seed: int = 0
    shared_tokens: int = 0
    shared_groups: int = 1

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"a seed must be 0 or more, not {self.seed}")
        if self.shared_tokens < 0 or self.shared_groups < 1:
            raise UsageError(
                f"shared prefixes need at least 1 group and 0 tokens, not {self.shared_groups} and {self.shared_tokens}"
            )

    def generate(self) -> Requests:
        """The requests. Arrivals, prompts, answers and shared texts have a stream of random numbers each."""
        streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(self.seed).spawn(4)]
        count = self._count()
        if count > MOST_REQUESTS:
            raise UsageError(f"a run has at most {MOST_REQUESTS:,} requests")
        arrival = self.arrivals.draw(streams[0], count)
        if arrival is not None and self.duration_s is not None:
            end = round(self.duration_s * FS_PER_S)
            arrival = list(itertools.takewhile(lambda time: time < end, arrival))
            if self.count is not None:
                arrival = arrival[: self.count]
            count = len(arrival)
        inputs = self.input.draw(streams[1], count)
        pieces: list[tuple[int, ...]] = []
        if self.shared_tokens:
            groups = streams[3].integers(0, self.shared_groups, count).tolist()
            inputs = [max(length, self.shared_tokens + 1) for length in inputs]
            pieces = [(group,) for group in groups]
        return Requests(
            arrival_fs=arrival,
            input_tokens=inputs,
            output_tokens=self.output.draw(streams[2], count),
            concurrency=self.arrivals.concurrency if arrival is None else None,
            pieces=pieces,
            piece_tokens=self.shared_tokens,
        )

    def _count(self) -> int:
        if self.count is not None and self.count < 0:
            raise UsageError(f"the number of requests must not be negative: {self.count}")
        if self.duration_s is None:
            if self.count is None:
                raise UsageError("give a number of requests or a duration")
            return self.count
        if self.arrivals.rate is None:
            raise UsageError("a duration needs an arrival rate; a closed loop needs a number of requests")
        expected = min(self.arrivals.rate * self.duration_s, 2.0 * MOST_REQUESTS)
        # Six standard deviations of the count, so that the draw does not end before the duration does
        spread = max(self.arrivals.variation, 1.0)
        return int(expected + 6 * spread * (expected**0.5) + 100 * spread)
