"""List the devices and clusters that tracelens knows, show a device with its sources, or check a device file."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tracelens.errors import InputError
from tracelens.files.say import say, say_lines, say_table
from tracelens.hardware import HardwareSpec
from tracelens.types.dtypes import DType

_HEADER = ("name", "vendor", "bf16 TFLOPS", "achievable", "HBM TB/s", "GB", "link GB/s", "doubtful")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check")
    actions.add_parser("list", help="list every device with its main rates, and the clusters")
    show = actions.add_parser("show", help="show every figure of a device with its source")
    show.add_argument("name", metavar="NAME", help="name, alias or device file, e.g. mi300x")
    check = actions.add_parser("check", help="load a device file, or all bundled ones, and report errors")
    check.add_argument("file", metavar="FILE", nargs="?", help="e.g. my_chip.toml; default: every bundled device")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        _list(HardwareSpec.all())
        return 0
    if args.action == "show":
        _show(HardwareSpec.load(args.name))
        return 0
    return _check(args.file)


def _list(devices: Sequence[HardwareSpec]) -> None:
    from tracelens.backends.chain import OPTIONAL
    from tracelens.predict.network.cluster import Cluster

    say_table([_HEADER, *(_row(device) for device in devices)], words=(0, 1, 7))
    say()
    say("Rates are dense (no 2:4 sparsity), links per GPU and direction; - is unknown.")
    say_lines(textwrap.fill(f"Clusters of these devices, for --cluster: {', '.join(Cluster.names())}", 100))
    for name, why in OPTIONAL.items():
        absent = why()
        say(f"Optional backend {name}: {'available' if absent is None else 'absent, ' + absent}")
    say("doubtful: sources disagree, see tracelens devices show NAME. To add a device, see docs/devices.md")


def _row(device: HardwareSpec) -> tuple[str, ...]:
    bf16 = device.rate("matrix", DType.BF16)
    hbm, link = device.hbm, device.link
    return (
        device.name,
        device.vendor,
        _number(bf16.peak_tflops_s if bf16 else None),
        _number(bf16.achievable_tflops_s if bf16 else None),
        _number(hbm.peak_tb_s if hbm else None),
        _number(hbm.capacity_gb if hbm else None),
        _number(link.gb_s if link else None),
        ", ".join(_short(key) for key in device.doubtful()),
    )


def _show(device: HardwareSpec) -> None:
    say(f"{device.name}: {device.label}")
    say(f"  made by {device.vendor}; also called {', '.join(device.aliases) or '-'}")
    if device.note:
        say_lines(textwrap.fill(device.note, 100, initial_indent="  ", subsequent_indent="  "))
    say()
    figures = device.figures()
    width = max((len(figure.key) for figure in figures), default=0)
    for figure in figures:
        mark = "?" if figure.doubtful else " "
        say(f"{mark} {figure.key:<{width}} {_number(figure.value):>9}  {figure.source}")
        if figure.note:
            say(f"  {'':<{width}} {'':>9}  ({figure.note})")
    if any(figure.doubtful for figure in figures):
        say()
        say("? doubtful: sources disagree")


def _check(file: str | None) -> int:
    if file is not None:
        # A path, whatever it is called: a name would find a device of the package instead.
        _checked(HardwareSpec.load(Path(file)), Path(file).name)
        return 0
    wrong = 0
    for name in HardwareSpec.names():
        try:
            _checked(HardwareSpec.load(name), f"{name}.toml")
        except InputError as error:
            wrong += 1
            say(error)
    return InputError.exit_code if wrong else 0


def _checked(device: HardwareSpec, file: str) -> None:
    units, cores = device.compute_units, device.matrix_cores
    compared = sum(
        cores is not None and units is not None and cores.tflops_s(dtype, units) is not None for dtype in device.matrix
    )
    parts = [f"{len(device.figures())} figures, each with a source"]
    if compared:
        parts.append(f"{compared} of {len(device.matrix)} matrix rates recomputed from units x matrix cores x clock")
    elif device.matrix:
        parts.append("no [matrix_cores]: that the matrix rates are dense was not recomputed")
    if device.doubtful():
        parts.append(f"doubtful: {', '.join(_short(key) for key in device.doubtful())}")
    if device.match is None:
        parts.append("no [match]: never recognized from a trace, only chosen with --device")
    if device.hbm is None or device.hbm.peak_tb_s is None:
        parts.append("no HBM rate: no memory time")
    say(f"{file}: ok; {'; '.join(parts)}")


def _short(key: str) -> str:
    """``matrix.fp64.peak_tflops_s`` -> ``matrix.fp64``."""
    return key.rsplit(".", 1)[0].removeprefix("chip.")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
