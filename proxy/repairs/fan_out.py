"""Ask for n choices by n requests.

## What it does

Where `n` is a number above 1 without a fraction, takes `n` and `best_of` out of the request and sends it n times,
merging the answers into one of n choices. Branch i gets `seed` + i, so that the choices differ and a second run gives
the same ones; a sum above 2^63 - 1 goes on from 0. A `rid` that is a string gets `-1`, `-2` … in all branches but the
first, one that is a list is left out, since engines refuse an id twice; for the same reason it gets `-again` whenever a
refused request is repaired and sent once more. Other fields are copied as they are, so a request that names a session
(`session_id`, `session_params`) should be refused by a rule before this one. A branch that reports no usage adds none.

## When a backend needs it

It refuses or ignores `n`, for all requests or for streams (`Cannot stream multiple responses.`).

## What the client loses

Nothing, but the choice of the best among more: `best_of` above `n`. The prompt is read n times.

## Options

`max`: more choices than this are refused with 400, as are more than `limits.branches`. `concurrency`: branches in
flight at a time (0: all). `seed`: `increment`, or `same`. `usage`: count prompt tokens `once`, or `sum` them.
`greedy`: with `temperature` 0 all choices are alike: `replicate` one answer, or `ask` n times. All may be left out:
`fan_out: {}`.

## Example

```yaml
fan_out: {max: 8, concurrency: 1}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import structs
from pydantic import Field

from proxy.body import Body
from proxy.matching.values import is_integer, is_number
from proxy.repairs.card import Act, Card, Change, Draft, Fan, Rejection
from proxy.repairs.losses import word
from proxy.repairs.options import Options
from proxy.repairs.split import group_count

SEEDS: Final = 2**63
"""How many seeds there are from 0 on: engines keep them in a signed 64-bit integer."""


class FanOutOptions(Options):
    """How the choices are asked for."""

    max: int | None = Field(default=None, ge=1, description="The most choices; limits.branches holds as well.")
    concurrency: int = Field(default=0, ge=0, description="Branches in flight at a time; 0 is all.")
    seed: Literal["increment", "same"] = Field(default="increment", description="Whether branch i gets seed + i.")
    usage: Literal["once", "sum"] = Field(default="once", description="How often prompt tokens count.")
    greedy: Literal["replicate", "ask"] = Field(
        default="replicate", description="With temperature 0: copy one answer, or ask for each choice."
    )


def build(options: FanOutOptions) -> Act:
    """Return the act."""

    def act(draft: Draft) -> Change | None:
        n: Any = draft.body.get("n")
        if draft.fan is not None or draft.rejection is not None or not is_integer(n) or n <= 1:
            return None
        most = draft.max_branches // max(1, group_count(draft))
        most = min(options.max or most, most)
        if n > most:
            return Change(structs.replace(draft, rejection=_too_many(n, most)))
        return Change(
            structs.replace(draft, body=_without_choices(draft.body), fan=_fan(int(n), draft.body, options)),
            loses=_loses(n, draft.body.get("best_of")),
        )

    return act


def _too_many(n: Any, most: int) -> Rejection:
    return Rejection(
        f"n is {word(n)}, and at most {most} choices can be asked for here: ask for fewer, in several requests.",
        param="n",
        code="too_many_choices",
    )


def _without_choices(body: Body) -> Body:
    for name in ("n", "best_of"):
        if name in body:
            body = body.cut((name,))
    return body


def _fan(n: int, body: Mapping[str, Any], options: FanOutOptions) -> Fan:
    temperature = body.get("temperature")
    is_greedy = is_number(temperature) and temperature == 0
    copies = n if is_greedy and options.greedy == "replicate" else 1
    return Fan(n, options.concurrency, options.seed, options.usage, copies)


def _loses(n: Any, best_of: Any) -> str | None:
    if best_of is None or (is_number(best_of) and best_of <= n):
        return None
    return f"best_of {word(best_of)}" if is_number(best_of) else "field best_of"


def branch_bodies(body: Body, fan: Fan) -> list[Body]:
    """Return the body of each branch: n, or one whose answer is copied. `body` is without `n`."""
    return [_branch(body, index, fan) for index in range(1 if fan.copies > 1 else fan.n)]


def _branch(body: Body, index: int, fan: Fan) -> Body:
    rid: Any = body.get("rid")
    seed: Any = body.get("seed")
    if isinstance(rid, list):
        body = body.cut(("rid",))
    if index == 0:
        return body
    if isinstance(rid, str):
        body = body.put(("rid",), f"{rid}-{index}")
    if fan.seed == "increment" and is_integer(seed):
        body = body.put(("seed",), _seed(int(seed) + index))
    return body


def _seed(value: int) -> int:
    return value if value < SEEDS else value % SEEDS


CARD = Card(
    name="fan_out",
    options=FanOutOptions,
    build=build,
    is_exact=None,
    loses="nothing, but best_of above n",
    doc=__doc__,
)
