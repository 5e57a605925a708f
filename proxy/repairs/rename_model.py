"""Call the model by the backend's name, and let the client see its own.

## What it does

Writes the backend's name into `model`, and on the way back the client's into the `model` of the answer, of each chunk,
and of the `response` or `message` that an event holds, whatever name the backend gives there (some answer with a folder
on their disk). Where the request names no model, `to` sets it and the answer keeps the backend's.

## When a backend needs it

It serves one model under its own name and refuses others (`Server is pinned to 'MODEL'`), takes `name:tag` for a model
and its LoRA adapter, or the clients have names of their own (`gpt-4o`).

## What the client loses

Nothing. Where the part that is cut meant something (an adapter), the rule should say so with `loses`.

## Options

One of: `to`, the name; `strip_after`, a text: the name ends before the first of it; `map`, a mapping of globs to names,
the first that fits counts, and a name that stands among the results is left alone; `drop: true`, no name at all.

## Example

```yaml
rename_model: {to: Qwen/Qwen3-8B}
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec import structs
from pydantic import Field, model_validator

from proxy.matching import Problem, compile_globs
from proxy.repairs.card import Act, Card, Change, Draft
from proxy.repairs.options import Options, misfit
from proxy.repairs.texts import Text

_HOLDERS: Final = ("response", "message")  # of the events of /v1/responses and /v1/messages


class RenameModelOptions(Options):
    """The backend's name for the model."""

    to: Text | None = Field(default=None, description="The name.")
    strip_after: Text | None = Field(default=None, description="The text before whose first occurrence the name ends.")
    map: dict[Text, Text] | None = Field(default=None, min_length=1, description="Globs and the names they become.")
    drop: Literal[True] | None = Field(default=None, description="Whether the model is not named at all.")

    @model_validator(mode="after")
    def _says_one_thing(self) -> RenameModelOptions:
        if sum(option is not None for option in (self.to, self.strip_after, self.map, self.drop)) != 1:
            raise misfit([((), "say one of to, strip_after, map and drop")])
        problems = list(_chained(self.map or {}))
        if problems:
            raise misfit(problems)
        return self


def _chained(names: Mapping[str, str]) -> Iterator[Problem]:
    renamed = _mapped(names)
    for glob, name in names.items():
        other = renamed(name)
        if other != name and other != names.get("*"):
            yield ("map", glob), f"{name!r} is renamed to {other!r} in turn: a second run would change it again"


def _mapped(names: Mapping[str, str]) -> Callable[[str], str]:
    globs = [(compile_globs([glob])[1], name) for glob, name in names.items()]
    return lambda model: next((name for takes, name in globs if takes(model)), model)


def _renaming(options: RenameModelOptions) -> Callable[[str], str | None]:
    """Return what makes the backend's name of the client's; None is no name."""
    if options.map is not None:
        names, renamed = options.map, _mapped(options.map)
        return lambda model: model if model in names.values() else renamed(model)
    if options.strip_after is not None:
        mark = options.strip_after
        return lambda model: model.partition(mark)[0] or model
    return lambda _model: options.to


class ModelRestored(msgspec.Struct, frozen=True):
    """Writes the client's name of the model into what the backend answers."""

    name: str

    @property
    def is_done(self) -> bool:
        """Never: it only renames."""
        return False

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk with the client's name of the model."""
        return self.answer(chunk)

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with the client's name of the model."""
        held = {name: self._named(answer[name]) for name in _HOLDERS if isinstance(answer.get(name), dict)}
        return self._named(answer | held if held else answer)

    def _named(self, value: dict[str, Any]) -> dict[str, Any]:
        return value | {"model": self.name} if "model" in value else value


def build(options: RenameModelOptions) -> Act:
    """Return the act."""
    rename = _renaming(options)

    def act(draft: Draft) -> Change | None:
        model = draft.body.get("model")
        if model is None and options.to is not None:
            return Change(structs.replace(draft, body=draft.body.put(("model",), options.to)))
        if not isinstance(model, str):
            return None
        name = rename(model)
        if name == model:
            return None
        body = draft.body.put(("model",), name) if name is not None else draft.body.cut(("model",))
        return Change(structs.replace(draft, body=body, undos=(*draft.undos, partial(ModelRestored, model))))

    return act


CARD = Card(
    name="rename_model",
    options=RenameModelOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
