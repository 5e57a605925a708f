"""The act of a repair that only edits the body: its entries, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from proxy.body import Body
from proxy.repairs.card import Act, Change, Draft
from proxy.repairs.losses import join_losses

Edit = Callable[[Body], tuple[Body, str | None]]
"""One entry: a body → the body edited and what that loses; the very same body where there was nothing to do."""


def in_turn(edits: Iterable[Edit]) -> Act:
    """Return the act that makes each edit on what the one before it left."""
    entries = tuple(edits)

    def act(draft: Draft) -> Change | None:
        body, losses = draft.body, []
        for edit in entries:
            body, loss = edit(body)
            losses.append(loss)
        return None if body is draft.body else Change(structs.replace(draft, body=body), loses=join_losses(losses))

    return act
