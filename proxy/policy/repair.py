"""A rule's `repair`: its entries checked against the repairs' cards, captures filled in when a failure gave them.

    {move: {"{field}": "{new}"}}  →  at load: checked with stand-in captures  →  at run time: instantiate → act

`{{name}}` stands for a literal `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import RootModel

from proxy.matching import KEY, BadTest, Expanded, did_you_mean, gather, shown
from proxy.policy.validate import validated
from proxy.repairs.card import Act, Card, Target

_TEMPLATE = re.compile(r"\{\{[A-Za-z_]\w*\}\}|\{(?P<name>[A-Za-z_]\w*)\}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CompiledRepair:
    """One entry of a rule's `repair`. `act` is None where the options hold captures.

    `targets` are what it works on, where it does nothing without any of it; None where that can't be told.
    """

    card: Card
    options: Any
    act: Act | None
    targets: tuple[Target, ...] | None = None

    @property
    def name(self) -> str:
        """The repair's name."""
        return self.card.name

    def filled(self, captures: Mapping[str, str]) -> Any:
        """Return the options with what a failure's regexes captured. Raises: BadTest where a capture is missing."""
        return _plain(_fill(self.options, captures))

    def instantiate(self, captures: Mapping[str, str]) -> Act:
        """Return the act with what a failure's regexes captured.

        Raises: BadTest where a capture is missing, or the options mean nothing with it.
        """
        return self.act or _build(self.card, _fill(self.options, captures))


def compile_repairs(
    raw: object, repairs: Mapping[str, Card], captures: frozenset[str] | None
) -> tuple[CompiledRepair, ...]:
    """Return the repairs of a rule; `captures` are the names that its `on_error` captures, None without one.

    Raises: BadTest with every problem.
    """
    if not isinstance(raw, list) or not raw:
        raise BadTest.at(f"expected a list of repairs, got {'an empty one' if raw == [] else shown(raw)}")
    return tuple(gather(enumerate(raw), lambda _index, entry: _compile(entry, repairs, captures)))


def _compile(entry: object, repairs: Mapping[str, Card], captures: frozenset[str] | None) -> CompiledRepair:
    if not isinstance(entry, dict):
        hint = f"; write `{entry}: {{}}`" if isinstance(entry, str) and entry in repairs else ""
        raise BadTest.at(f"expected a repair (a mapping with one key), got {shown(entry)}{hint}")
    if len(entry) != 1:
        raise BadTest.at(f"a repair is a mapping with one key, this one has {len(entry)}: begin each with its own `-`")
    name, options = next(iter(entry.items()))
    if name not in repairs:
        raise BadTest.at(f'unknown repair "{name}"{did_you_mean(name, repairs)}', name, KEY)
    card = repairs[name]
    if options is None and not issubclass(card.options, RootModel):
        options = {}
    try:
        return _checked(card, options, captures)
    except BadTest as bad:
        raise BadTest(bad.under(name)) from bad


def _checked(card: Card, options: Any, captures: frozenset[str] | None) -> CompiledRepair:
    if captures is None or not _names(options):
        return CompiledRepair(card, options, _build(card, options), _targets(card, options))
    _check_names(options, captures)
    try:
        _build(card, _fill(options, {name: name for name in captures}))
    except BadTest:
        if not _builds(card, _fill(options, dict.fromkeys(captures, "1"))):
            raise
    return CompiledRepair(card, options, None)


def _builds(card: Card, options: Any) -> bool:
    try:
        _build(card, options)
    except BadTest:
        return False
    return True


def _build(card: Card, options: Any) -> Act:
    try:
        return card.build(validated(card.options, options))
    except BadTest:
        raise
    except ValueError as error:
        raise BadTest.at(str(error)) from error


def _targets(card: Card, options: Any) -> tuple[Target, ...] | None:
    targets = card.targets(validated(card.options, options))
    return None if targets is None else tuple(targets)


def _names(options: Any) -> bool:
    """Return whether a template, or an escaped one, stands anywhere in the options."""
    if isinstance(options, dict):
        return any(_names(key) or _names(item) for key, item in options.items())
    if isinstance(options, list):
        return any(map(_names, options))
    return isinstance(options, str) and _TEMPLATE.search(options) is not None


def _check_names(options: Any, captures: frozenset[str]) -> None:
    """Raise BadTest where a template names none of the captures."""
    if isinstance(options, dict):
        gather(options.items(), partial(_check_item, captures))
    elif isinstance(options, list):
        gather(enumerate(options), partial(_check_item, captures))
    else:
        _check_text(options, captures)


def _check_item(captures: frozenset[str], key: Any, item: Any) -> None:
    _check_text(key, captures, KEY)
    _check_names(item, captures)


def _check_text(text: Any, captures: frozenset[str], *place: str) -> None:
    for match in _TEMPLATE.finditer(text) if isinstance(text, str) else ():
        name = match["name"]
        if name and name not in captures:
            near = did_you_mean(name, captures)
            raise BadTest.at(
                f"no group of `message` or `each` is named {name}{near}; write {{{{{name}}}}} for a literal {{{name}}}",
                *place,
            )


def _fill(options: Any, captures: Mapping[str, str]) -> Any:
    if isinstance(options, dict):
        return {_fill_text(key, captures): _fill(item, captures) for key, item in options.items()}
    if isinstance(options, list):
        return [_fill(item, captures) for item in options]
    return _fill_text(options, captures)


def _plain(value: Any) -> Any:
    """Return the value without the memory of where its strings came from."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _fill_text(text: Any, captures: Mapping[str, str]) -> Any:
    if not isinstance(text, str) or not _TEMPLATE.search(text):
        return text

    def value(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0][1:-1]
        if match["name"] not in captures:
            raise BadTest.at(f"the failure gave nothing for {match[0]}")
        return captures[match["name"]]

    return Expanded(_TEMPLATE.sub(value, text), getattr(text, "source", text))
