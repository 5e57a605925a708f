"""The admin port: is the process alive, is it ready, what does it do. Never part of the backend's own paths."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from aiohttp import web

from proxy.errors import ClientFault
from proxy.explain_port import explain_posted, refuse_foreign
from proxy.health import Belief
from proxy.lessons import as_text as lessons_text
from proxy.policy import effective_text
from proxy.reload import Status
from proxy.snapshot import Operated, Picture
from proxy.status import status_of

_PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What is told is how things are now, and nothing that a browser should take for something else.
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_PAGE_HEADERS: Final = {
    "Content-Security-Policy": _PAGE_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
# A request that somebody wants explained is typed or pasted.
_MAX_BYTES: Final = 4 * 1024 * 1024


class AdminPort:
    """Answers the operator and the orchestrator."""

    def __init__(self, operated: Operated, status: Status, config: str, host: str) -> None:
        """Speak of `operated`; `config` is its policy's file, `host` the address of this port."""
        self._operated = operated
        self._status = status
        self._config = config
        self._host = host

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=_MAX_BYTES)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/health", self._readyz),
                web.get("/learned", self._learned),
                web.get("/metrics", self._metrics),
                web.get("/policy", self._policy),
                web.get("/status", self._tell_status),
                web.post("/explain", self._explain),
            ]
        )
        return app

    async def _page(self, _request: web.Request) -> web.Response:
        text = (files("proxy") / "page.html").read_text("utf-8")
        return web.Response(text=text, content_type="text/html", headers=_PAGE_HEADERS)

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        picture, beliefs = await self._operated.picture(), await self._operated.beliefs()
        is_up = any(belief.is_up for belief in beliefs.values()) and picture.answering > 0
        is_ready = is_up and not self._status.is_draining
        text = self._verbose(picture, beliefs) if "verbose" in request.query else ""
        return web.Response(text=f"{text}{'ok' if is_ready else 'not ready'}\n", status=200 if is_ready else 503)

    def _verbose(self, picture: Picture, beliefs: dict[str, Belief]) -> str:
        faults, sha256 = self._status.faults, self._operated.policy.sha256[:12]
        lines = [f"[{_sign(not self._status.is_draining)}]draining: {'yes' if self._status.is_draining else 'no'}"]
        lines.append(f"[{_sign(not faults)}]policy: {sha256}{_kept(len(faults))}")
        lines += [f"[-]{fault}" for fault in faults]
        lines += [f"[{_sign(belief.is_up)}]backend {name}: {belief.why}" for name, belief in beliefs.items()]
        if picture.expected > 1:
            are_all = picture.answering == picture.expected
            lines.append(f"[{_sign(are_all)}]workers: {picture.answering} of {picture.expected} answer")
        return "\n".join(lines) + "\n"

    async def _learned(self, _request: web.Request) -> web.Response:
        return web.Response(text=lessons_text(self._operated.learned()), content_type="application/yaml")

    async def _metrics(self, _request: web.Request) -> web.Response:
        picture = await self._operated.picture()
        # As in Metrics.text.
        from proxy.exposition import CONTENT_TYPE, as_text

        return web.Response(body=as_text(picture.numbers), headers={"Content-Type": CONTENT_TYPE})

    async def _policy(self, _request: web.Request) -> web.Response:
        return web.Response(text=effective_text(self._operated.policy), content_type="application/yaml")

    async def _tell_status(self, _request: web.Request) -> web.Response:
        picture, beliefs = await self._operated.picture(), await self._operated.beliefs()
        told = status_of(self._operated, self._status, self._config, picture, beliefs)
        return web.json_response(told)

    async def _explain(self, request: web.Request) -> web.Response:
        try:
            refuse_foreign(request, self._host)
            told = explain_posted(await request.read(), self._operated.policy)
        except ClientFault as error:
            return web.json_response(error.body(), status=error.status)
        return web.json_response(told)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _sign(is_good: bool) -> str:
    return "+" if is_good else "-"


def _kept(faults: int) -> str:
    return f" (kept: the last reload had {faults} {'fault' if faults == 1 else 'faults'})" if faults else ""
