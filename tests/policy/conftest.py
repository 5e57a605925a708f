"""A small registry of repairs and presets, so that the policy language is tested apart from the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from proxy.policy import Policy, load_policy
from proxy.repairs.card import Act, Card, Change, Draft

STRICT = ConfigDict(strict=True)


class Paths(RootModel[list[str | dict[str, Any]]]):
    model_config = STRICT


class Table(RootModel[dict[str, Any]]):
    model_config = STRICT


class Flag(RootModel[bool]):
    model_config = STRICT


class Fan(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    max: int = Field(8, ge=1)
    greedy: bool = False
    seed: str = "increment"


class Nothing(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


def remember(name: str) -> Callable[[Any], Act]:
    """Return a card's `build`; its acts tell their options as the loss."""

    def build(options: BaseModel) -> Act:
        def act(draft: Draft) -> Change | None:
            return Change(draft, loses=f"{name} {options.model_dump()}")

        return act

    return build


OPTIONS: dict[str, type[BaseModel]] = {
    "drop": Paths,
    "enforce_stop": Nothing,
    "fan_out": Fan,
    "map": Table,
    "move": Table,
    "set": Table,
    "stream": Flag,
}
CARDS: Mapping[str, Card] = MappingProxyType(
    {name: Card(name, options, remember(name), True, "", "") for name, options in OPTIONS.items()}
)
PRESETS: Mapping[str, str] = MappingProxyType(
    {
        "sglang": """\
preset: sglang
about: for tests
rules:
  - id: top-p-zero
    when: {body: {top_p: 0}}
    repair: [{drop: [top_p]}]
  - id: meta-info
    repair: [{stream: false}]
""",
        "lax": "preset: lax\nabout: for tests\nrules:\n  - {id: n-string, repair: [{set: {n: 1}}]}\n",
    }
)


@pytest.fixture
def load() -> Callable[..., Policy]:
    """Return what loads a policy's text with the small registry."""

    def load_text(text: str, **given: Any) -> Policy:
        defaults: dict[str, Any] = {"environ": {}, "repairs": CARDS, "presets": PRESETS}
        return load_policy("p.yaml", text=text, **(defaults | given))

    return load_text
