"""A real Chromium, driven over its DevTools socket: one question at a time, and no waiting but for what is asked.

The command is `chromium`, or what CHROMIUM names.
"""

import asyncio
import base64
import json
import os
import subprocess
import tempfile
from contextlib import asynccontextmanager, contextmanager

import aiohttp

PATIENCE_S = 20.0
# Everything that would call home is off: no test may reach further than this machine.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "about:blank",
]
KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " ")}
UNTIL = """new Promise((resolve) => {{
  const look = () => {{ if ({expression}) {{ watch.disconnect(); resolve(true); }} }};
  const watch = new MutationObserver(look);
  watch.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
  look();
}})"""


class Tab:
    """One tab. What it is asked goes over the browser's socket, one question at a time."""

    def __init__(self, socket, session):
        self._socket = socket
        self._session = session
        self._asked = 0
        self.faults = []

    async def send(self, method, **params):
        """Return the browser's answer; what it tells by itself on the way is looked through for faults."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params} | self._session)
        async with asyncio.timeout(PATIENCE_S):
            while (said := await self._socket.receive_json()).get("id") != self._asked:
                self._note(said)
        assert "error" not in said, said
        return said["result"]

    def _note(self, said):
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"]["exception"]["description"])
        if said.get("method") == "Log.entryAdded" and params["entry"]["source"] == "security":
            self.faults.append(params["entry"]["text"])

    async def do(self, expression):
        """Return the value of an expression, a promise's too."""
        said = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, expression):
        """Wait until an expression holds, looking whenever the page changes."""
        assert await self.do(UNTIL.format(expression=expression)) is True

    async def open(self, url):
        await self.send("Page.navigate", url=str(url))
        await self.until("document.title !== '' && document.title !== 'mendproxy'")

    async def poll(self):
        """Have the page ask for the status now; it does so when it is looked at again."""
        await self.do("document.dispatchEvent(new Event('visibilitychange'))")

    async def set_offline(self, is_offline):
        """Take the network away from the page, or give it back."""
        conditions = {"offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await self.send("Network.emulateNetworkConditions", **conditions)

    async def press(self, name, modifiers=0):
        key, code, text = KEYS[name]
        common = {"key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def texts(self, selector):
        """Return the text of each element that is shown."""
        return await self.do(
            f"[...document.querySelectorAll({json.dumps(selector)})].filter((node) => node.checkVisibility())"
            ".map((node) => node.innerText)"
        )

    async def picture(self):
        """Return a PNG of the whole page."""
        shot = await self.send("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    async def controls(self):
        """Return (role, name) of everything in the accessibility tree."""
        nodes = (await self.send("Accessibility.getFullAXTree"))["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and "role" in node
        ]


@contextmanager
def chromium_running():
    """Give the address of a browser's DevTools socket."""
    command = os.environ.get("CHROMIUM", "chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = subprocess.Popen(  # noqa: S603 the command is this test's own
            [command, f"--user-data-dir={profile}", *FLAGS], stderr=subprocess.PIPE, text=True
        )
        told = "DevTools listening on "
        try:
            yield next(line.removeprefix(told).strip() for line in browser.stderr if line.startswith(told))
        finally:
            browser.terminate()
            browser.communicate(timeout=PATIENCE_S)


@asynccontextmanager
async def open_tab(address):
    """Give a tab that shares nothing with another: no cookie, no clipboard, no permission."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        browser = Tab(socket, {})
        context = (await browser.send("Target.createBrowserContext"))["browserContextId"]
        target = await browser.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await browser.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = Tab(socket, {"sessionId": attached["sessionId"]})
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await tab.send(f"{domain}.enable")
        # As if its window were the one in front: the clipboard and the focus are given to that one only.
        await tab.send("Emulation.setFocusEmulationEnabled", enabled=True)
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        await browser.send("Browser.grantPermissions", permissions=permissions, browserContextId=context)
        try:
            yield tab
        finally:
            await browser.send("Target.disposeBrowserContext", browserContextId=context)
