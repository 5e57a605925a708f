"""`GET /v1/models` with several backends: their lists joined, each model once, from the backend that serves it."""

from __future__ import annotations

import asyncio
from typing import Any

from proxy.chunks import decode_answer, encode_json
from proxy.engine import Plan, plan
from proxy.errors import BackendFault
from proxy.exchange import Exchange, tell_error
from proxy.policy import Backend

PATH = "/v1/models"


def is_joined(exchange: Exchange) -> bool:
    """Return whether a request asks for the list that several backends make together."""
    request = exchange.request
    return request.method == "GET" and request.path == PATH and len(exchange.policy.backends) > 1


async def list_models(exchange: Exchange) -> None:
    """Answer with the joined list; a backend that does not answer has no models just now.

    Raises: BackendFault where none of them answers, ClientLeft.
    """
    made = plan(exchange.request, exchange.policy)
    exchange.record.plan = made
    if made.refusal is not None:
        await tell_error(exchange, made, made.refusal)
        return
    exchange.record.rounds = 1
    found = await asyncio.gather(*(_ask(exchange, made, backend) for backend in exchange.policy.backends))
    lists = [one for one in found if isinstance(one, list)]
    if not lists:
        raise next(one for one in found if isinstance(one, BackendFault))
    models = {entry["id"]: entry for entries in reversed(lists) for entry in reversed(entries)}
    body = encode_json({"object": "list", "data": list(reversed(models.values()))})
    said = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *exchange.told(made)]
    await exchange.client.begin(200, None, said)
    await exchange.client.write(body)
    await exchange.client.end()


async def _ask(exchange: Exchange, made: Plan, backend: Backend) -> list[dict[str, Any]] | BackendFault:
    """Return the models of a backend that requests for them would reach, or why they are not known."""
    exchange.record.branches += 1
    call = exchange.call(made, 0, backend)
    try:
        async with exchange.upstream.send(backend, exchange.address(backend), call) as reply:
            limit = exchange.policy.limits.response_bytes
            body, is_whole = await reply.read_up_to(limit, backend.timeouts.idle_s, exchange.share.take)
            if reply.status != 200 or not is_whole:
                return BackendFault(f"The backend {backend.name!r} has no list of models.", code="invalid_answer")
            listed = decode_answer(body).get("data")
    except TimeoutError:
        return BackendFault(f"The backend {backend.name!r} stopped in its list of models.", status=504)
    except BackendFault as fault:
        return fault
    entries = listed if isinstance(listed, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and _reaches(exchange, backend, entry.get("id"))]


def _reaches(exchange: Exchange, backend: Backend, model: Any) -> bool:
    return isinstance(model, str) and exchange.policy.backend_for(model) is backend
