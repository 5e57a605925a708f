"""All repairs, by the name that a policy calls them."""

from collections.abc import Mapping
from typing import Final

from proxy.repairs import (
    clamp,
    coerce,
    convert_part,
    default,
    degrade_format,
    drop,
    enforce_stop,
    fan_out,
    flatten_content,
    insert_message,
    keep,
    merge_messages,
    move,
    pair_tool_calls,
    recode_embeddings,
    reject,
    rename_model,
    response,
    rewrite_ids,
    rewrite_schema,
    split,
    stream,
    warn,
)
from proxy.repairs import map as map_
from proxy.repairs import set as set_
from proxy.repairs.card import Card

REPAIRS: Final[Mapping[str, Card]] = {
    "clamp": clamp.CARD,
    "coerce": coerce.CARD,
    "convert_part": convert_part.CARD,
    "default": default.CARD,
    "degrade_format": degrade_format.CARD,
    "drop": drop.CARD,
    "enforce_stop": enforce_stop.CARD,
    "fan_out": fan_out.CARD,
    "flatten_content": flatten_content.CARD,
    "insert_message": insert_message.CARD,
    "keep": keep.CARD,
    "map": map_.CARD,
    "merge_messages": merge_messages.CARD,
    "move": move.CARD,
    "pair_tool_calls": pair_tool_calls.CARD,
    "recode_embeddings": recode_embeddings.CARD,
    "reject": reject.CARD,
    "rename_model": rename_model.CARD,
    "response": response.CARD,
    "rewrite_ids": rewrite_ids.CARD,
    "rewrite_schema": rewrite_schema.CARD,
    "set": set_.CARD,
    "split": split.CARD,
    "stream": stream.CARD,
    "warn": warn.CARD,
}
