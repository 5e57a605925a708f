"""Where the choices of a branch go in the client's answer, and whole answers joined that way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.chunks import failure_of, indexed_choices, require_finished
from proxy.usage import UsageMode, join_usage


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a branch's choices go in the client's answer: choice i becomes `i * stride + offset` and its copies."""

    stride: int
    offset: int = 0
    copies: int = 1

    def indexes(self, index: int) -> range:
        """Return the client's indexes of the branch's choice `index`."""
        first = index * self.stride + self.offset
        return range(first, first + self.copies)


def merge_answers(answers: Sequence[Mapping[str, Any]], spreads: Sequence[Spread], usage: UsageMode) -> dict[str, Any]:
    """Return the one answer that the branches' answers make; a further field is that of the first that has it.

    Raises: BackendFault, where one tells of a failure or is incomplete.
    """
    merged: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for answer, spread in zip(answers, spreads, strict=True):
        fault = failure_of(answer)
        if fault:
            raise fault
        own = indexed_choices(answer)
        require_finished([choice for _, choice in own])
        for index, choice in own:
            choices |= {new: choice | {"index": new} for new in spread.indexes(index)}
        merged |= {key: value for key, value in answer.items() if merged.get(key) in (None, "")}
    merged["choices"] = [choices[index] for index in sorted(choices)]
    total = join_usage([answer.get("usage") for answer in answers], usage)
    return merged if total is None else merged | {"usage": total}
