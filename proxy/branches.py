"""A finished draft → the bodies of the branches and the way back from their answers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
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
    if not (asked or draft.fan or draft.split or draft.undos or draft.answer):
        return structs.replace(base, bodies=(draft.body.text(),))
    groups = split_bodies(draft.body, draft.split) if draft.split is not None else [draft.body]
    branches = [branch for group in groups for branch in (branch_bodies(group, draft.fan) if draft.fan else [group])]
    if len(groups) > 1:
        branches = _with_own_ids(branches, draft.body.get("rid"))
    bodies = tuple(_encoded(branches))
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


def _encoded(branches: list[Body]) -> Iterator[bytes]:
    """Yield the bodies' bytes, those of one that is sent again and again only once made."""
    last: Body | None = None
    encoded = b""
    for branch in branches:
        encoded = encoded if branch is last else branch.encode()
        last = branch
        yield encoded


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
    own = _own(draft, kind)
    return structs.replace(
        restoring,
        spreads=_spreads(fan.n, fan.copies, groups, split.size * own, None)
        if split is not None
        else _spreads(fan.n, fan.copies, groups, 0, prompts),
        total=fan.n * prompts if draft.fan is not None else None,
        concurrency=min(limits, default=0),
        usage="sum" if fan.usage == "sum" else "once",
    )


@functools.lru_cache(maxsize=256)
def _reshaping(kind: Kind | None, answer: Answer, model: str) -> Restore:
    """Return how an answer is restored of which only the shape is another."""
    return Restore(kind, answer.stream, answer.include_usage, model=model)


@functools.lru_cache(maxsize=256)
def _spreads(n: int, copies: int, groups: int, size: int, own: int | None) -> tuple[Spread, ...]:
    """Return where each branch's choices go: group by group, in each the n branches of its fan-out.

    `size` is how many choices the backend itself makes of a group, `own` those that a branch is asked for.
    """
    if copies > 1:
        return tuple(Spread(n, group * size * n, copies, group, own) for group in range(groups))
    return tuple(Spread(n, group * size * n + offset, 1, group, own) for group in range(groups) for offset in range(n))


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
