"""Which rules there are: the presets' and the policy's own, with replaced and disabled ones seen to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.policy.model import Rule


@dataclass(frozen=True, slots=True)
class Written:
    """A rule, and what stands in its file at which place."""

    rule: Rule
    raw: Any
    place: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Pack:
    """The rules of one file, in order: a preset's, or with no name the policy's own."""

    preset: str | None
    rules: tuple[Written, ...]

    def ids(self) -> set[str]:
        """Return the full ids of the rules."""
        return {written.rule.id for written in self.rules}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The rules that run: each preset's, and after them the policy's own."""

    presets: Mapping[str, tuple[Written, ...]]
    own: tuple[Written, ...]

    def for_backend(self, presets: Iterable[str]) -> tuple[Written, ...]:
        """Return the rules of a backend with these presets, in the order of evaluation."""
        return (*(written for name in presets for written in self.presets[name]), *self.own)


def arrange(main: Pack, packs: Mapping[str, Pack], disabled: Iterable[str]) -> Arrangement:
    """Return the rules that run. One of the policy's own with a preset rule's full id takes that rule's place."""
    preset_ids = set[str]().union(*(pack.ids() for pack in packs.values()))
    off = frozenset(disabled)
    replacing = {written.rule.id: written for written in main.rules if written.rule.id in preset_ids}
    return Arrangement(
        {
            name: tuple(replacing.get(each.rule.id, each) for each in pack.rules if each.rule.id not in off)
            for name, pack in packs.items()
        },
        tuple(each for each in main.rules if each.rule.id not in preset_ids | off),
    )
