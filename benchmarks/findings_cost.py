"""What share of a report's CPU time its findings take: python -m benchmarks.findings_cost TRACE [TRACE ...]

The report is ``tl.load``, ``tl.report`` and ``write``, as the command makes it by default; the findings are their part
of it, in the same run. CPU seconds of a run after one that does not count, the median of ``--runs``; imports are in
neither. "of command" is over ``tracelens report`` as a user starts it. ``--rules`` shows which rules take most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tracelens
from benchmarks.compare_pairs import process_s
from tracelens.analysis import analyze
from tracelens.analysis.findings.rule import Rule


def timed(function: Callable[..., Any], taken: dict[str, float], key: str) -> Callable[..., Any]:
    """``function``, the CPU seconds of whose calls are added up under ``key``."""

    def run(*args: Any, **options: Any) -> Any:
        began = time.process_time()
        result = function(*args, **options)
        taken[key] = taken.get(key, 0.0) + time.process_time() - began
        return result

    return run


def report_s(path: Path, output: Path, rules: dict[str, float]) -> tuple[float, float]:
    """(CPU seconds of the whole report, of its findings)."""
    taken: dict[str, float] = {}
    findings, of = analyze.findings, Rule.of

    def rule_of(claim: Any) -> Rule:
        rule = of(claim)
        candidates = timed(lambda seen: list(rule.candidates(seen)), rules, rule.kind)
        return Rule(kind=rule.kind, advice=rule.advice, candidates=candidates)

    with (
        mock.patch.object(analyze, "findings", timed(findings, taken, "findings")),
        mock.patch.object(Rule, "of", rule_of),
    ):
        timed(lambda: tracelens.report(tracelens.load(path)).write(output), taken, "report")()
    return taken["report"], taken["findings"]


def main() -> None:
    parser = argparse.ArgumentParser(description="the findings' share of a report's CPU time")
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rules", action="store_true", help="the five rules that take most")
    args = parser.parse_args()
    print(f"{'report':>10}{'findings':>10}{'share':>8}{'of command':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for path in args.traces:
            output = Path(folder) / path.name
            report_s(path, output, {})
            rules: dict[str, float] = {}
            runs = [report_s(path, output, rules) for _ in range(args.runs)]
            whole, own = (statistics.median(run[part] for run in runs) for part in (0, 1))
            command = process_s([sys.executable, "-m", "tracelens", "report", str(path), "-o", str(output)])
            shares = f"{100 * own / whole:>6.1f} %{100 * own / command:>10.1f} %"
            print(f"{whole:>9.2f}s{own:>9.3f}s{shares}   {path.name}", flush=True)
            for kind in sorted(rules, key=lambda kind: -rules[kind])[: 5 if args.rules else 0]:
                print(f"{'':20}{100 * rules[kind] / args.runs / whole:>6.1f} %   {kind}")


if __name__ == "__main__":
    main()
