"""Where the choices of a branch go in the client's answer, and whole answers joined that way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.chunks import choices_of, failure_of, invalid, require_finished
from proxy.usage import UsageMode, join_usage

Choices = list[tuple[int, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a branch's choices go in the client's answer: choice i becomes `i * stride + offset` and its copies.

    Branches of one `group` have the same prompts, those of another group have others. `own` is how many choices the
    branch was asked for, None where that is not known.
    """

    stride: int
    offset: int = 0
    copies: int = 1
    group: int = 0
    own: int | None = None

    def indexes(self, index: int) -> range:
        """Return the client's indexes of the branch's choice `index`."""
        first = index * self.stride + self.offset
        return range(first, first + self.copies)

    def asked_for(self, choices: Choices, first: int) -> Choices:
        """Return the choices that the branch was asked for, without others that it gives.

        Where that is one, it is the one of the index `first`, with which the branch began: some count from 1.
        """
        if self.own is None:
            return choices
        if self.own == 1:
            return [(0, choice) for index, choice in choices if index == first]
        return [(index, choice) for index, choice in choices if index < self.own]


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
        own = choices_of(answer)
        own = spread.asked_for(own, own[0][0] if own else 0)
        require_finished([choice for _, choice in own])
        for index, choice in own:
            choices |= {new: choice | {"index": new} for new in spread.indexes(index)}
        merged |= {key: value for key, value in answer.items() if merged.get(key) in (None, "")}
    merged["choices"] = [choices[index] for index in sorted(choices)]
    return _with_usage(merged, answers, spreads, usage)


def merge_data(answers: Sequence[Mapping[str, Any]], spreads: Sequence[Spread], usage: UsageMode) -> dict[str, Any]:
    """Return the one list (of embeddings, scores …) that the branches' answers make, its elements in `data`.

    Raises: BackendFault, where one tells of a failure, or holds no list.
    """
    merged: dict[str, Any] = {}
    elements: dict[int, Any] = {}
    for answer, spread in zip(answers, spreads, strict=True):
        fault = failure_of(answer)
        if fault:
            raise fault
        data = answer.get("data")
        if not isinstance(data, list):
            raise invalid("its data is no list, so it can't be joined with others")
        for position, element in enumerate(data):
            elements |= _placed(element, position, spread)
        merged |= {key: value for key, value in answer.items() if merged.get(key) in (None, "")}
    merged["data"] = [elements[index] for index in sorted(elements)]
    return _with_usage(merged, answers, spreads, usage)


def _placed(element: Any, position: int, spread: Spread) -> dict[int, Any]:
    if not isinstance(element, dict) or type(element.get("index")) is not int:
        return dict.fromkeys(spread.indexes(position), element)
    return {new: element | {"index": new} for new in spread.indexes(element["index"])}


def _with_usage(
    merged: dict[str, Any], answers: Sequence[Mapping[str, Any]], spreads: Sequence[Spread], usage: UsageMode
) -> dict[str, Any]:
    total = usage_of([answer.get("usage") for answer in answers], spreads, usage)
    return merged if total is None else merged | {"usage": total}


def usage_of(
    usages: Sequence[Mapping[str, Any] | None], spreads: Sequence[Spread], mode: UsageMode
) -> dict[str, Any] | None:
    """Return the usage of all branches together: within a group of the same prompts as `mode` says, groups summed."""
    groups: dict[int, list[Mapping[str, Any] | None]] = {}
    for usage, spread in zip(usages, spreads, strict=True):
        groups.setdefault(spread.group, []).append(usage)
    return join_usage([join_usage(group, mode) for group in groups.values()], "sum")
