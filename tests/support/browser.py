"""Drive a headless Chromium over its DevTools protocol: open, evaluate, press keys, point."""

import base64
import contextlib
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import websocket

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
TIMEOUT = 60  # seconds


def find():
    """The path of the browser, or None."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Page:
    """One tab."""

    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=TIMEOUT)
        self.numbers = itertools.count(1)
        self.errors = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Send one command; script errors that arrive before its answer are collected."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(message["params"])
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(self, path, width, height):
        """Load a file at a window size, and wait until it is loaded."""
        mobile = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **mobile)
        self.call("Page.navigate", url=Path(path).as_uri())
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done(1)"
            " : onload = () => done(1))"
        )

    def evaluate(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key):
        """Press and release one key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def hover(self, selector):
        """Move the mouse over the middle of the first element that matches."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        scroll = (
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block:'center'}})"
        )
        self.evaluate(scroll)
        rect = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=rect[0], y=rect[1])

    def picture(self, path):
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def chromium(program):
    """A running browser with an empty profile; yields a Page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            for line in process.stderr:
                found = re.search(r"ws://([\d.:]+)/", line)
                if found:
                    break
            listing = f"http://{found[1]}/json/list"
            with urllib.request.urlopen(listing, timeout=TIMEOUT) as answer:
                tabs = json.load(answer)
            page = Page(next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page"))
            yield page
            page.socket.close()
        finally:
            process.terminate()
            process.stderr.close()
            process.wait(timeout=TIMEOUT)
