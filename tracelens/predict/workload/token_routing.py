"""Which experts each token goes to: distributions of load, gates, recorded routing; all seeded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.files.data_table import LARGEST, Number
from tracelens.files.documents import arrays_of, text_of
from tracelens.types.records import Record

Assignment: TypeAlias = NDArray[np.integer[Any]]
Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
#: What a choice is that a full expert refused.
DROPPED = -1
#: More are refused: the chosen experts alone would take 4 GB.
MOST_ROUTINGS = 2_000_000_000
#: The largest published layers have some thousands.
MOST_EXPERTS = 1_000_000
#: Tokens drawn together.
_BLOCK = 8192
#: A bout is top-k and some draws more; under an even load two bouts do, a heavy skew needs more. Measured on zipf:2 and
#: uniform with 256 experts, top 8: more bouts, or none, are slower.
_SPARE, _BOUTS, _RACING = 1, 12, 1024
ROUTING_FILE = "routing.csv"
WEIGHTS_FILE = "weights.csv"


class Skew(Record, frozen=True, kw_only=True):
    """How unequal experts are. ``kind`` and its parameters:

    uniform: all alike. hot: the share ``b`` of all routings goes to the share ``a`` of experts, exactly. zipf: the
    weight of the r-th expert is r^-a. dirichlet: weights drawn from Dirichlet(a). power_law: the loads of the measured
    MoE tables with exponent a (``power_law_counts``). balanced: token i takes experts (i + j ceil(E/k)) mod E, starts
    spread evenly where tokens are fewer than that stride.
    """

    kind: Literal["uniform", "hot", "zipf", "dirichlet", "power_law", "balanced"]
    a: float = 0.0
    b: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Skew:
        """``uniform``, ``balanced``, ``zipf:1.1``, ``hot:0.5,0.8``, ``dirichlet:0.3``, ``power_law:1.2``.

        ``power_law_1.2`` and ``power_law:1.01`` are one spelling each of the measured tables' names. UsageError.
        """
        name, _, rest = text.strip().partition(":")
        if name.startswith("power_law_"):
            name, rest = "power_law", name.removeprefix("power_law_")
        counts = {"uniform": 0, "balanced": 0, "zipf": 1, "dirichlet": 1, "power_law": 1, "hot": 2}
        if name not in counts:
            raise UsageError.unknown("routing distribution", name, counts)
        try:
            numbers = [float(part) for part in rest.split(",") if part]
        except ValueError:
            numbers = []
        if len(numbers) != counts[name]:
            forms = "zipf:1.1, hot:0.5,0.8, dirichlet:0.3, power_law:1.2, uniform, balanced"
            raise UsageError(f"routing distribution {text!r} is not one of the forms {forms}")
        a, b = (*numbers, 0.0, 0.0)[:2]
        if name == "dirichlet" and a <= 0:
            raise UsageError(f"dirichlet needs a parameter above 0, got {a:g}")
        if not np.isfinite([a, b]).all() or a < 0 or b < 0:
            raise UsageError(f"routing distribution {text!r}: its numbers must be 0 or more")
        return cls(kind=name, a=a, b=b)  # type: ignore[arg-type]

    def weights(self, experts: int, seed: int) -> Floats:
        """Relative chance of each expert, summing to 1; which experts are hot is drawn from ``seed``."""
        rng = np.random.default_rng([seed, 1])
        if self.kind == "zipf":
            weights = np.arange(1, experts + 1) ** -self.a
        elif self.kind == "dirichlet":
            weights = np.maximum(rng.dirichlet(np.full(experts, self.a)), 1e-12)
        elif self.kind == "power_law":
            weights = power_law_weights(self.a, experts, high=2.0, low=0.01, rng=rng)
        elif self.kind == "hot":
            hot = self.hot_experts(experts)
            weights = np.r_[np.full(hot, self.b / hot), np.full(experts - hot, (1 - self.b) / max(1, experts - hot))]
        else:
            return np.full(experts, 1 / experts)
        return np.asarray(rng.permutation(weights / weights.sum()))

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        counts = {"uniform": 0, "balanced": 0, "hot": 2}.get(self.kind, 1)
        return ":".join(filter(None, (self.kind, ",".join(f"{part:g}" for part in (self.a, self.b)[:counts]))))

    def hot_experts(self, experts: int) -> int:
        """Number of hot experts: at least one, at most all. UsageError where the shares make no sense."""
        hot = int(experts * self.a)
        if not 1 <= hot <= experts or not 0 <= self.b <= 1:
            raise UsageError(
                f"hot ratio {self.a:g} of {experts} experts with hot weight {self.b:g} is not a valid distribution"
            )
        return hot


UNIFORM = Skew(kind="uniform")
#: Of all experts' shares together, as of a Dirichlet distribution. NVIDIA counted the tokens of DeepSeek-R1's 32 ranks,
#: 8 of 256 experts each (TensorRT-LLM, examples/ep_load_balancer/README.md): per layer and iteration their standard
#: deviation is 491.65 of 1,024, 0.479 of the mean without what chance makes of it. The square is (32 - 1) / (c + 1).
SERVED_CONCENTRATION = 134.0


def served_skew(experts: int) -> Skew:
    """How unequal experts are where nobody says: as measured, whatever the number that the same tokens are divided
    over. Groups of a Dirichlet distribution's shares have another one of the same concentration in all.
    """
    return Skew(kind="dirichlet", a=SERVED_CONCENTRATION / experts) if experts > 1 else UNIFORM


def route(skew: Skew, *, tokens: int, experts: int, topk: int, seed: int = 0) -> Assignment:
    """Distinct experts of each token, [tokens, topk].

    A token draws its experts one after the other without replacement, with the skew's weights; ``hot`` and
    ``power_law`` realise their loads exactly instead. UsageError when top-k is above the number of experts.
    """
    check_shape(tokens=tokens, experts=experts, topk=topk)
    if skew.kind == "balanced":
        return _balanced(tokens=tokens, experts=experts, topk=topk)
    if skew.kind == "hot":
        return _hot(skew, tokens=tokens, experts=experts, topk=topk, seed=seed)
    if skew.kind == "power_law":
        counts = power_law_counts(skew.a, tokens=tokens, experts=experts, topk=topk, seed=seed)
        return from_counts(np.random.default_rng([seed, 3]).permutation(counts), tokens=tokens, seed=seed)
    return sample(skew.weights(experts, seed), tokens=tokens, topk=topk, seed=seed)


def _balanced(*, tokens: int, experts: int, topk: int) -> Assignment:
    stride = -(-experts // topk)
    if (topk - 1) * stride >= experts:  # the last choice would come round to the first
        stride = experts // topk
    first = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride // tokens
    return ((first[:, None] + np.arange(topk) * stride) % experts).astype(id_type(experts))


def check_shape(*, tokens: int, experts: int, topk: int) -> None:
    """UsageError for what no routing has."""
    if tokens < 1 or experts < 1 or topk < 1:
        raise UsageError(f"tokens, experts and top-k must be at least 1, got {tokens}, {experts} and {topk}")
    if experts > MOST_EXPERTS:
        raise UsageError(f"{experts:,} experts exceed {MOST_EXPERTS:,}")
    if topk > experts:
        raise UsageError(f"top-k {topk} needs at least as many experts, there are {experts}")
    if tokens * topk > MOST_ROUTINGS:
        raise UsageError(f"{tokens:,} tokens with top-k {topk} exceed {MOST_ROUTINGS:,} routings; use fewer tokens")


def id_type(experts: int) -> type[np.int16] | type[np.int32]:
    """Small ids halve the memory of ten million tokens."""
    return np.int16 if experts <= np.iinfo(np.int16).max else np.int32


def sample(weights: Floats, *, tokens: int, topk: int, seed: int = 0) -> Assignment:
    """Successive draws without replacement with probabilities proportional to ``weights``, exact.

    Draws with replacement whose repetitions are passed over have that distribution; the few tokens that repeat too
    often go on by an exponential race over the experts they do not have yet, which continues the same draw.
    """
    weights = np.asarray(weights, dtype=np.float64)
    experts = len(weights)
    check_shape(tokens=tokens, experts=experts, topk=topk)
    if np.count_nonzero(weights > 0) < topk or not np.isfinite(weights).all() or weights.min() < 0:
        raise UsageError(f"top-k {topk} needs as many experts with a probability above 0")
    rng = np.random.default_rng([seed, 2])
    threshold, alias = _alias_table(weights)
    chosen = np.empty((tokens, topk), id_type(experts))
    for start in range(0, tokens, _BLOCK):
        count = min(_BLOCK, tokens - start)
        chosen[start : start + count] = _sample_block(rng, weights, threshold, alias, count, topk)
    return chosen


def from_counts(counts: NDArray[np.integer[Any]], *, tokens: int, seed: int = 0) -> Assignment:
    """An assignment in which expert e gets exactly ``counts[e]`` routings, the experts of a token distinct.

    Experts are written one after the other in runs; token t takes every ``tokens``-th entry, and no run is longer than
    ``tokens``. UsageError when the counts do not make whole rows, or an expert has more routings than there are tokens.
    """
    counts = np.asarray(counts, dtype=np.int64)
    total = int(counts.sum())
    if tokens < 1 or total % tokens or not total:
        raise UsageError(f"{total} routings cannot be divided over {tokens} tokens")
    if counts.max() > tokens or counts.min() < 0:
        raise UsageError(f"an expert has {counts.max()} routings, but there are {tokens} tokens")
    rng = np.random.default_rng([seed, 4])
    order = rng.permutation(len(counts))
    runs = np.repeat(order.astype(id_type(len(counts))), counts[order])
    columns = runs.reshape(total // tokens, tokens)
    return np.ascontiguousarray(columns[:, rng.permutation(tokens)].T)


def power_law_weights(a: float, experts: int, *, high: float, low: float, rng: np.random.Generator) -> Floats:
    """Weights with density x^-a between ``low`` and ``high``, by inverse distribution."""
    u = rng.random(experts)
    if abs(a - 1) < 1e-9:
        return np.asarray(low * (high / low) ** u)
    return np.asarray(((high ** (1 - a) - low ** (1 - a)) * u + low ** (1 - a)) ** (1 / (1 - a)))


def power_law_counts(a: float, *, tokens: int, experts: int, topk: int, seed: int) -> Counts:
    """Routings per expert as aiconfigurator's collector draws them for its MoE tables: weights, scaled and rounded.

    The weights lie between 1 and 0.8 * tokens, or 0.01 and 2 when there are no more routings than experts.
    """
    check_shape(tokens=tokens, experts=experts, topk=topk)
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    weights = power_law_weights(a, experts, high=high, low=low, rng=np.random.default_rng(seed))
    return apportion(weights, total=tokens * topk, most=tokens)


def expert_loads(distribution: str, tokens: int, experts: int, topk: int, ranks: int, seed: int) -> Counts:
    """Routings per expert without drawing a token; experts lie in equal runs on ``ranks``, the busiest rank first.

    ``distribution`` as ``Skew.parse`` takes it. An expert gets each token at most once. UsageError for another name or
    sizes that do not fit.
    """
    skew = Skew.parse(distribution)
    check_shape(tokens=tokens, experts=experts, topk=topk)
    if ranks < 1 or experts % ranks:
        raise UsageError(f"{experts} experts do not divide over {ranks} ranks; give a map of experts to ranks")
    if skew.kind == "power_law":
        counts = power_law_counts(skew.a, tokens=tokens, experts=experts, topk=topk, seed=seed)
    elif skew.kind == "balanced":
        # As many tokens as experts begin at each expert once, and take each one top-k times.
        rounds, rest = divmod(tokens, experts)
        few = _balanced(tokens=rest if rounds == 0 else experts + rest, experts=experts, topk=topk)
        counts = np.bincount(few.ravel(), minlength=experts) + max(rounds - 1, 0) * topk
    else:
        counts = apportion(skew.weights(experts, seed), total=tokens * topk, most=tokens)
    by_rank = counts.reshape(ranks, -1)
    return np.roll(by_rank, -int(by_rank.sum(axis=1).argmax()), axis=0).reshape(-1)


def apportion(weights: Floats, *, total: int, most: int) -> Counts:
    """``total`` in whole parts proportional to ``weights`` (largest remainder), none above ``most``.

    What exceeds ``most`` goes to the least loaded, which fill up evenly. UsageError when the parts cannot hold the
    total.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if total > most * len(weights):
        raise UsageError(f"{total} routings do not fit {len(weights)} experts of at most {most}")
    exact = weights / weights.sum() * total
    counts: Counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]] += 1
    over = int(np.maximum(counts - most, 0).sum())
    if not over:
        return counts
    counts = np.minimum(counts, most)
    order = np.argsort(counts, kind="stable")
    filled = counts[order]
    # raised to a common level: as many of the lowest as what is over can raise to the next one's
    cost = np.arange(1, len(filled) + 1) * filled - np.cumsum(filled)
    receivers = int(np.searchsorted(cost, over, side="right"))
    level, rest = divmod(over + int(filled[:receivers].sum()), receivers)
    filled[:receivers] = level
    filled[:rest] += 1
    counts[order] = filled
    return counts


