"""A headless Chromium over its debugging pipe (file descriptors 3 and 4), with nothing but the standard library.

Every page starts with a clean slate: what it logs, throws and requests is kept, for tests to look at.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60  # for one answer; a busy machine takes some
# The ends of the pipes become descriptors 3 and 4; a shell's redirection knows single digits alone.
LAUNCH = """
import os, sys
ends = [os.dup(int(n)) for n in sys.argv[1:3]]
while min(ends) < 5:
    ends = [os.dup(end) for end in ends]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
PROBES = Path(__file__).with_name("probes.js").read_text("utf-8")
INSTALL = "no Chromium found: apt-get install chromium, or set ISENTROPE_BROWSER to one"


def find():
    """The path of a Chromium: $ISENTROPE_BROWSER, else the first of the usual names; None where there is none."""
    return os.environ.get("ISENTROPE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process and one page in it."""

    def __init__(self, executable):
        self._profile = tempfile.TemporaryDirectory(prefix="isentrope-browser-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = [executable, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": self._profile.name},
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, None
        self.events = []
        try:
            self._attach()
        except Exception:
            self.close()
            raise

    def _attach(self):
        target = self._first_page()
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # no window has the focus in a headless browser

    def _first_page(self):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
            if pages:
                return pages[0]["targetId"]
            time.sleep(0.05)
        raise TimeoutError("the browser opened no page")

    def close(self):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method, **params):
        """The result of a command; events that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], SECONDS)
            if not ready:
                raise TimeoutError("the browser does not answer")
            read = os.read(self._from, 1 << 20)
            if not read:
                raise RuntimeError("the browser has gone")
            self._buffer += read
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    # -- pages

    def open(self, path, width=1280, height=900, scheme="light"):
        """Load a file afresh, at a size and with a preferred colour scheme, and wait until its script has run."""
        self.call("Page.navigate", url="about:blank")
        self.resize(width, height)
        self.prefer(scheme)
        self.events.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait("document.readyState === 'complete'")
        self(PROBES)
        self.settle()

    def resize(self, width, height=900):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def settle(self):
        """Wait for two frames: what was asked for has been drawn."""
        self("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def wait(self, condition):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self(condition):
                return
            time.sleep(0.02)
        raise TimeoutError(f"never true: {condition}")

    def __call__(self, expression):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    # -- what the page did

    def complaints(self):
        """Everything the page threw, logged to the console or was refused, since it was opened."""
        self("1")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]

    def requests(self):
        """Addresses that the page asked for, since it was opened, itself included."""
        self("1")
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    # -- hands

    def press(self, key, shift=False):
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        same = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0])), "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def move(self, x, y, **more):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, **more)

    def click(self, selector):
        x, y = self.centre(selector)
        same = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **same)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **same)

    def drag(self, start, end):
        (x, y), (x2, y2) = start, end
        self.move(x, y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        self.move((x + x2) / 2, (y + y2) / 2, button="left", buttons=1)
        self.move(x2, y2, button="left", buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x2, y=y2, button="left", clickCount=1)

    def centre(self, selector):
        """The middle of an element in the window, scrolled to."""
        self(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        return self(f"(r => [r.left + r.width / 2, r.top + r.height / 2])({box})")

    def focus(self, selector, index=0):
        self(f"document.querySelectorAll({json.dumps(selector)})[{index}].focus()")

    def text(self, selector):
        """The text of the first such element as it is in the page, shown or not."""
        return self(f"document.querySelector({json.dumps(selector)}).textContent")

    def tip(self):
        """The text of the box of numbers; None while it is hidden."""
        return self("(t => t.hidden ? null : t.innerText)(document.getElementById('tip'))")

    def screenshot(self, path, full=True):
        """A PNG of the page, whole or as far as the window shows it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"] if full else None
        more = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True} if size else {}
        data = self.call("Page.captureScreenshot", format="png", **more)["data"]
        Path(path).write_bytes(base64.b64decode(data))
