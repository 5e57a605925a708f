"""Options that would make a repair undo or repeat itself, found while the policy is loaded.

A repair may be run on its own output (a rule that was learnt, a retry), and must find nothing to do there. So no entry
of a repair may read what a later one changes. (An entry that changes whole elements takes the
place of what is asked of them, so that is no chain.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from proxy.fields import ANY, Path, Place, Step, parse_path
from proxy.matching import Problem
from proxy.repairs.options import misfit, references
from proxy.repairs.places import split_at_elements


class Link(msgspec.Struct, frozen=True):
    """One entry of a repair's options: where it stands in them, the path that it changes, and the paths it reads."""

    place: Place
    target: Path
    looked_up: Sequence[Path] = ()
    beside: Sequence[Path] = ()

    @classmethod
    def of(cls, place: Place, target: str, raw: Any = None, where: Mapping[str, Any] | None = None) -> Link:
        """Return the link of an entry that compares or copies by `raw`, for elements that pass `where`."""
        base, _ = split_at_elements(parse_path(target))
        near = [Path(text, (*base.steps, *parse_path(text).steps)) for text in where or {}]
        far = [parse_path(text) for text in references([raw, dict(where or {})])]
        return cls(place, parse_path(target), far, near)


def refuse_chains(links: Sequence[Link]) -> None:
    """Let no entry look up what it or a later one changes, nor ask an element for what a later one changes.

    Raises: ValidationError, each problem at its entry.
    """
    problems = [problem for index, link in enumerate(links) for problem in _chained(link, links[index + 1 :])]
    if problems:
        raise misfit(problems)


def _chained(link: Link, later: Sequence[Link]) -> Iterator[Problem]:
    depth = len(split_at_elements(link.target)[0].steps)
    others = [other for other in later if other.target.steps != link.target.steps and len(other.target.steps) > depth]
    for paths, near in ((link.looked_up, [link, *later]), (link.beside, others)):
        for path in paths:
            met = next((other.target for other in near if may_meet(path, other.target)), None)
            if met is not None:
                yield link.place, f"it reads {path.text!r}, which {met.text!r} changes: put it after that entry"


def refuse_crossing(texts: Sequence[str], *, may_nest: bool = False) -> None:
    """Let no two entries change the same place, nor, unless they `may_nest`, one a place inside the other's.

    Raises: ValidationError, each problem at the later entry.
    """
    paths = [parse_path(text) for text in texts]
    pairs = [(one, two) for index, two in enumerate(paths) for one in paths[:index] if may_meet(one, two)]
    crossing = [(one, two) for one, two in pairs if not may_nest or len(one.steps) == len(two.steps)]
    if crossing:
        raise misfit(
            [((two.text,), f"{one.text!r} is changed there too: make two repairs of it") for one, two in crossing]
        )


def refuse_late_makers(writes: Sequence[tuple[str, Path]]) -> None:
    """Let no entry make an element that an earlier one writes into: a second run would find it there.

    `writes` are an entry and the path that it writes. Raises: ValidationError, each problem at the later entry.
    """
    pairs = [(one, two) for index, two in enumerate(writes) for one in writes[:index] if _may_make(two[1], one[1])]
    if pairs:
        raise misfit([((two[0],), f"it can make what {one[1].text!r} names: put it before that") for one, two in pairs])


def _may_make(late: Path, early: Path) -> bool:
    last = max((index + 1 for index, step in enumerate(early.steps) if not isinstance(step, str)), default=0)
    elements = Path(early.text, early.steps[:last])
    pairs = zip(elements.steps, late.steps, strict=False)
    is_by_name = any(not isinstance(step, str) and isinstance(made, str) for step, made in pairs)
    return last > 0 and may_meet(elements, late) and (is_by_name or len(late.steps) < last)


def may_meet(one: Path, other: Path) -> bool:
    """Return whether the paths can name the same place, or one a place inside the other's."""
    return all(_may_equal(step, against) for step, against in zip(one.steps, other.steps, strict=False))


def _may_equal(step: Step, other: Step) -> bool:
    if step is ANY or other is ANY:
        return True
    if isinstance(step, int) and isinstance(other, int):
        return step == other or (step < 0) != (other < 0)
    return step == other
