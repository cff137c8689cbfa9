"""Estimate how long an op or a collective should take on a device, without a trace."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files.option_fields import byte_count, integer
from tracelens.files.say import emit, say, say_table
from tracelens.types.records import pd
from tracelens.types.units import shown_rate

if TYPE_CHECKING:
    from tracelens.backends.base import System
    from tracelens.predict.estimation.communication import CommunicationEstimate
    from tracelens.predict.estimation.estimate import OperationEstimate

_HEADER = (
    "device",
    "operation",
    "time µs",
    "TFLOPS/s",
    "bound",
    "compute µs",
    "memory µs",
    "peak µs",
    "error",
    "power W",
    "energy mJ",
    "measured on",
    "by",
)
#: What the sizes of an operation are.
_SIZES = {
    "m": "rows of A and C", "n": "columns of B and C", "k": "columns of A, rows of B", "b": "batch: GEMMs or sequences",
    "s_q": "query tokens per sequence; 1 in decoding", "q_heads": "query heads",
    "d_qk": "head dimension of queries and keys", "s-kv": "key tokens per sequence", "kv-heads": "key and value heads",
    "d-v": "head dimension of values", "window": "keys that a query attends to", "tokens": "tokens per rank",
    "hidden": "hidden size", "ffn": "intermediate size of an expert", "experts": "experts in the layer",
    "topk": "experts per token", "ranks": "ranks in the group", "ep": "ranks that share the experts",
    "tp": "ranks that share an expert", "sms": "multiprocessors (SMs) that move tokens",
}  # fmt: skip
#: Operations that can be estimated one by one.
_SINGLE = ("gemm", "grouped-gemm", "sdpa", "moe")
_NEEDED = {"collective": ("op", "bytes", "ranks"), "ep": ("tokens", "hidden", "topk", "experts", "ranks")}


def configure(parser: argparse.ArgumentParser) -> None:
    from tracelens.backends.kernels import kernel_tables
    from tracelens.predict.estimation.table_kinds import LIBRARIES

    kinds = parser.add_subparsers(dest="what", required=True, metavar="OPERATION")
    gemm = _kind(kinds, "gemm", "one GEMM, C[m,n] = A[m,k] B[k,n]")
    _sizes(gemm, "m n k", b=1)
    grouped = _kind(kinds, "grouped-gemm", "one GEMM per expert, rows divided among them")
    _sizes(grouped, "n k")
    rows = grouped.add_mutually_exclusive_group()
    rows.add_argument("--rows", metavar="N,...", help="rows of each group, e.g. 128,4096,0,77")
    rows.add_argument("--m", type=integer, metavar="N", help="total rows, divided evenly among --groups")
    grouped.add_argument("--groups", type=integer, metavar="N", default=1, help="experts of the rank; default: 1")
    sdpa = _kind(kinds, "sdpa", "attention; decoding with --s-q 1")
    _sizes(sdpa, "s_q q_heads d_qk", b=1)
    for name in ("s-kv", "kv-heads", "d-v", "window"):
        default = "all" if name == "window" else "as for queries"
        sdpa.add_argument(f"--{name}", type=integer, metavar="N", help=f"{_SIZES[name]}; default: {default}")
    sdpa.add_argument("--no-causal", action="store_true", help="no causal mask: every query attends to every key")
    sdpa.add_argument(
        "--latent", action="store_true", help="values are part of the key rows (MLA decoding, --d-qk 576 --d-v 512)"
    )
    moe = _kind(kinds, "moe", "the experts of an MoE layer on the busiest rank, without token exchange")
    _sizes(moe, "tokens hidden ffn experts topk", ep=1, tp=1)
    moe.add_argument(
        "--distribution", default="balanced", metavar="balanced|power_law_A", help="distribution of tokens over experts"
    )
    moe.add_argument("--no-gate", action="store_true", help="two matrices per expert instead of three")
    for name in ("context-attention", "generation-attention"):
        _kind(kinds, name, "attention layers of an inference engine, from a table (--batch)")
    gemm.add_argument(
        "--library", choices=LIBRARIES, help="with --batch: treat the rows as linear layers of this engine"
    )
    for name in kernel_tables():
        _kind(kinds, name, "kernels of inference engines, from a table (--batch)").add_argument(
            "--library", choices=LIBRARIES, help="engine of rows without a framework; default: the fastest"
        )
    message = _communication(kinds, "collective", "a collective on a cluster")
    message.add_argument(
        "--op", metavar="NAME", help="collective: all_reduce, all_gather, reduce_scatter, all_to_all, send ..."
    )
    message.add_argument("--bytes", type=byte_count, metavar="SIZE", help="full message size of one rank, e.g. 64MB")
    message.add_argument("--ranks", type=integer, metavar="N", help=_SIZES["ranks"])
    message.add_argument(
        "--stride",
        type=integer,
        metavar="N",
        default=1,
        help="distance between the group's ranks, e.g. the TP degree; default: 1",
    )
    message.add_argument(
        "--collective", metavar="ALGORITHM", help="algorithm: ring, tree, direct ...; default: the fastest"
    )
    exchange = _communication(kinds, "ep", "dispatch and combine of an expert-parallel layer, with DeepEP")
    _sizes(exchange, "tokens hidden topk experts ranks", sms=20)
    exchange.add_argument(
        "--kernels", choices=("normal", "low_latency"), help="DeepEP kernels; default: normal, or the table's op_name"
    )


def _kind(kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    kind = kinds.add_parser(name, help=text, description=f"Estimate {text}.")
    add = kind.add_argument
    add("--device", metavar="NAME[,NAME...]", help="device names or files, shown side by side")
    add(
        "--dtype",
        default="bf16",
        metavar="TYPE",
        help="element type: bf16 (default), fp8, fp8_block, nvfp4; for sdpa, of the KV cache",
    )
    add(
        "--backend",
        default="tile",
        metavar="CHAIN",
        help="cost model, e.g. roofline, or gemm=origami,sdpa=tile; default: tile",
    )
    add("--gpu-clock-mhz", type=float, metavar="MHZ", help="GPU clock; default: the data sheet's")
    add("--backward", action="store_true", help="estimate the forward pass and each gradient, one line each")
    _add_batch(kind, "docs/estimation.md")
    return kind


def _add_batch(kind: argparse.ArgumentParser, described: str) -> None:
    about = f"estimate every row of a .csv or .parquet table ({described})"
    kind.add_argument("--batch", type=Path, metavar="FILE", help=about)
    about = "file for the results of --batch; default: CSV on stdout"
    kind.add_argument("-o", "--output", type=Path, metavar="FILE", help=about)


def _communication(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    kind = kinds.add_parser(name, help=text, description=f"Estimate {text}.")
    kind.add_argument("--cluster", metavar="NAME[,NAME...]", help="cluster names or files, shown side by side")
    kind.add_argument("--device", metavar="NAME[,NAME...]", help="devices, each in its standard node")
    _add_batch(kind, "docs/network.md")
    return kind


def _sizes(parser: argparse.ArgumentParser, needed: str, **optional: int) -> None:
    for name in needed.split():
        parser.add_argument(f"--{name.replace('_', '-')}", type=integer, metavar="N", help=_SIZES[name])
    for name, default in optional.items():
        text = f"{_SIZES[name]}; default: {default}"
        parser.add_argument(f"--{name}", type=integer, metavar="N", default=default, help=text)


def run(args: argparse.Namespace) -> int:
    from tracelens.backends.chain import absences

    if args.what in ("collective", "ep"):
        return _messages(args)
    for absence in absences(args.backend):
        say(f"note: {absence}", to_stderr=True)
    if args.batch is not None:
        return _batch(args)
    if not args.device:
        raise UsageError("name a device: --device h200, or several: --device h200,b200")
    answers = [answer for name in args.device.split(",") for answer in _answers(args, name.strip())]
    rows = [_HEADER, *map(_row, answers)]
    if len({answer.operation for answer in answers}) == 1:
        say_table([(row[0], *row[2:]) for row in rows], words=(0, 3, 10, 11))
    else:
        say_table(rows, words=(0, 1, 4, 11, 12))
    for note in dict.fromkeys(note for answer in answers for note in (*answer.notes, *_power_notes(answer))):
        say(note)
    return 0 if any(answer.estimate for answer in answers) else NothingToAnalyzeError.exit_code


def _messages(args: argparse.Namespace) -> int:
    from tracelens.files.data_table import read_table
    from tracelens.predict.estimation import communication

    if args.batch is not None:
        table, where = read_table(args.batch), {"cluster": args.cluster, "device": args.device}
        if args.what == "ep":
            exchanges = communication.estimate_exchanges(table, **where, kernels=args.kernels)
            return _write(exchanges, args, "combine_us_est")
        return _write(communication.estimate_collectives(table, **where, algorithm=args.collective), args, "time_us")
    if not (args.cluster or args.device):
        raise UsageError("name a cluster or a device: --cluster dgx-h200, or several: --cluster dgx-h200,dgx-b200")
    missing = [name for name, value in vars(args).items() if value is None and name in _NEEDED[args.what]]
    if missing:
        raise UsageError(f"--{missing[0]} is needed")
    answers = [answer for system in _systems(args.cluster, args.device) for answer in _sent(args, system)]
    rows = (
        (each.system, each.operation, *map(_figure, (each.time_us, each.peak_us, each.gb_s)),
         _error(each.error_percent), each.by)
        for each in answers
    )  # fmt: skip
    say_table([("system", "operation", "time µs", "peak µs", "GB/s", "error", "by"), *rows], words=(0, 1, 6))
    for note in dict.fromkeys(a.note for a in answers if a.note):
        say(note)
    return 0


def _systems(clusters: str | None, devices: str | None) -> list[System]:
    from tracelens.backends.base import System

    return [System.load(name.strip()) for given in (clusters, devices) if given for name in given.split(",")]


def _sent(args: argparse.Namespace, system: System) -> list[CommunicationEstimate]:
    from tracelens.predict.estimation.communication import TokenExchange, collective_answer, exchange_answers
    from tracelens.predict.network.topology import Group

    if args.what == "collective":
        group = Group(ranks=args.ranks, stride=args.stride)
        return [collective_answer(system, args.op, args.bytes, group, args.collective)]
    exchange = TokenExchange(
        tokens=args.tokens, hidden=args.hidden, topk=args.topk, experts=args.experts, ranks=args.ranks
    )
    return exchange_answers(system, exchange, sms=args.sms, kernels=args.kernels or "normal")


def _answers(args: argparse.Namespace, device: str) -> list[OperationEstimate]:
    from tracelens.predict.estimation.estimate import operation_answers

    sizes = {
        name: value for name, value in vars(args).items() if isinstance(value, int) and not isinstance(value, bool)
    }
    for name in ("rows", "distribution"):
        if getattr(args, name, None) is not None:
            sizes[name] = getattr(args, name)
    sizes["causal"] = not getattr(args, "no_causal", False)
    sizes["latent"] = getattr(args, "latent", False)
    sizes["gated"] = not getattr(args, "no_gate", False)
    sizes["backward"] = args.backward
    if args.what not in _SINGLE:
        raise UsageError(f"{args.what} needs --batch FILE; for a single operation use `tracelens estimate sdpa`")
    return operation_answers(
        args.what, sizes, device=device, dtype=args.dtype, backend=args.backend, gpu_clock_mhz=args.gpu_clock_mhz
    )


def _row(answer: OperationEstimate) -> tuple[str, ...]:
    e = answer.estimate
    if e is None:
        return (answer.device, answer.operation, *"-" * 10, f"no backend can answer: {answer.reason}")
    rate = "-" if not answer.flops else shown_rate(answer.flops / e.time_us / 1e6)
    parts = (_figure(value) if value is not None else "-" for value in (e.compute_us, e.memory_us, e.peak_us))
    return (
        answer.device,
        answer.operation,
        _figure(e.time_us),
        rate,
        e.bound or "-",
        *parts,
        _error(answer.error_percent),
        _drawn(answer, "power_w"),
        _drawn(answer, "energy_mj"),
        answer.measured_as or "-",
        e.backend,
    )


def _figure(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def _drawn(answer: OperationEstimate, name: str) -> str:
    """``612 (540 to 690)``; without an interval where the error of the time is unknown."""
    if not answer.power:
        return "unknown"
    found = [answer.power[f"{name}{end}"] for end in ("", "_low", "_high")]
    middle, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in found)
    return middle if any(map(math.isnan, found[1:])) else f"{middle} ({low} to {high})"


def _power_notes(answer: OperationEstimate) -> tuple[str, ...]:
    """Where watts are not the device's own."""
    if answer.estimate is None or not answer.power:
        return ()
    measured = answer.power_measured_as.rpartition(" on ")[2]
    text = f"{answer.device}: watts by the energies of {measured}, with a wider interval: nobody measured its own"
    return () if measured == answer.device else (text,)