def drifting_weights(
    skew: Skew, *, experts: int, layers: int, steps: int, drift: float, seed: int = 0
) -> Iterator[tuple[int, int, Floats]]:
    """(step, layer, weights): each layer has its own hot experts, and ``drift`` of log weight is new in every step.

    log w' = (1 - drift) log w + drift * (a fresh draw's log w), renormalised: 0 keeps, 1 draws anew.
    """
    if not 0 <= drift <= 1:
        raise UsageError(f"drift must be between 0 (nothing changes) and 1 (all new), got {drift:g}")
    logs = [np.log(np.maximum(skew.weights(experts, seed * 1_000_003 + layer), 1e-12)) for layer in range(layers)]
    for step in range(steps):
        for layer in range(layers):
            if step:
                fresh = np.log(np.maximum(skew.weights(experts, seed * 1_000_003 + step * layers + layer), 1e-12))
                logs[layer] = (1 - drift) * logs[layer] + drift * fresh
            weights = np.exp(logs[layer])
            yield step, layer, weights / weights.sum()


def top_k(scores: Floats, topk: int) -> Assignment:
    """The ``topk`` experts of highest score of each token, best first; of equal scores the lower id."""
    check_shape(tokens=max(1, len(scores)), experts=scores.shape[1], topk=topk)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
    return order.astype(id_type(scores.shape[1]))


