"""The headline claims of arXiv 2410.00273, and measured choices: ``python benchmarks/search_claims.py [FOLDER]``.

Everything comes out of the search under the paper's rules, and beside it under the corrected ones. FOLDER holds
training_points.csv: families of steps that were measured with several configurations, in their measured and estimated
order, with what the search would choose.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError
from tracelens.laboratory.training_rows import RowOptions, project_row
from tracelens.predict.projection.projection_options import RuleSet
from tracelens.predict.projection.search.request import Request, answer, points

BATCH = 4096
RULES: tuple[RuleSet, ...] = ("paper", "corrected")
#: What makes steps one family: the same work on the same devices.
FAMILY = ("model", "gpu", "n_gpus", "gbs", "seq_len", "precision", "framework")
CHOICES = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs", "recompute", "fsdp_shard", "schedule")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="has training_points.csv")
    folder = parser.parse_args().folder
    print("# GPT3-175B on 512 A100, NVLink domain 4, batch 1024")
    for rules in RULES:
        found = answer(_request("gpt3-175b", "a100-nvs4", (512,), "1d", rules, global_batch=1024))
        best = found.best.iloc[0]
        print(f"{rules}: tp {best.tp}, pp {best.pp}, dp {best.dp}, micro-batch {best.mbs}: {best.t:.3f} s")
    print("\n# throughput of domains of 64 over domains of 4, GPT3-1T, in percent more")
    print("rules      gpu    strategy   1,024 devices   16,384 devices")
    for rules in RULES:
        for gpu in ("a100", "h200", "b200"):
            for strategy in ("1d", "2d-seqp"):
                small, large = (_throughputs("gpt3-1t", f"{gpu}-nvs{n}", strategy, rules) for n in (4, 64))
                gains = [f"{large[n] / small[n] - 1:14.1%}" for n in (1024, 16384)]
                print(f"{rules:10} {gpu:6} {strategy:8} {'  '.join(gains)}")
    print("\n# ViT with 64,800 tokens on 1,024 B200-nvs8: tensor parallelism in one dimension, and in two")
    for rules in RULES:
        times = {s: _throughputs("vit-era5", "b200-nvs8", s, rules, (1024,)).get(1024) for s in ("1d", "2d", "2d-seqp")}
        shown = (f"{s} {'does not fit' if v is None else f'{v:.2f} samples/s'}" for s, v in times.items())
        print(f"{rules}: {', '.join(shown)}")
    print("\n# fewest devices that GPT3-1T fits on")
    for rules in RULES:
        for strategy in ("1d", "2d", "2d-seqp"):
            fewest = [
                f"{gpu} {min(_throughputs('gpt3-1t', f'{gpu}-nvs8', strategy, rules))}"
                for gpu in ("a100", "h200", "b200")
            ]
            print(f"{rules} {strategy}: {', '.join(fewest)}")
    print("\n# seconds per step on 8,192 B200-nvs8, GPT3-1T: memory capacity (GB) and bandwidth (GB/s), then FLOPS")
    for rules in RULES:
        base = _request("gpt3-1t", "b200-nvs8", (8192,), "1d", rules)
        for axes in ({"hbm_gb": (96, 192, 384), "hbm_gb_s": (4000, 8000, 16000)}, {"flops": (1250, 2500, 5000, 10000)}):
            cells = [
                f"{'/'.join(f'{v:g}' for v in _figures(each, axes))}: {answer(each).best['t'].iloc[0]:.3f}"
                for each in points(base, axes)
            ]
            print(f"{rules}: {', '.join(cells)}")
    if folder is not None:
        print("\n# measured choices: seconds per step, fastest measured first")
        _families(folder / "training_points.csv")


def _request(model: str, cluster: str, gpus: tuple[int, ...], strategy: Any, rules: RuleSet, **more: Any) -> Request:
    given = {"global_batch": BATCH, "top": 1, **more}
    return Request(model=model, cluster=cluster, gpus=gpus, strategies=(strategy,), rules=rules, **given)


def _throughputs(
    model: str, cluster: str, strategy: Any, rules: RuleSet, gpus: tuple[int, ...] = tuple(2**i for i in range(5, 15))
) -> dict[int, float]:
    table = answer(_request(model, cluster, gpus, strategy, rules)).fits
    return dict(zip(table["n_gpus"].tolist(), table["throughput"].tolist(), strict=True))


def _figures(request: Request, axes: dict[str, Any]) -> list[float]:
    return [getattr(request.figures, name) for name in axes]


def _families(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    families: dict[tuple[str, ...], dict[tuple[str, ...], dict[str, str]]] = defaultdict(dict)
    for row in rows:
        if row["n_gpus"] and row["gbs"] and row["seq_len"] and (row["step_time_s"] or row["tokens_s_gpu"]):
            families[tuple(row[name] for name in FAMILY)].setdefault(tuple(row[name] for name in CHOICES), row)
    for family, members in families.items():
        estimated = [(_seconds(row), project_row(row, RowOptions(framework="ideal")), row) for row in members.values()]
        known = sorted(
            ((measured, point.projection.step_us / 1e6, row) for measured, point, row in estimated if point.projection),
            key=lambda each: each[0],
        )
        if len(known) < 2:
            continue
        print(", ".join(family))
        ordered = [each[1] for each in known]
        for measured, step_s, row in known:
            named = " ".join(f"{name} {row[name]}" for name in CHOICES if row[name] not in ("", "1.0", "1"))
            print(f"  measured {measured:8.3f}  estimated {step_s:8.3f}  {named}")
        print(f"  order {'as' if ordered == sorted(ordered) else 'not as'} measured; {_choice(known[0][2])}")


def _seconds(row: dict[str, str]) -> float:
    if row["step_time_s"]:
        return float(row["step_time_s"])
    return float(row["gbs"]) * float(row["seq_len"]) / float(row["n_gpus"]) / float(row["tokens_s_gpu"])


def _choice(row: dict[str, str]) -> str:
    request = _request(
        row["model"], row["gpu"], (int(float(row["n_gpus"])),), "1d", "corrected",
        global_batch=int(float(row["gbs"])), sequence=int(float(row["seq_len"])),
    )  # fmt: skip
    try:
        best = answer(replace(request)).best
    except TracelensError as error:
        return f"not searched: {error}"
    if not len(best):
        return "the search finds nothing that fits"
    b = best.iloc[0]
    degrees = " ".join(f"{name} {b[name]}" for name in ("tp", "pp", "vpp", "dp", "ep", "mbs", "zero", "recompute"))
    return f"the search would take {degrees}: {b['t']:.3f} s"


if __name__ == "__main__":
    main()
