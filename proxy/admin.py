"""The admin port: is the process alive, is it ready, what does it do. Never part of the backend's own paths."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from proxy.health import Belief, Health
from proxy.learn import as_text
from proxy.metrics import CONTENT_TYPE
from proxy.policy import Backend, effective_text
from proxy.reload import Status
from proxy.server import DataPort
from proxy.upstream import Upstream


class AdminPort:
    """Answers the operator and the orchestrator."""

    def __init__(
        self,
        port: DataPort,
        health: Health,
        upstream: Upstream,
        address: Callable[[Backend], str],
        status: Status,
    ) -> None:
        self._port = port
        self._health = health
        self._upstream = upstream
        self._address = address
        self._status = status

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/health", self._readyz),
                web.get("/learned", self._learned),
                web.get("/metrics", self._metrics),
                web.get("/policy", self._policy),
            ]
        )
        return app

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        beliefs = {
            backend.name: await self._health.belief(backend, self._upstream, self._address)
            for backend in self._port.policy.backends
        }
        is_up = any(belief.is_up for belief in beliefs.values())
        is_ready = is_up and not self._status.is_draining
        text = self._verbose(beliefs) if "verbose" in request.query else ""
        return web.Response(text=f"{text}{'ok' if is_ready else 'not ready'}\n", status=200 if is_ready else 503)

    def _verbose(self, beliefs: dict[str, Belief]) -> str:
        lines = [f"[{_sign(not self._status.is_draining)}]draining: {'yes' if self._status.is_draining else 'no'}"]
        faults = self._status.last_reload_faults
        lines.append(f"[{_sign(not faults)}]policy: {self._port.policy.sha256[:12]}" + _kept(faults))
        lines += [f"[{_sign(belief.is_up)}]backend {name}: {belief.why}" for name, belief in beliefs.items()]
        return "\n".join(lines) + "\n"

    async def _learned(self, _request: web.Request) -> web.Response:
        return web.Response(text=as_text(self._port.lessons.all()), content_type="application/yaml")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._port.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _policy(self, _request: web.Request) -> web.Response:
        return web.Response(text=effective_text(self._port.policy), content_type="application/yaml")


def _sign(is_good: bool) -> str:
    return "+" if is_good else "-"


def _kept(faults: int) -> str:
    return f" (kept: the last reload had {faults} {'fault' if faults == 1 else 'faults'})" if faults else ""