def group_limited_top_k(scores: Floats, topk: int, *, groups: int, best_groups: int) -> Assignment:
    """DeepSeek-V3's gate: top-k among the experts of the ``best_groups`` best of ``groups`` groups.

    A group's score is the sum of its two best experts. ``scores`` are sigmoid(logits) + bias there. UsageError when
    groups or experts do not fit.
    """
    tokens, experts = scores.shape
    if groups < 1 or experts % groups:
        raise UsageError(f"{experts} experts do not divide into {groups} groups")
    size = experts // groups
    if not 1 <= best_groups <= groups:
        raise UsageError(f"of {groups} groups a token may choose from 1 to {groups}, not {best_groups}")
    if topk > best_groups * size:
        raise UsageError(f"top-k {topk} does not fit the best {best_groups} of {groups} groups of {size} experts")
    by_group, others = scores.reshape(tokens, groups, size), max(size - 2, 0)
    best = np.partition(by_group, others, axis=2)[:, :, others:].sum(axis=2)
    kept = np.argsort(-best, axis=1, kind="stable")[:, :best_groups]
    is_kept = np.zeros((tokens, groups), bool)
    np.put_along_axis(is_kept, kept, values=True, axis=1)
    return top_k(np.where(is_kept[:, :, None], by_group, -np.inf).reshape(tokens, experts), topk)


