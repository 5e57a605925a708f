"""What a backend can do wrong, one by one."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from soak import texts
from soak.scripts import Fault, Script
from soak.wire import Wire

BEFORE: Final = frozenset({Fault.INTERIM, Fault.REPAIRED, Fault.SLOW_HEAD, Fault.DROPPED, Fault.GARBAGE, Fault.SILENT})
NOBODYS_SEED: Final = 0
# How many pauses between two words a slow head takes.
SLOW: Final = 8
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
_TOO_LARGE: Final = b'{"error": {"message": "That is too long."}}'
_REFUSAL: Final = (
    b'{"error": {"message": "Unsupported parameter: \'legacy\' is not known.", "type": "invalid_request_error"}}'
)


def parsed(body: bytes) -> dict[str, Any]:
    """Return a request's fields; none where it has not come as JSON."""
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


async def answer_early(wire: Wire) -> bool:
    """Refuse a request while its body is still coming, and take the rest of it. Return False: nothing can follow."""
    length = len(_TOO_LARGE)
    head = f"HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}"
    wire.send(head.encode() + b"\r\n\r\n" + _TOO_LARGE)
    await wire.gone()
    return False


async def before(wire: Wire, script: Script) -> bool:
    """Do what comes before an answer. Return whether one follows."""
    if script.fault is Fault.SLOW_HEAD:
        await asyncio.sleep(script.gap_s * SLOW)
        return True
    if script.fault is Fault.INTERIM:
        wire.send(_INTERIM)
        return True
    if script.fault is Fault.REPAIRED:
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(_REFUSAL)}\r\n\r\n"
        wire.send(head.encode() + _REFUSAL)
    elif script.fault is Fault.GARBAGE:
        wire.send(b"\x15\x03\x01 this is no HTTP at all\r\n\r\n")
    elif script.fault is Fault.SILENT:
        await wire.gone()
    return False


async def answer_again(wire: Wire) -> None:
    """End an answer, and send another with it, which must reach nobody: whoever is there has to close."""
    unasked = texts.answer(NOBODYS_SEED, 3, 0)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(unasked)
    wire.send(b"0\r\n\r\n" + head + unasked)
    await wire.gone()


async def in_the_middle(wire: Wire, fault: Fault) -> None:
    """Break an answer off."""
    if fault is Fault.RESET:
        wire.reset()
    elif fault is Fault.BROKEN:
        wire.send(b"this is no size of a chunk\r\n")
        await wire.gone()
    elif fault is Fault.STALL:
        await wire.gone()
