"""Ask for the form of the answer in a way that the backend knows.

## What it does

`as` respells constraints of other engines: `guided_json` and `structured_outputs.json` become `response_format`, and
regular expressions, grammars and choices the dialect's own fields, where those are free. `to` asks for less, or
otherwise: `json_object` for any JSON object instead of a schema, `json_schema` for a schema that any object fits
instead of an object, `none` for nothing. The first two change `response_format` (on /v1/responses `text.format`) only;
what stands elsewhere gets there by `as`. What the backend then no longer enforces is put into the prompt with `into`.

## When a backend needs it

It knows no schemas (`This response_format type is unavailable now`), no bare objects (`'response_format.type' must be
'json_schema' or 'text'`), ignores constraints that have another name there, or can't compile one.

## What the client loses

The enforcement of the constraint where the prompt has it, the constraint itself where it has not. Nothing where none
was given, where any object was asked for, and where the constraint is only respelt.

## Options

`as`: `openai`, `sglang`, `vllm` (`structured_outputs`), `vllm_guided` (before 0.12). `to`: `json_object`,
`json_schema`, `none`. `from`: of which kinds (`json_schema json_object regex grammar choice structural_tag text
other`), all that are not what `to` asks for when left out. `schema: keep`: with `to: json_object` the schema stays
beside the type, as llama.cpp takes it. `into`: `system`, `user`, `none` (the default). `text`: the words of the prompt
for a constraint, `{constraint}` standing for it (in a rule with `on_error` write `{{constraint}}`).

## Example

```yaml
degrade_format: {to: json_object, into: system}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import structs
from pydantic import Field, model_validator

from proxy.body import Body
from proxy.fields import Path, first
from proxy.matching import Problem
from proxy.matching.values import is_same
from proxy.repairs.card import Act, Card, Change, Draft
from proxy.repairs.conversions import text_of
from proxy.repairs.formats import ANY_OBJECT, Constraint, Dialect, Kind, constraints, respelt, schema_format, without
from proxy.repairs.losses import join_losses
from proxy.repairs.options import Options, misfit
from proxy.repairs.prompts import instructed
from proxy.repairs.texts import Text

PLACEHOLDER: Final = "{constraint}"
TEXTS: Final[Mapping[Kind, str]] = {
    "json_schema": "Answer with JSON only, without any other text. It must fit this JSON Schema:\n{constraint}",
    "json_object": "Answer with one JSON object only, without any other text.",
    "regex": "Answer only with text that as a whole matches this regular expression:\n{constraint}",
    "grammar": "Answer only with text that this grammar produces:\n{constraint}",
    "choice": "Answer only with one of these, word for word:\n{constraint}",
}
_NOUNS: Final[Mapping[Kind, str]] = {
    "json_schema": "the schema",
    "json_object": "JSON",
    "regex": "the regular expression",
    "grammar": "the grammar",
    "choice": "the choice",
    "structural_tag": "the structural tag",
    "other": "the format",
}


class DegradeFormatOptions(Options):
    """How the form of the answer is asked for."""

    as_: Dialect | None = Field(default=None, alias="as", description="The engine whose fields are used.")
    to: Literal["json_object", "json_schema", "none"] | None = Field(default=None, description="What to ask for.")
    from_: list[Kind] | None = Field(default=None, alias="from", min_length=1, description="Instead of which kinds.")
    schema_: Literal["keep"] | None = Field(
        default=None, alias="schema", description="Whether a json_object keeps the schema beside its type."
    )
    into: Literal["system", "user", "none"] = Field(default="none", description="Whose words get the constraint.")
    text: Text | None = Field(default=None, description="Those words; {constraint} stands for the constraint.")

    @model_validator(mode="after")
    def _fits_together(self) -> DegradeFormatOptions:
        problems: list[Problem] = []
        if self.as_ is None and self.to is None:
            problems.append(((), "nothing is to be done: say as, to or both"))
        problems += [
            ((name,), f"{name} goes with to, which says what is asked for instead")
            for name, value in (("from", self.from_), ("text", self.text))
            if value is not None and self.to is None
        ]
        if self.schema_ is not None and self.to != "json_object":
            problems.append((("schema",), "a schema is kept with to: json_object only"))
        if self.into != "none" and self.to in (None, "json_schema"):
            problems.append((("into",), "nothing is lost that could be put there: it goes with json_object and none"))
        if self.text is not None and self.into == "none":
            problems.append((("text",), "the words go nowhere: say into"))
        if problems:
            raise misfit(problems)
        return self

    def concerns(self, constraint: Constraint) -> bool:
        """Return whether the constraint is one that is not asked for any more."""
        return self.from_ is None or constraint.kind in self.from_


def build(options: DegradeFormatOptions) -> Act:
    """Return the act."""

    def act(draft: Draft) -> Change | None:
        body = draft.body if options.as_ is None else respelt(draft.body, options.as_, draft.path)
        losses: list[str | None] = []
        for constraint in [found for found in constraints(body) if options.concerns(found)]:
            degraded = _degraded(body, constraint, options)
            if degraded is not None:
                body, loss = _told(degraded, constraint, options)
                losses.append(loss)
        return None if body is draft.body else Change(structs.replace(draft, body=body), loses=join_losses(losses))

    return act


def _degraded(body: Body, constraint: Constraint, options: DegradeFormatOptions) -> Body | None:
    """Return the body that asks for less; None where there is nothing to change."""
    if options.to == "none":
        return without(body, constraint.place)
    if options.to is None or not constraint.is_format:
        return None
    wanted = _wanted(constraint, options)
    return None if wanted is None or is_same(wanted, _held(body, constraint)) else body.put(constraint.place, wanted)


def _wanted(constraint: Constraint, options: DegradeFormatOptions) -> dict[str, Any] | None:
    if constraint.kind not in ("json_schema", "json_object"):
        return None
    if options.to == "json_schema":
        schema = dict(ANY_OBJECT) if constraint.holds is None else constraint.holds
        return schema_format(constraint.place, schema) if constraint.is_rough else None
    keeps = options.schema_ == "keep" and constraint.holds is not None
    return {"type": "json_object"} | ({"schema": constraint.holds} if keeps else {})


def _held(body: Body, constraint: Constraint) -> Any:
    return first(body, Path("", constraint.place))


def _told(body: Body, constraint: Constraint, options: DegradeFormatOptions) -> tuple[Body, str | None]:
    """Return the body with what is no longer enforced put into the prompt, and what is lost all the same."""
    noun = _lost(constraint, options)
    if noun is None:
        return body, None
    words = _words(constraint, options)
    told = instructed(body, words, options.into) if options.into != "none" and words is not None else None
    return (body, noun) if told is None else (told, f"enforcement of {noun}")


def _lost(constraint: Constraint, options: DegradeFormatOptions) -> str | None:
    if constraint.kind == "text" or options.to == "json_schema" or options.schema_ == "keep":
        return None
    if options.to == "json_object" and constraint.is_any_object:
        return None
    return _NOUNS["json_object" if constraint.is_any_object else constraint.kind]


def _words(constraint: Constraint, options: DegradeFormatOptions) -> str | None:
    if constraint.is_any_object:
        return TEXTS["json_object"]
    text = TEXTS.get(constraint.kind) if options.text is None else options.text
    shown = _shown(constraint)
    return text.replace(PLACEHOLDER, shown) if text is not None and shown is not None else None


def _shown(constraint: Constraint) -> str | None:
    if constraint.holds is None:
        return None
    if isinstance(constraint.holds, str):
        return constraint.holds
    try:
        return text_of(constraint.holds)
    except RecursionError:  # nested as deep as only a decoder goes: no prompt is the place for it
        return None


CARD = Card(
    name="degrade_format",
    options=DegradeFormatOptions,
    build=build,
    is_exact=None,
    loses="the enforcement of the constraint, and without into the constraint itself",
    doc=__doc__,
)
