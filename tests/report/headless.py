"""Headless Chromium, asked over its remote debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (Debian: apt-get install chromium)"),
]
SECONDS = 600


class Browser:
    """One tab. ``heard`` keeps every event, so that a test can say that nothing was requested or complained about."""

    def __init__(self, profile: Path) -> None:
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()

        def wire() -> None:
            # The browser reads commands from descriptor 3 and writes to 4
            os.dup2(os.dup(to_browser), 3)
            os.dup2(os.dup(from_browser), 4)

        self.process = subprocess.Popen(
            [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(3, 4, to_browser, from_browser), preexec_fn=wire, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self.commands, self.answers = commands, answers
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.heard: list[dict[str, Any]] = []
        os.set_blocking(answers, False)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.heard.append(answer)

    def message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            try:
                piece = os.read(self.answers, 1 << 16)
                assert piece, "the browser ended"
                self.buffer += piece
            except BlockingIOError:
                assert time.monotonic() < deadline, "the browser does not answer"
                time.sleep(0.005)
        one, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(one)

    def evaluate(self, expression: str) -> Any:
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + SECONDS
        ready = "(!document.getElementById('data') || document.body.dataset.ready === 'yes')"
        while not self.evaluate(f"document.readyState === 'complete' && {ready}"):
            assert time.monotonic() < deadline, f"the page did not get ready: {self.complaints()}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first element found: what covers it would get the click instead."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def texts(self, selector: str) -> list[str]:
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")

    def complaints(self) -> list[str]:
        wrong = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.heard if event.get("method") in wrong]

    def requests(self) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self.heard if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    @contextmanager
    def showing(self, **features: str) -> Iterator[None]:
        """With media features, ``prefers_color_scheme="dark"``; afterwards as before, of its own width too."""
        shown = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=shown)
        try:
            yield
        finally:
            self.call("Emulation.clearDeviceMetricsOverride")
            self.call("Emulation.setEmulatedMedia", features=[])

    def widen(self, width: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return int(self.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def serious(self, path: Path) -> list[str]:
        """What axe-core (package axe-core-python) calls serious or critical on a page, of rows and boxes that are
        alike some of each: all of them take minutes."""
        package = pytest.importorskip("axe_core_python", reason="not installed (pip install axe-core-python)")
        script = Path(package.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
        self.call("Page.setBypassCSP", enabled=True)
        try:
            self.open(path)
            self.evaluate(f"{script}; 0")
            found: list[str] = self.evaluate(_AXE)
        finally:
            self.call("Page.setBypassCSP", enabled=False)
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=SECONDS)
        os.close(self.commands)
        os.close(self.answers)


_AXE = """(() => {
  const few = (all, most) => [...all].slice(most).forEach((each) => each.remove());
  for (const body of document.querySelectorAll('tbody')) few(body.rows, 4);
  for (const selector of ['a.point', '#icicle-drawing .hit', 'svg.roofline rect', '.picture rect', '.picture text'])
    few(document.querySelectorAll(selector), 6);
  return axe.run({resultTypes: ['violations'], preload: false}).then((run) => run.violations
    .filter((each) => ['serious', 'critical'].includes(each.impact))
    .map((each) => each.id + ': ' + each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' ; ')));
})()"""
