"""All repairs, by the name that a policy calls them."""

from collections.abc import Mapping
from typing import Final

from proxy.repairs import clamp, coerce, default, drop, fan_out, keep, move, reject, stream, warn
from proxy.repairs import map as map_
from proxy.repairs import set as set_
from proxy.repairs.card import Card

REPAIRS: Final[Mapping[str, Card]] = {
    "clamp": clamp.CARD,
    "coerce": coerce.CARD,
    "default": default.CARD,
    "drop": drop.CARD,
    "fan_out": fan_out.CARD,
    "keep": keep.CARD,
    "map": map_.CARD,
    "move": move.CARD,
    "reject": reject.CARD,
    "set": set_.CARD,
    "stream": stream.CARD,
    "warn": warn.CARD,
}
