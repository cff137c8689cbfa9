"""Takes the pictures of docs/pictures/ from the example traces: ``python -m docs.take_pictures`` (needs Chromium)."""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image

import tracelens as tl
from tracelens.backends import System
from tracelens.cli import main as command
from tracelens.report.charts import line_chart
from tracelens.report.document import Document, section

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
RANKS = ROOT / "example_traces" / "moe_ep8"
#: Name -> (first section shown, width, height), in CSS pixels.
SHOTS = {
    "report_page": ("verdict", 1200, 1180), "report_ops": ("section-ops", 1200, 620),
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
#: The picture of the terminal, its command, and how many letters and lines of it fit.
TERMINAL, TYPED, COLUMNS, LINES = "terminal", "tracelens example_traces/moe_ep8/rank0.json.gz", 100, 45
#: What a terminal is told by an escape sequence -> how the picture shows it.
_LOOKS = {
    "1": "font-weight:700;color:#fff", "2": "color:#93a1b3", "31": "color:#ff8d7a", "32": "color:#7ad79a",
    "33": "color:#f0c674", "34": "color:#7db8ff", "35": "color:#d7a6ff", "36": "color:#79d5d5",
}  # fmt: skip


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.stderr.write("no Chromium on the path: the pictures stay as they are\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        terminal_picture(browser, Path(folder))
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
        limits_picture(browser, Path(folder))
        workbook_picture(browser, Path(folder))
    return 0


def terminal_picture(browser: str, folder: Path) -> None:
    """What the command prints on a terminal, with its colors."""
    trace = folder / TYPED.split()[-1]
    trace.parent.mkdir(parents=True)
    shutil.copy(ROOT / TYPED.split()[-1], trace)
    said = as_typed(TYPED, COLUMNS, folder)
    page = folder / f"{TERMINAL}.html"
    body = "margin:0;padding:14px 18px;background:#12161c;color:#d5dce6"
    font = "margin:0;font:13.6px/1.45 'DejaVu Sans Mono',monospace"
    prompt = f'<span style="{_LOOKS["32"]}">$</span> <span style="{_LOOKS["1"]}">{TYPED}</span>'
    page.write_text(
        f'<meta charset="utf-8"><body style="{body}"><pre style="{font}">{prompt}\n{colored(said)}</pre>',
        encoding="utf-8",
    )
    lines = min(LINES, said.count("\n") + 2)
    _shoot(browser, page, PICTURES / f"{TERMINAL}.png", 860, 28 + round(19.72 * lines))


def as_typed(typed: str, columns: int, folder: Path) -> str:
    """The output of a command of tracelens, typed in a folder, on a terminal so many letters wide."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    words = [sys.executable, "-m", "tracelens", *typed.split()[1:]]
    process = subprocess.Popen(
        words, stdout=terminal, stderr=subprocess.DEVNULL, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    os.close(terminal)
    pieces = []
    while True:
        try:
            pieces.append(os.read(reader, 1 << 16))
        except OSError:  # the command has ended
            break
    os.close(reader)
    process.wait()
    return b"".join(pieces).decode().replace("\r\n", "\n")


def colored(text: str) -> str:
    """Escape sequences as spans; those that do not color are left out."""
    shown, looks = [], ""
    for piece in re.split(r"(\x1b\[[\d;?]*[A-Za-z])", text):
        if not piece.startswith("\x1b["):
            shown.append(
                f'<span style="{looks}">{html.escape(piece)}</span>' if piece and looks else html.escape(piece)
            )
        elif piece.endswith("m"):
            looks = ";".join(_LOOKS[code] for code in piece[2:-1].split(";") if code in _LOOKS)
    return "".join(shown)


def _shoot(browser: str, page: Path, target: Path, width: int, height: int) -> None:
    subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--force-device-scale-factor=1", "--virtual-time-budget=4000",
         f"--window-size={width},{height}", f"--screenshot={target}", page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    image = Image.open(target).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(target, optimize=True)


#: The picture of one server at several power limits, in W, with so many requests at once.
LIMITED, LIMITS_W, AT_ONCE = "power_limits", (700, 500, 350), (2, 4, 8, 16, 32, 64, 128)


def limits_picture(browser: str, folder: Path) -> None:
    """J per output token against tokens/s per GPU of Llama 3.1 70B in FP8 on 4 H100."""
    lines = {}
    for watts in LIMITS_W:
        system = System.load("dgx-h100").at_power(watts)
        served = [
            tl.serve("llama3.1-70b", system, tp=4, weights="fp8", concurrency=n, requests=4 * n).summary
            for n in AT_ONCE
        ]
        lines[f"{watts} W"] = [(each["output_tokens_per_s"] / 4, each["energy_j_per_output_token"]) for each in served]
    across = f"output tokens/s per GPU, {AT_ONCE[0]} to {AT_ONCE[-1]} requests at once"
    chart = line_chart(lines, across, "J per output token at power limits of each GPU")
    named = Document(title="Llama 3.1 70B in FP8 on 4 x H100", kind="power", sections=[section("limits", "", chart)])
    page = folder / f"{LIMITED}.html"
    page.write_bytes(named.page())
    _shoot(browser, page, PICTURES / f"{LIMITED}.png", 1200, 540)


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