def route_group_limited(
    weights: Floats, *, tokens: int, topk: int, groups: int, best_groups: int, seed: int = 0
) -> Assignment:
    """Group-limited gating of log weights plus Gumbel noise; without groups that would be ``sample``."""
    experts = len(weights)
    check_shape(tokens=tokens, experts=experts, topk=topk)
    with np.errstate(divide="ignore"):
        base = np.log(weights)
    rng = np.random.default_rng([seed, 6])
    chosen = np.empty((tokens, topk), id_type(experts))
    for start in range(0, tokens, _BLOCK):
        logits = base + rng.gumbel(size=(min(_BLOCK, tokens - start), experts))
        # 1 / (1 + exp(-x)), without overflow
        scores = 0.5 * (1 + np.tanh(0.5 * logits))
        chosen[start : start + len(logits)] = group_limited_top_k(scores, topk, groups=groups, best_groups=best_groups)
    return chosen


def with_capacity(chosen: Assignment, *, experts: int, factor: float) -> Assignment:
    """Each expert keeps its first ceil(factor * tokens * topk / experts) routings; later ones become ``DROPPED``.

    First choices go before second ones, earlier tokens before later ones.
    """
    if not factor > 0:
        raise UsageError(f"a capacity factor must be above 0, got {factor:g}")
    tokens, topk = chosen.shape
    capacity = int(np.ceil(factor * tokens * topk / experts))
    flat = chosen.T.ravel()
    order = np.argsort(flat, kind="stable")
    ranked = flat[order]
    place = np.arange(len(flat)) - np.searchsorted(ranked, ranked)
    kept = flat.copy()
    kept[order[(place >= capacity) & (ranked >= 0)]] = DROPPED
    return np.ascontiguousarray(kept.reshape(topk, tokens).T)


