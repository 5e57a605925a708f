"""A finished draft → the bodies of the branches and the way back from their answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from proxy.body import Body
from proxy.errors import ProxyFault
from proxy.matching.values import is_integer
from proxy.plans import Kind, Plan, Restore
from proxy.repairs.card import Answer, Draft, Fan
from proxy.repairs.fan_out import branch_bodies
from proxy.repairs.split import split_bodies
from proxy.spread import Spread

# What is remembered of models is bounded, since a client names them.
_LONGEST_KEPT = 256


def with_branches(base: Plan, asked: int = 0) -> Plan:
    """Return the plan with the bodies of its branches, and how their answers are restored.

    `asked` is how many choices a single branch has to give, where it is to be looked after that.
    """
    draft = base.draft
    groups, branches = [draft.body], [draft.body]
    if draft.split is not None or draft.fan is not None:
        groups, branches = _divided(draft)
    bodies = tuple([branch.encode() for branch in branches])
    if not asked and not _has_to_be_restored(draft):
        return structs.replace(base, bodies=bodies)
    kind = base.kind
    if kind is None and (draft.answer is not None or draft.fan is not None):
        rules = ", ".join(repr(applied.rule) for applied in base.applied)
        return structs.replace(
            base,
            refusal=ProxyFault(
                f"The policy changes the shape of an answer of {base.facts.path}, which has no chunks: "
                f"keep `stream` and `fan_out` to /v1/chat/completions and /v1/completions (rules {rules}).",
                code="policy_error",
            ),
        )
    restoring = _restore(draft, kind, base.facts.model or "", len(groups), asked)
    return structs.replace(base, bodies=bodies, restore=restoring)


def _divided(draft: Draft) -> tuple[list[Body], list[Body]]:
    """Return the groups of a request that is divided, and the branches of all of them."""
    groups = split_bodies(draft.body, draft.split) if draft.split is not None else [draft.body]
    branches = [branch for group in groups for branch in (branch_bodies(group, draft.fan) if draft.fan else [group])]
    return groups, _with_own_ids(branches, draft.body.get("rid")) if len(groups) > 1 else branches


def with_fresh_id(body: Body) -> Body:
    """Return a body that is sent once more with another `rid`: an engine may not be done with the first."""
    rid: Any = body.get("rid")
    if isinstance(rid, str):
        return body.put(("rid",), f"{rid}-again")
    if isinstance(rid, list) and all(isinstance(one, str) for one in rid):
        return body.put(("rid",), [f"{one}-again" for one in rid])
    return body


def _with_own_ids(branches: list[Body], rid: Any) -> list[Body]:
    """Return the branches of several groups with a `rid` of its own each, as `fan_out` gives those of one."""
    if isinstance(rid, str):
        return [body.put(("rid",), f"{rid}-{number}") if number else body for number, body in enumerate(branches)]
    return [body.cut(("rid",)) if isinstance(rid, list) and "rid" in body else body for body in branches]


def _is_split(draft: Draft) -> bool:
    return draft.fan is not None or draft.split is not None


def _has_to_be_restored(draft: Draft) -> bool:
    if draft.undos or _is_split(draft):
        return True
    if draft.answer is None:
        return False
    streams = draft.body.get("stream") is True
    return draft.answer.stream != streams or (streams and draft.answer.include_usage != wants_usage(draft.body))


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a streamed answer to this body ends with a usage chunk."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _restore(draft: Draft, kind: Kind | None, model: str, groups: int, asked: int) -> Restore:
    answer = draft.answer or Answer(draft.body.get("stream") is True, wants_usage(draft.body))
    undos = draft.undos[::-1]
    if not (undos or asked or _is_split(draft)) and len(model) <= _LONGEST_KEPT:
        return _reshaping(kind, answer, model)
    restoring = Restore(kind, answer.stream, answer.include_usage, model=model, undos=undos, asked=asked)
    if not _is_split(draft):
        return restoring
    fan, split = draft.fan or Fan(1), draft.split
    limits = {fan.concurrency, split.concurrency if split is not None else 0} - {0}
    prompts = _prompts(draft.body) if kind == "text" else 1
    spreads = _spreads(fan, groups, split.size if split is not None else 0, _own(draft, kind))
    if split is None:
        spreads = (replace(spread, own=prompts) for spread in spreads)
    return replace(
        restoring,
        spreads=tuple(spreads),
        total=fan.n * prompts if draft.fan is not None else None,
        concurrency=min(limits, default=0),
        usage="sum" if fan.usage == "sum" else "once",
    )


@functools.lru_cache(maxsize=256)
def _reshaping(kind: Kind | None, answer: Answer, model: str) -> Restore:
    """Return how an answer is restored of which only the shape is another."""
    return Restore(kind, answer.stream, answer.include_usage, model=model)


def _spreads(fan: Fan, groups: int, size: int, own: int) -> Iterator[Spread]:
    """Yield where each branch's choices go: group by group, in each the n branches of its fan-out.

    `own` is how many choices the backend itself makes of each element of a group.
    """
    for group in range(groups):
        start = group * size * own * fan.n
        if fan.copies > 1:
            yield Spread(fan.n, start, fan.copies, group)
        else:
            yield from (Spread(fan.n, start + offset, 1, group) for offset in range(fan.n))


def choices_of(draft: Draft, kind: Kind | None) -> int | None:
    """Return how many choices a backend makes of a request that is not divided; None where that is not known."""
    if kind is None or draft.split is not None:
        return None
    return _own(draft, kind) * (_prompts(draft.body) if kind == "text" else 1)


def _own(draft: Draft, kind: Kind | None) -> int:
    n: Any = draft.body.get("n")
    return int(n) if kind is not None and is_integer(n) and n > 1 else 1


def _prompts(body: Mapping[str, Any]) -> int:
    """Return how many prompts a completion request holds: text, token ids, or a list of either."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
