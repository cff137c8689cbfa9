"""The published model of a step in scalars, one candidate at a time: what the search's arrays are compared with."""

from __future__ import annotations

import math

from tracelens.laboratory.paper_rules import PaperRules


def plain_step(priced: PaperRules, c: dict[str, int], batch: int) -> tuple[float, float]:
    """Step time (s) and memory (GB) of one candidate, op by op, in scalars."""
    s, repairs, two_d, seqp = priced.system, priced.repairs, priced.strategy == "2d", priced.strategy == "2d-seqp"
    seq, e, h, depth = priced.shape.sequence, priced.shape.hidden, priced.shape.heads, priced.shape.depth
    m1, m2, b, nb, u1, u2 = (c[k] for k in ("m1", "m2", "micro_batch", "blocks", "near_m1", "near_m2"))
    big, f, gb = seq // m2, priced.shape.ffn or 4 * e, 2e-9
    x = b * big

    def ring(volume: float, n: int, u: int, kind: str) -> float:
        if n == 1 or volume == 0:
            return 0.0
        moved = volume if kind == "broadcast" else volume * (n - 1) / n
        twice = 2 if kind == "all_reduce" else 1
        fix = twice if "all_reduce" in repairs else 1
        slow, fast, nodes = s.slow.gb_s * s.slow.efficiency, s.fast.gb_s * s.fast.efficiency, n // u
        if u == 1:
            return s.slow.latency_s * (n - 1) + fix * moved / slow
        if nodes == 1:
            return s.fast.latency_s * (n - 1) + fix * moved / fast
        return (
            twice * max(moved / (u * slow), moved / fast)
            + s.slow.latency_s * (nodes - 1)
            + s.fast.latency_s * (n - nodes)
        )

    def timed(flops: float, gigabytes: float, matrix: bool) -> float:
        rate = s.matrix_tflops_s if matrix else s.vector_tflops_s
        return max(20e-6 + flops * 1e-12 / (0.8 * rate), gigabytes / s.hbm_gb_s)

    forward = backward = weights = stored = 0.0

    def add(f_flops, f_gb, b_flops, b_gb, matrix=False, f_comm=0.0, b_comm=0.0, w=0.0, kept=0.0):
        nonlocal forward, backward, weights, stored
        forward += timed(f_flops, f_gb, matrix) + f_comm
        backward += timed(b_flops, b_gb, matrix) + b_comm
        weights += w
        stored += kept

    def linear(width_in: int, width_out: int, rows_split: bool) -> None:
        if two_d:
            fl = width_out // m1
            once = ring(x * width_in * gb / nb, m1, u1, "broadcast") + ring(
                width_in * fl * gb / nb, m2, u2, "broadcast"
            )
            mem = (x * width_in + width_in * fl + x * fl * nb) * gb
            ff, bf = 2 * x * fl * width_in, x * width_in * (2 * fl - 1) + width_in * fl * (2 * x - 1)
            fc = once + max(nb * once - timed(ff, mem, True), 0)
            bc = 2 * once + max(nb * 2 * once - timed(bf, 2 * mem, True), 0)
            add(ff, mem, bf, 2 * mem, True, fc, bc, (width_in // m2) * fl * gb, x * (width_in // m1) * gb)
            return
        wi, wo = (width_in // m1, width_out) if rows_split else (width_in, width_out // m1)
        add(
            x * wo * (2 * wi - 1), (x * wi + x * wo + wi * wo) * gb,
            x * wi * (2 * wo - 1) + wi * wo * (2 * x - 1), (2 * wi * wo + 2 * x * wi + 2 * x * wo) * gb, True,
            ring(x * width_out * gb, m1, u1, "scatter") if rows_split else 0.0,
            0.0 if rows_split else ring(x * width_in * gb, m1, u1, "scatter"),
            wi * wo * gb, x * wi * gb,
        )  # fmt: skip

    def bias(rows: int, width: int) -> None:
        add(rows * width, (rows * width + width) * gb, rows * width, (rows * width + width) * gb, w=width * gb)

    def dropout(n: int) -> None:
        add(n, 2 * n * gb + n * 1e-9, n, 2 * n * gb + n * 1e-9, kept=n * 1e-9)

    linear(e, f, False)
    bias(x, f // m1)
    wide = x * (f // m1)
    add(8 * wide, 2 * wide * gb, 13 * wide, 3 * wide * gb, kept=wide * gb)
    dropout(wide)
    linear(f, e, True)
    bias(*((x, e // m1) if two_d else (b * (big // m1), e) if seqp else (x, e)))
    narrow = x * (e // m1) if two_d else b * (seq // (m1 * m2)) * e
    dropout(narrow)
    dropout(narrow)
    if two_d:
        r, w = x, (e if "layernorm" in repairs else seq) // m1
        fc = ring(2 * x * gb, m1, u1, "all_reduce")
        bc = ring(((2 * e) // m1 + (2 * b * seq) // m2) * gb, m1, u1, "all_reduce")
    else:
        r, w = b * (big // m1), e
        fc = bc = ring(x * e * gb, m1, u1, "gather")
    n = r * w
    for _ in range(2):
        add(
            9 * n,
            (2 * n + 2 * r + 2 * w) * gb,
            8 * n + 4 * r * (w - 1),
            (5 * n + 2 * w) * gb,
            False,
            fc,
            bc,
            2 * w * gb,
            n * gb,
        )
    hop_gb = n * gb
    linear(e, 3 * e, False)
    q, hl, k = e // h, h // m1, s.matrix_tflops_s / s.vector_tflops_s
    ax, ay = b * hl * big, b * hl * seq

    def fused() -> None:
        gather = ring(2 * b * hl * seq * q * gb if m2 > 1 else 0.0, m2, u2, "gather")
        kept = 4 * ax * q + 2 * ax
        add(
            ax * seq * (2 * q - 1) + k * (2 * ax * seq + ax * (seq - 1)) + k * ax * seq + ax * q * (2 * seq - 1), (2 * ax * q + 2 * ay * q + ax) * gb,
            2 * ax * seq * (2 * q - 1) + ax * q * (2 * seq - 1) + 2 * ay * q * (2 * big - 1)
            + k * (2 * ax * seq + ax * (seq - 1)) + k * (3 * ax * seq + ax * (seq - 1)) + 2 * k * ax * seq,
            (2 * ay * q + 2 * ax * q + kept) * gb, True, gather, 2 * gather, kept=kept * gb,
        )  # fmt: skip

    def unfused(again: int) -> None:
        """Q K^T gathers K and keeps Q and K, A V gathers V and keeps V; softmax, mask and A are kept or made again."""
        gather, square, more = ring(ay * q * gb if m2 > 1 else 0.0, m2, u2, "gather"), ax * seq, 1 - again
        product_gb, back_gb = (ax * q + ay * q + square) * gb, (3 * ax * q + ay * q + 2 * square) * gb
        flops, back = square * (2 * q - 1), ax * q * (2 * seq - 1) + ay * q * (2 * big - 1)
        add(
            flops, product_gb, back + again * flops, back_gb + again * product_gb, True, gather, 2 * gather,
            kept=2 * ax * q * gb,
        )  # fmt: skip
        softmax = 2 * square + ax * (seq - 1)
        add(
            softmax, 2 * square * gb, square + softmax + again * softmax, (3 + 2 * again) * square * gb,
            kept=more * square * gb,
        )  # fmt: skip
        mask_gb = 2 * square * gb + square * 1e-9
        add(square, mask_gb, (1 + again) * square, (1 + again) * mask_gb, kept=more * square * 1e-9)
        add(
            ax * q * (2 * seq - 1), product_gb, flops + ay * q * (2 * big - 1), back_gb, True, gather, 2 * gather,
            kept=(more * square + ax * q) * gb,
        )  # fmt: skip

    def summa() -> None:
        """Every product in nb blocks: A [l/m2, l] travels along m1, K and V [l, q/m1] along m2."""
        size, rows, across = q // m1, seq // m2, seq // m1
        a, kv, own, square = b * h * rows * seq, b * h * seq * size, b * h * rows * size, b * h * rows * across
        once = ring(a * gb / nb, m1, u1, "broadcast") + ring(kv * gb / nb, m2, u2, "broadcast")
        mem = (a + kv + own * nb) * gb

        def product(forward_flops: int, backward_flops: int, kept: float) -> None:
            fc = once + max(nb * once - timed(forward_flops, mem, True), 0)
            bc = 2 * once + max(nb * 2 * once - timed(backward_flops, 2 * mem, True), 0)
            add(forward_flops, mem, backward_flops, 2 * mem, True, fc, bc, kept=kept)

        product(a * (2 * size - 1), own * (2 * seq - 1) + kv * (2 * rows - 1), 2 * own * gb)
        sums, adding = ring(b * h * rows * gb, m1, u1, "all_reduce"), b * h * rows * (across - 1)
        add(2 * square + adding, 2 * square * gb, 3 * square + adding, 3 * square * gb, False, sums, sums,
            kept=square * gb)  # fmt: skip
        dropout(square)
        product(2 * own * seq, a * (2 * size - 1) + kv * (2 * rows - 1), (square + own) * gb)

    {"fused": fused, "unfused": lambda: unfused(0), "recomputed": lambda: unfused(1), "summa": summa}[
        priced.attention
    ]()
    linear(e, e, True)
    bias(*((x, e // m1) if priced.strategy != "1d" else (x, e)))

    pp, dp, u_pp = c["pp"], c["dp"], c["near_pp"]
    layers, micro = depth // pp, batch // dp // b
    slow_hop = s.slow.latency_s + hop_gb / (s.slow.gb_s * s.slow.efficiency)
    fast_hop = s.fast.latency_s + hop_gb / (s.fast.gb_s * s.fast.efficiency)
    hop = 0.0
    if pp > 1:
        slow_hops = math.trunc(pp / u_pp - 1)
        paid = slow_hop if "pipeline" in repairs else 0.0
        hop = slow_hop if u_pp == 1 else ((pp - 1 - slow_hops) * fast_hop + slow_hops * paid) / (pp - 1)
    busy = (forward + backward) * micro * layers + 2 * micro * hop
    across, near = (dp * m2, c["near_dp"] * u2) if seqp else (dp, c["near_dp"])
    g = ring(weights, across, near, "gather")
    step = busy + (pp - 1) * busy / micro + 2 * g + (layers - 1) * (max(g - forward, 0) + max(g - backward, 0))
    held = weights * layers
    return step, 2 * held + 6 * held / (dp * (m2 if seqp else 1)) + stored * layers * min(pp, micro)