def read_routing(path: Path, *, topk: int | None, seed: int = 0) -> tuple[Assignment, int]:
    """Assignment and number of experts out of a file.

    ``.npz``: ``logits`` [tokens, experts] (needs ``topk``), ``experts`` [tokens, topk] chosen ids, or ``counts``
    [experts]. ``.csv`` without header: one column is routings per expert, more are the chosen ids of each token.
    Leading dimensions (layers) are joined. Counts need ``topk``. InputError, UsageError.
    """
    if path.suffix == ".npz":
        arrays = arrays_of(path)
    else:
        matrix = read_numbers(path)
        arrays = {"counts": matrix[:, 0]} if matrix.shape[1] == 1 else {"experts": matrix}
    if "experts" in arrays:
        return _chosen(path, _rows(path, arrays, "experts"), arrays.get("num_experts"))
    if "logits" in arrays:
        if topk is None:
            raise UsageError(f"{path} contains router logits: give top-k")
        logits = _rows(path, arrays, "logits").astype(np.float64)
        check_shape(tokens=len(logits), experts=logits.shape[1], topk=topk)
        return top_k(logits, topk), logits.shape[1]
    if "counts" in arrays:
        counts = _whole(path, _rows(path, arrays, "counts"), "counts", 0, MOST_ROUTINGS).sum(axis=0)
        return _from_counts(path, counts, topk=topk, seed=seed), len(counts)
    raise InputError(f"{path} contains {', '.join(sorted(arrays)) or 'nothing'}; expected logits, experts or counts")


