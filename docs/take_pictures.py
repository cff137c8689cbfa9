"""Takes the pictures of docs/pictures/ from the example traces: ``python -m docs.take_pictures`` (needs Chromium)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tracelens as tl

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
TRACE = ROOT / "example_traces" / "moe_ep8" / "rank0.json.gz"
#: Name -> (first section shown, width, height), in CSS pixels.
SHOTS = {
    "report_page": ("verdict", 1200, 1130), "report_ops": ("section-ops", 1200, 620),
    "report_timeline": ("timeline", 1200, 640), "report_drill": ("drill", 1200, 560),
}  # fmt: skip


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.stderr.write("no Chromium on the path: the pictures stay as they are\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = tl.report(tl.load(TRACE)).to_html(Path(folder) / "report.html").read_text(encoding="utf-8")
        for name, (section, width, height) in SHOTS.items():
            shown = Path(folder) / f"{name}.html"
            # The first section in the picture stands at its top; the page itself forbids foreign styles
            first = page.index(f'<section id="{section}"')
            start = page.index("<section ")
            shown.write_text(page[:start] + page[first:], encoding="utf-8")
            target = PICTURES / f"{name}.png"
            subprocess.run(
                [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--force-device-scale-factor=1", "--virtual-time-budget=4000",
                 f"--window-size={width},{height}", f"--screenshot={target}",
                 shown.as_uri()],
                check=True, capture_output=True,
            )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