def _error(percent: float | None) -> str:
    """The mean error of such estimates; a dash where it was not measured."""
    return "-" if percent is None else f"{percent:.0f} %"


def _batch(args: argparse.Namespace) -> int:
    from tracelens.files.data_table import read_table
    from tracelens.predict.estimation.estimate import estimate

    if args.backward:
        raise UsageError(
            "--batch takes no --backward: give sdpa a column 'pass', and a GEMM's gradients rows of their own"
        )
    if args.device and "," in args.device:
        raise UsageError("--batch takes one --device; for several, add a column 'device' to the table")
    found = estimate(
        args.what, read_table(args.batch), device=args.device, backend=args.backend, gpu_clock_mhz=args.gpu_clock_mhz,
        library=getattr(args, "library", None),
    )  # fmt: skip
    return _write(found, args, "time_us")


def _write(found: pd.DataFrame, args: argparse.Namespace, answer: str) -> int:
    from tracelens.files.cells import frame_csv
    from tracelens.files.data_table import write_table

    if args.output is None:
        emit(frame_csv(found).decode())
        return 0
    write_table(found, args.output)
    missing = int(found[answer].isna().sum())
    say(f"wrote {args.output}: {len(found)} rows" + (f", {missing} without an answer" if missing else ""))
    return 0
