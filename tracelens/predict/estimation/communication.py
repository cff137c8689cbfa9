"""Estimates of collectives and expert-parallel exchanges, one by one and as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.backends.base import System
from tracelens.backends.collective_times import (
    Collectives,
    Kernels,
    MessageColumns,
    exchange_links,
    exchange_us,
    message_us,
    notification_us,
)
from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import COUNT, Number, faults, is_file_name, numbers, texts
from tracelens.perf_models.collective import Collective, bus_factor
from tracelens.predict.network.algorithms import algorithms, bound_us
from tracelens.predict.network.deepep import DEFAULT_SMS, DeepEP, Exchanges, Phase
from tracelens.predict.network.deepep import bound_us as exchange_bound_us
from tracelens.predict.network.topology import Group, Topology
from tracelens.types.records import Record, pd
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US

#: Ranks of a node in the tables of DeepEP's measurements.
EP_RANKS_PER_NODE = 8
_MESSAGE = ("op", "size", "num_nodes", "gpus_per_node")
_EXCHANGE = ("node_num", "hidden_size", "num_token", "num_topk", "num_experts")
#: What rows may hold: a message of a petabyte, a million nodes.
_MANY = Number(least=1, most=1e6, whole=True)
SIZES = dict.fromkeys(("num_nodes", "gpus_per_node", "node_num", "num_topk", "num_experts"), _MANY) | {
    "size": Number(least=1), "hidden_size": COUNT, "num_token": Number(least=1, most=1e9, whole=True),
}  # fmt: skip
_SMS = Number(least=1, most=1e4, blank=float(DEFAULT_SMS))
_PHASES: tuple[Phase, ...] = ("dispatch", "combine")


class CommunicationEstimate(Record, frozen=True, kw_only=True):
    """One collective or exchange on one system: time and least time in us, rate in GB/s, and how it is done.

    ``gb_s`` is bus bandwidth (size/time, times 2(n-1)/n for an all-reduce, (n-1)/n for other exchanges); DeepEP: all
    copies of a token over the time, local ones included, as its own tables count. ``error_percent``: the mean error
    measured on such systems, None where none was.
    """

    system: str
    operation: str
    time_us: float
    peak_us: float
    gb_s: float
    by: str
    note: str | None = None
    error_percent: float | None = None


def collective_answer(
    system: System, op: str, nbytes: float, group: Group, algorithm: str | None = None
) -> CommunicationEstimate:
    """``op`` over ``nbytes``, the full message. UsageError where nothing can do it."""
    word = plain_word(op)
    if not 0 <= nbytes < np.inf:
        raise UsageError(f"a message size must be 0 or more bytes, not {nbytes:g}")
    columns = MessageColumns(word=[word], nbytes=np.array([nbytes], dtype=np.float64), group=[group])
    (time,), (by,) = message_us(columns, system, algorithm)
    if np.isnan(time):
        known = {each.partition("/")[0] for each in algorithms()}
        if word not in known:
            raise UsageError.unknown("collective", op, known)
        raise UsageError(f"{system_name(system)} has no algorithm for {op!r} over {group.ranks} ranks")
    factor = bus_factor(word, group.ranks) or 0.0
    return CommunicationEstimate(
        system=system_name(system), operation=word, time_us=float(time), by=by, note=system.note,
        peak_us=float(bound_us(word, nbytes, group, system.joined())[0]),
        gb_s=nbytes * factor / time / GB_PER_S_IN_BYTES_PER_US if time else 0.0,
        error_percent=None if system.cluster is None else system.cluster.error_percent,
    )  # fmt: skip


class TokenExchange(Record, frozen=True, kw_only=True):
    """Tokens that each rank of an expert-parallel group dispatches and combines; ``hidden``: elements of a token."""

    tokens: int
    hidden: int
    topk: int
    experts: int
    ranks: int


def exchange_answers(
    system: System, of: TokenExchange, *, kernels: Kernels = "normal", sms: int = DEFAULT_SMS
) -> list[CommunicationEstimate]:
    """Dispatch and combine, normal kernels' notification between nodes before each.

    UsageError without figures for the library, or for half nodes.
    """
    ranks, links = of.ranks, exchange_links(system, of.ranks)
    per_node = links.ranks_per_node
    answers = []
    for phase in _PHASES:
        shape = Exchanges(
            phase=phase, tokens=float(of.tokens), hidden=float(of.hidden), topk=float(of.topk),
            experts=float(of.experts), nodes=ranks / per_node, sms=float(sms),
        )  # fmt: skip
        time = float(exchange_us(shape, kernels, system, links)[0])
        copies = float(shape.copies(per_node)) if kernels == "normal" else of.topk
        sent = CommunicationEstimate(
            system=system_name(system), operation=phase, time_us=time, note=system.note,
            by=f"{links.library} {kernels}",
            error_percent=getattr(DeepEP.load(links.library), kernels)[phase].error_percent,
            peak_us=float(exchange_bound_us(shape, links)),
            gb_s=of.tokens * copies * float(shape.token_bytes) / time / GB_PER_S_IN_BYTES_PER_US,
        )  # fmt: skip
        if kernels == "normal" and ranks > per_node:
            agreed = float(notification_us(shape, system, links)[0])
            answers.append(
                replace(sent, operation=f"{phase} notify", time_us=agreed, peak_us=0.0, gb_s=0.0, error_percent=None)
            )
        answers.append(sent)
    return answers


def system_name(system: System) -> str:
    """The cluster's name, or the device's that stands alone."""
    return system.cluster.name if system.cluster is not None else system.device.name


def estimate_collectives(
    table: pd.DataFrame, *, cluster: str | None = None, device: str | None = None, algorithm: str | None = None
) -> pd.DataFrame:
    """``table`` with ``time_us``, ``algorithm``, ``bound``, ``backend`` and, where there is no answer, a ``reason``.

    Columns as nccl-tests prints them: ``op``, ``size`` (full message in bytes), ``num_nodes``, ``gpus_per_node``. The
    cluster is each row's ``cluster`` column, else ``cluster``, else the standard node of the row's ``device`` column,
    else of ``device``. UsageError for columns that are missing, or an algorithm that nothing has.
    """
    require_columns(table, "collective", _MESSAGE)
    found = table.assign(time_us=np.nan, algorithm="", bound="", backend="", reason="")

    def answer(rows: pd.DataFrame, system: System) -> Mapping[str, Any]:
        words, groups = [plain_word(op) for op in texts(rows, "op")], collective_groups(rows, system.joined())
        columns = MessageColumns(word=words, nbytes=rows["size"].to_numpy(np.float64), group=groups)
        time, names = message_us(columns, system, algorithm)
        known = ~np.isnan(time)
        return {
            "time_us": time, "algorithm": list(names), "bound": np.where(known, "wire", ""),
            "backend": np.where(known, Collectives.name, ""),
            "reason": np.where(known, "", "no algorithm for this collective"),
        }  # fmt: skip

    return _answered(found, ("size", "num_nodes", "gpus_per_node"), answer, cluster, device)


def estimate_exchanges(
    table: pd.DataFrame, *, cluster: str | None = None, device: str | None = None, kernels: Kernels | None = None
) -> pd.DataFrame:
    """``table`` with ``dispatch_us_est``, ``combine_us_est``, ``bound``, ``backend``, else a ``reason``; apart from
    them ``dispatch_notify_us_est`` and ``combine_notify_us_est``, what normal kernels need to agree on counts.

    Columns as in aiconfigurator's DeepEP tables: ``node_num`` nodes of 8 ranks, ``hidden_size``, ``num_token`` of each
    rank, ``num_topk``, ``num_experts``; ``dispatch_sms`` and ``combine_sms`` for the normal kernels. Which kernels is
    ``kernels``, else ``op_name`` (``normal`` or ``ll``), else normal. The cluster is as in ``estimate_collectives``.
    """
    require_columns(table, "ep", _EXCHANGE)
    times = {f"{phase}{part}_us_est": np.nan for part in ("", "_notify") for phase in _PHASES}
    found = table.assign(**times, bound="", backend="", reason="")

    def answer(rows: pd.DataFrame, system: System) -> Mapping[str, Any]:
        ranks = rows["node_num"].to_numpy(np.float64) * EP_RANKS_PER_NODE
        # Rows of one answer have the same number of nodes.
        links = exchange_links(system, ranks[0])
        nodes = ranks / links.ranks_per_node
        result: dict[str, Any] = {"bound": "wire", "backend": Collectives.name}
        low = np.full(len(rows), kernels == "low_latency")
        if kernels is None and "op_name" in rows:
            low = np.array([name in ("ll", "low_latency") for name in texts(rows, "op_name")], dtype=bool)
        for phase in _PHASES:
            hidden, tokens, topk, experts = (rows[name].to_numpy(np.float64) for name in _EXCHANGE[1:])
            sms = f"{phase}_sms"
            shapes = Exchanges(
                phase=phase, tokens=tokens, hidden=hidden, topk=topk, experts=experts, nodes=nodes,
                sms=numbers(rows, sms, _SMS) if sms in rows else float(DEFAULT_SMS),
            )  # fmt: skip
            result[f"{phase}_us_est"] = np.where(
                low, exchange_us(shapes, "low_latency", system, links), exchange_us(shapes, "normal", system, links)
            )
            result[f"{phase}_notify_us_est"] = np.where(low, 0.0, notification_us(shapes, system, links))
        return result

    return _answered(found, _EXCHANGE, answer, cluster, device)


def plain_word(op: str) -> str:
    """``all_reduce`` for ``AllReduce`` or ``allreduce``; the text itself where it is no collective."""
    return Collective(kind=op, elements_in=0, elements_out=0, ranks=None).word or op


def require_columns(table: pd.DataFrame, what: str, columns: Iterable[str]) -> None:
    """UsageError when one of ``columns`` is missing."""
    for name in columns:
        if name not in table:
            raise UsageError(f"a table for {what} needs the column {name!r}; it has {', '.join(map(str, table))}")


def _answered(
    table: pd.DataFrame,
    sizes: tuple[str, ...],
    answer: Callable[[pd.DataFrame, System], Mapping[str, Any]],
    cluster: str | None,
    device: str | None,
) -> pd.DataFrame:
    """Rows by system and, so that one impossible group costs no other its answer, by shape."""
    table = table.reset_index(drop=True)
    table["reason"] = faults(table, {name: SIZES[name] for name in sizes})
    sized = table.assign(**{name: numbers(table, name, SIZES[name]) for name in sizes})
    names = np.array(_system_names(table, cluster, device), dtype=object)
    unnamed = (names == "") & (table["reason"] == "").to_numpy()
    table.loc[unnamed, "reason"] = "the row names no cluster or device"
    usable = (table["reason"] == "").to_numpy()
    shape = [name for name in sizes if name not in ("size", "num_token", "hidden_size")]
    keys = [sized[name][usable] for name in shape]
    for (found, *_), rows in sized[usable].groupby([names[usable], *keys]):
        name = str(found)
        try:
            if name not in (cluster, device) and is_file_name(name):
                raise UsageError(f"a row of a table names a device or a cluster, not a file: {name!r}")
            result = answer(rows, System.load(name))
        except (UsageError, InputError) as error:
            table.loc[rows.index, "reason"] = str(error)
            continue
        for column, values in result.items():
            table.loc[rows.index, column] = values
    return table


def _system_names(table: pd.DataFrame, cluster: str | None, device: str | None) -> list[str]:
    for column, option in (("cluster", cluster), ("device", device)):
        if column in table:
            return texts(table, column)
        if option is not None:
            System.load(option)
            return [option] * len(table)
    raise UsageError("the table has no column 'cluster' or 'device': name one with --cluster or --device")


def collective_groups(rows: pd.DataFrame, topology: Topology) -> list[Group]:
    """``gpus_per_node`` ranks of each node, spread out over it."""
    node = topology.ranks_per_node or 0
    groups = []
    for nodes, per_node in zip(rows["num_nodes"].astype(int), rows["gpus_per_node"].astype(int), strict=True):
        if per_node > node:
            raise UsageError(f"{per_node} ranks per node, but the cluster has {node}")
        groups.append(Group(ranks=nodes * per_node, stride=node // per_node))
    return groups