def _rows(path: Path, arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """An array as rows of its last dimension. InputError for one that has none."""
    found = arrays[name]
    if found.ndim == 0 or not found.size:
        raise InputError(f"{path}: {name} is {'a single number' if found.size else 'empty'}, not an array of numbers")
    return found.reshape(-1, found.shape[-1])


def _whole(path: Path, values: NDArray[Any], name: str, least: int, most: int) -> Counts:
    wrong = (values < least) | (values > most) | (np.floor(values) != values)
    if wrong.any():
        row, column = (int(at[0]) for at in np.nonzero(wrong))
        given = values[row, column]
        place = f"{path}: {name}, row {row + 1}, column {column + 1}"
        raise InputError(f"{place} must be a whole number from {least} to {most:,}, got {given:g}")
    return values.astype(np.int64)


def _chosen(path: Path, given: NDArray[Any], most: NDArray[Any] | None) -> tuple[Assignment, int]:
    ids = _whole(path, given, "experts", DROPPED, MOST_EXPERTS - 1)
    experts = int(ids.max()) + 1
    if most is not None:
        if most.size != 1 or not experts <= float(most.reshape(-1)[0]) <= MOST_EXPERTS:
            raise InputError(f"{path}: num_experts must be one number from {experts} to {MOST_EXPERTS:,}")
        experts = int(most.reshape(-1)[0])
    if experts < 1:
        raise InputError(f"{path}: no token chose an expert")
    return ids.astype(id_type(experts)), experts


def _from_counts(path: Path, counts: Counts, *, topk: int | None, seed: int) -> Assignment:
    total = int(counts.sum())
    if topk is None:
        raise UsageError(f"{path} contains routings per expert: give top-k")
    if total > MOST_ROUTINGS:
        raise InputError(f"{path}: {total:,} routings exceed {MOST_ROUTINGS:,}")
    if total % topk:
        raise UsageError(f"{path}: {total:,} routings are not a multiple of top-k {topk}")
    return from_counts(counts, tokens=total // topk, seed=seed)


def _alias_table(weights: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Walker's alias method: a uniform slot, kept with ``threshold``, else its alias."""
    n = len(weights)
    scaled = weights / weights.sum() * n
    threshold, alias = np.ones(n), np.arange(n)
    small = [i for i in range(n) if scaled[i] < 1]
    large = [i for i in range(n) if scaled[i] >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        threshold[low], alias[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    for i in small:  # rounding left them a hair below 1
        if weights[i] == 0:
            threshold[i], alias[i] = 0.0, int(np.argmax(weights))
    return threshold, alias


def _sample_block(
    rng: np.random.Generator, weights: Floats, threshold: Floats, alias: NDArray[np.intp], count: int, topk: int
) -> Assignment:
    """The first ``topk`` distinct draws of each token; a token that is still short after some bouts goes on by race."""
    chosen = np.full((topk, count), DROPPED, id_type(len(weights)))
    filled = np.zeros(count, np.intp)
    for _ in range(_BOUTS):
        short = np.flatnonzero(filled < topk)
        if not len(short):
            break
        point = rng.random((topk + _SPARE, len(short))) * len(weights)
        slot = point.astype(np.intp)
        draws = np.where(point - slot < threshold[slot], slot, alias[slot]).astype(chosen.dtype)
        chosen[:, short], filled[short] = _with_draws(np.ascontiguousarray(chosen[:, short]), filled[short], draws)
    result = chosen.T
    short = np.flatnonzero(filled < topk)
    for start in range(0, len(short), _RACING):
        token = short[start : start + _RACING]
        result[token] = _raced(rng, weights, result[token], filled[token])
    return np.asarray(result)


def _with_draws(chosen: Assignment, filled: NDArray[np.intp], draws: Assignment) -> tuple[Assignment, NDArray[np.intp]]:
    """Fills contiguous [topk, tokens] choices from more draws [draws, tokens], repetitions passed over."""
    topk, count = chosen.shape
    flat = chosen.ravel()
    for draw in draws:
        is_new = filled < topk
        for have in range(min(topk, int(filled.max(initial=0)))):
            is_new &= chosen[have] != draw
        fresh = np.flatnonzero(is_new)
        flat[filled[fresh] * count + fresh] = draw[fresh]
        filled[fresh] += 1
    return chosen, filled


def _raced(rng: np.random.Generator, weights: Floats, chosen: Assignment, filled: NDArray[np.intp]) -> Assignment:
    """[tokens, topk] choices completed: exponential arrival times with rate ``weights``, first come first chosen."""
    with np.errstate(divide="ignore"):
        arrival = rng.standard_exponential((len(chosen), len(weights))) / weights
    row, column = np.nonzero(chosen >= 0)
    arrival[row, chosen[row, column]] = np.inf
    first = np.argsort(arrival, axis=1, kind="stable")
    place = np.arange(chosen.shape[1])[None, :] - filled[:, None]
    return np.where(place >= 0, np.take_along_axis(first, np.maximum(place, 0), axis=1), chosen).astype(chosen.dtype)


def hot_share(ratio: float, *, hot: int, cold: int, topk: int) -> float:
    """Expected share of routings that go to hot experts, ``ratio`` times as likely as a cold one, without replacement.

    Exact: the distribution of hot choices after each of the k draws.
    """
    return float(hot_choices(ratio, hot=hot, cold=cold, topk=topk) @ np.arange(topk + 1)) / topk


def hot_choices(ratio: float, *, hot: int, cold: int, topk: int) -> Floats:
    """Probability of 0..topk hot experts among a token's choices."""
    chance = np.zeros(topk + 1)
    chance[0] = 1.0
    for drawn in range(topk):
        had = np.arange(topk + 1)
        hot_left, cold_left = np.maximum(hot - had, 0) * ratio, np.maximum(cold - (drawn - had), 0)
        total = hot_left + cold_left
        next_hot = np.divide(hot_left, total, out=np.zeros(topk + 1), where=total > 0)
        chance = chance * (1 - next_hot) + np.r_[0.0, (chance * next_hot)[:-1]]
    return chance


def _hot(skew: Skew, *, tokens: int, experts: int, topk: int, seed: int) -> Assignment:
    """Two classes; the hot share of all routings is the asked one to within half a routing."""
    hot = skew.hot_experts(experts)
    cold = experts - hot
    least, most = max(0, topk - cold) / topk, min(topk, hot) / topk
    if cold == 0:
        return sample(np.ones(experts), tokens=tokens, topk=topk, seed=seed)
    if not least <= skew.b <= most:
        raise UsageError(
            f"hot weight {skew.b:g} is not possible: {hot} hot of {experts} experts get between {least:g} and {most:g} "
            f"of the routings at top-k {topk}"
        )
    chance = hot_choices(_hot_ratio(skew.b, hot=hot, cold=cold, topk=topk), hot=hot, cold=cold, topk=topk)
    quota = apportion(chance, total=tokens, most=tokens)
    _adjust(quota, round(skew.b * tokens * topk), least=max(0, topk - cold), most=min(topk, hot))
    rng = np.random.default_rng([seed, 7])
    order = rng.permutation(experts).astype(id_type(experts))
    chosen = np.empty((tokens, topk), order.dtype)
    row = 0
    for hots, count in enumerate(quota.tolist()):
        if not count:
            continue
        parts = []
        if hots:
            parts.append(order[:hot][sample(np.ones(hot), tokens=count, topk=hots, seed=seed + 2 * hots)])
        if hots < topk:
            parts.append(order[hot:][sample(np.ones(cold), tokens=count, topk=topk - hots, seed=seed + 2 * hots + 1)])
        chosen[row : row + count] = np.concatenate(parts, axis=1)
        row += count
    return chosen[rng.permutation(tokens)]


def _hot_ratio(share: float, *, hot: int, cold: int, topk: int) -> float:
    """How much likelier a hot expert has to be, by bisection over its logarithm."""
    low, high = -80.0, 80.0
    for _ in range(200):
        middle = (low + high) / 2
        if hot_share(float(np.exp(middle)), hot=hot, cold=cold, topk=topk) < share:
            low = middle
        else:
            high = middle
    return float(np.exp((low + high) / 2))


def _adjust(quota: NDArray[np.int64], routings: int, *, least: int, most: int) -> None:
    """Moves tokens to a neighbouring number of hot choices until the total is ``routings``."""
    level = np.arange(len(quota))
    while missing := routings - int(quota @ level):
        step = 1 if missing > 0 else -1
        room = quota.copy()
        room[most if step > 0 else least] = 0
        source = int(np.argmax(room))
        moved = min(abs(missing), int(room[source]))
        quota[source] -= moved
        quota[source + step] += moved


class RoutingTable(Record, frozen=True, kw_only=True):
    """Chosen experts and their weights, [tokens, topk], and the rank each token comes from."""

    experts: NDArray[np.integer[Any]]
    weights: NDArray[np.float32]
    source: NDArray[np.integer[Any]]

    @classmethod
    def of_choices(cls, experts: NDArray[np.integer[Any]], ranks: int) -> RoutingTable:
        """Even weights; token i comes from rank i mod ``ranks``."""
        weights = np.full(experts.shape, 1 / max(1, experts.shape[1]), np.float32)
        return cls(experts=experts, weights=weights, source=np.arange(len(experts)) % ranks)

    def save(self, folder: Path) -> None:
        """Writes routing.csv (k expert ids per row) and weights.csv (k weights, rank, token id), without headers."""
        with whole_folder(folder) as staging:
            with (staging / ROUTING_FILE).open("w") as file:  # of a name numpy asks for the current folder
                np.savetxt(file, self.experts, fmt="%d", delimiter=",")
            columns = [*self.weights.T.astype(np.float64), self.source, np.arange(len(self.source))]
            formats = ["%.7g"] * self.weights.shape[1] + ["%d", "%d"]
            with (staging / WEIGHTS_FILE).open("w") as file:
                np.savetxt(file, np.column_stack(columns), fmt=formats, delimiter=",")

    @classmethod
    def load(cls, folder: Path, *, ranks: int) -> RoutingTable:
        """Reads both files; without weights.csv weights are 1/k and token i comes from rank i mod ``ranks``.

        InputError when routing.csv is missing, ragged or holds no whole numbers, or the two do not fit.
        """
        experts = read_numbers(folder / ROUTING_FILE)
        if (experts != np.floor(experts)).any() or (experts < 0).any():
            raise InputError(f"{folder / ROUTING_FILE}: an expert id must be a whole number of at least 0")
        tokens, topk = experts.shape
        chosen = experts.astype(np.int32)
        if not (folder / WEIGHTS_FILE).exists():
            return cls.of_choices(chosen, ranks)
        table = read_numbers(folder / WEIGHTS_FILE)
        if table.shape != (tokens, topk + 2):
            raise InputError(
                f"{folder / WEIGHTS_FILE}: {tokens} rows of {topk} weights, rank and token expected, "
                f"it has {table.shape[0]} rows of {table.shape[1]}"
            )
        source = table[:, topk].astype(np.int64)
        return cls(experts=chosen, weights=table[:, :topk].astype(np.float32), source=source)


def read_numbers(path: Path) -> NDArray[np.float64]:
    """A CSV without header as a matrix of numbers. InputError when it is missing, empty, ragged or holds text."""
    lines = [line for line in text_of(path, "a table of numbers").splitlines() if line.strip()]
    rows = [line.split(",") for line in lines]
    if not rows:
        raise InputError(f"{path}: no rows")
    kind = Number(least=-LARGEST)
    for at, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}, row {at}: all rows must have the same number of numbers, {len(rows[0])}")
    try:
        matrix = np.array([[float(cell) for cell in row] for row in rows])
    except ValueError:
        matrix = np.full((1, 1), np.nan)
    if not (np.abs(matrix) <= LARGEST).all():
        cells = ((at, column, cell) for at, row in enumerate(rows, 1) for column, cell in enumerate(row, 1))
        for at, column, cell in cells:
            kind.of(cell, f"{path} has no header, its row {at}, column {column}")
    return matrix
