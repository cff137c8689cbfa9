"""Takes the pictures of docs/pictures/ from the example traces: ``python -m docs.take_pictures`` (needs Chromium)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tracelens as tl
from tracelens.cli import main as command

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
RANKS = ROOT / "example_traces" / "moe_ep8"
#: Name -> (first section shown, width, height), in CSS pixels.
SHOTS = {
    "report_page": ("verdict", 1200, 1130), "report_ops": ("section-ops", 1200, 620),
    "report_timeline": ("timeline", 1200, 640), "report_drill": ("drill", 1200, 560),
}  # fmt: skip
#: Of each other kind of page, the command that writes it and the picture's height.
PAGES = {
    "compare": (f"compare {RANKS}/rank0.json.gz {RANKS}/rank3.json.gz", 900),
    "collectives": (f"collectives {RANKS}", 1000),
    "project": ("project --model llama3-70b --cluster dgx-h100 --gpus 64 --tp 8 --pp 4", 1180),
    "search": ("search --model llama3-8b --cluster dgx-h100 --gpus 8..32 --global-batch 128", 1140),
    "serve": ("serve --model llama3-8b --device h100 --rate 4 --requests 100", 1650),
    "route": ("route --cluster dgx-h100 --ranks 16", 900),
}
#: Not taken again: half of it is how the same answers looked before (commit aff8ef0).
KEPT = ("before_after",)


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.stderr.write("no Chromium on the path: the pictures stay as they are\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = tl.report(tl.load(RANKS / "rank0.json.gz")).to_html(Path(folder) / "report.html")
        page = report.read_text(encoding="utf-8")
        for name, (section, width, height) in SHOTS.items():
            shown = Path(folder) / f"{name}.html"
            # The first section in the picture stands at its top; the page itself forbids foreign styles
            first = page.index(f'<section id="{section}"')
            start = page.index("<section ")
            shown.write_text(page[:start] + page[first:], encoding="utf-8")
            _shoot(browser, shown, PICTURES / f"{name}.png", width, height)
        for name, (words, height) in PAGES.items():
            shown = Path(folder) / f"{name}.html"
            command([*words.split(), "-o", str(shown)])
            _shoot(browser, shown, PICTURES / f"{name}.png", 1200, height)
        workbook_picture(browser, Path(folder))
    return 0


def _shoot(browser: str, page: Path, target: Path, width: int, height: int) -> None:
    subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--force-device-scale-factor=1", "--virtual-time-budget=4000",
         f"--window-size={width},{height}", f"--screenshot={target}", page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip


#: The name of the picture of the workbook, and how many pixels of its two sheets it shows.
WORKBOOK, _HEIGHTS = "workbook", (345, 235)


def workbook_picture(browser: str, folder: Path) -> None:
    """The sheets ``about`` and ``ops`` of the example, as LibreOffice prints them, one below the other."""
    if shutil.which("soffice") is None or shutil.which("pdftoppm") is None:
        sys.stderr.write("no LibreOffice or no poppler on the path: the picture of the workbook stays as it is\n")
        return
    book = tl.report(tl.load(RANKS / "rank0.json.gz")).to_excel(folder / "workbook.xlsx")
    subprocess.run(
        ["soffice", "--headless", "--convert-to", "pdf", "--outdir", folder, book], check=True, capture_output=True
    )
    pdf = folder / "workbook.pdf"
    text = subprocess.run(["pdftotext", "-layout", pdf, "-"], check=True, capture_output=True, text=True).stdout
    # Each page of the first sheet repeats its title
    second = next(number for number, page in enumerate(text.split("\f"), 1) if "Trace report" not in page)
    shown = []
    for number, height in zip((1, second), _HEIGHTS, strict=True):
        image = pdf.with_name(f"page{number}")
        at = ("-f", str(number), "-l", str(number))
        subprocess.run(["pdftoppm", "-png", "-r", "170", "-singlefile", *at, pdf, image], check=True)
        # Without the margins of the page
        look = "width:1390px;margin:-124px 0 0 -94px"
        shown.append(
            f'<div style="height:{height}px;overflow:hidden"><img src="{image.name}.png" style="{look}"></div>'
        )
    page = folder / "workbook.html"
    page.write_text(f'<body style="margin:12px 0 0;background:white">{"<br>".join(shown)}', encoding="utf-8")
    _shoot(browser, page, PICTURES / f"{WORKBOOK}.png", 1200, sum(_HEIGHTS) + 30)


if __name__ == "__main__":
    sys.exit(main())
