"""Many values written into a body in one pass: a list with thousands of them is copied once, not once for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.body import Body
from proxy.fields import Place


def put_all(body: Body, values: Mapping[Place, Any]) -> Body:
    """Return the body with each value at its place. The places were found in it, and none lies inside another."""
    for name, inner in _by_step(values).items():
        body = body.put((name,), _put(body[str(name)], inner))
    return body


def _put(holder: Any, values: Mapping[Place, Any]) -> Any:
    if () in values:
        return values[()]
    inner = _by_step(values)
    if isinstance(holder, list):
        return [_put(item, inner[index]) if index in inner else item for index, item in enumerate(holder)]
    return holder | {key: _put(holder[key], places) for key, places in inner.items()}


def _by_step(values: Mapping[Place, Any]) -> dict[str | int, dict[Place, Any]]:
    steps: dict[str | int, dict[Place, Any]] = {}
    for place, value in values.items():
        steps.setdefault(place[0], {})[place[1:]] = value
    return steps
