"""Size of the page of a large trace, how soon it can be used, and what it adds to a report.

    python -m benchmarks.page [TRACE] [--megabytes 300]

Makes its trace of copies of a small one, as ``report.py`` does, a share of them with names and shapes of their own.
Needs Chromium.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import tracelens
from tests.report.headless import Browser

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import EXAMPLE, written

#: What the page must keep.
MOST_MB, MOST_SECONDS = 8, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=EXAMPLE)
    parser.add_argument("--megabytes", type=float, default=300)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder) / "trace.json.gz", Path(folder) / "report.html"
        size, events = written(asked.trace, trace, asked.megabytes, 0.1)
        print(f"{size / 1e6:.0f} MB of JSON, {events:,} events", flush=True)
        started = cpu_s()
        report = tracelens.report(tracelens.load(trace))
        report.to_excel(Path(folder) / "report.xlsx")
        before = cpu_s()
        report.to_html(page)
        added = (cpu_s() - before) / (before - started)
        seconds = interactive_s(page, Path(folder) / "profile")
        mb = page.stat().st_size / 1e6
    print(f"page: {mb:.2f} MB, interactive after {seconds:.2f} s, {added:.0%} of the CPU of the rest of a report")
    return 0 if mb < MOST_MB and seconds < MOST_SECONDS else 1


def cpu_s() -> float:
    """Of this process and of those that helped it to read."""
    return sum(os.times()[:4])


def interactive_s(page: Path, profile: Path) -> float:
    """From the navigation until the script has drawn everything; the shortest of three."""
    browser = Browser(profile)
    try:
        found = []
        for _ in range(3):
            began = time.monotonic()
            browser.open(page)
            found.append(time.monotonic() - began)
        assert not browser.complaints()
    finally:
        browser.close()
    return min(found)


if __name__ == "__main__":
    raise SystemExit(main())
