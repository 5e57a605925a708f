"""The options of `rewrite_schema`: which changes are made to a schema, in which order, and which exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from proxy.matching import Problem, compile_test
from proxy.repairs.options import Options, RawTest, ShortForm, misfit
from proxy.repairs.schema_filter import dropped, kept, valid, without_words
from proxy.repairs.schema_refs import inlined
from proxy.repairs.schema_shape import additional_properties, all_required, not_deeper, well_placed, with_placeholder
from proxy.repairs.schema_unions import Choice, chosen, merged_all_of, one_of_as_any_of
from proxy.repairs.schema_words import (
    Case,
    NullForm,
    bounds_inclusive,
    const_as_enum,
    nulls_as,
    patterns_anchored,
    types_in,
)
from proxy.repairs.schemas import Group, Pass
from proxy.repairs.texts import Text

Entry = Annotated[
    dict[Text, RawTest],
    Field(min_length=1),
    ShortForm(lambda raw: {raw: {"exists": True}} if isinstance(raw, str) else raw, {"type": "string"}),
]

# What is written after the filter: left out, it would be written again by the next run, out of less.
_WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "describe": ("description",),
    "placeholder": ("properties", "type", "description"),
    "additional_properties": ("additionalProperties",),
    "required": ("required", "type", "enum", "anyOf"),
    "nulls": ("nullable", "type", "enum", "anyOf"),
    "types": ("type",),
}


class RewriteSchemaOptions(Options):
    """The changes."""

    in_: list[Group] = Field(
        default=["tools", "response_format"], alias="in", min_length=1, description="Whose schemas."
    )
    only_strict: bool = Field(default=False, description="Whether only schemas beside strict: true.")
    parameters: Literal["fill", "drop"] | None = Field(default=None, description="What of a tool's that are empty.")
    invalid: Literal["drop"] | None = Field(default=None, description="What of values that no keyword can have.")
    inline_refs: int | None = Field(default=None, ge=1, le=4, description="How often a definition is inside itself.")
    all_of: Literal["merge"] | None = Field(default=None, description="What becomes of allOf.")
    one_of: Literal["any_of", "first", "merge"] | None = Field(default=None, description="What becomes of oneOf.")
    any_of: Choice | None = Field(default=None, description="What becomes of anyOf.")
    const: Literal["enum"] | None = Field(default=None, description="What becomes of const.")
    bounds: Literal["inclusive"] | None = Field(default=None, description="What becomes of exclusive bounds.")
    pattern: Literal["anchor"] | None = Field(default=None, description="What becomes of a pattern without ^ and $.")
    drop: list[Entry] = Field(default=[], description="Keywords to leave out, or mappings of keywords to tests.")
    keep: list[Text] | None = Field(default=None, min_length=1, description="The only keywords that are left.")
    describe: bool = Field(default=False, description="Whether the description says what is left out.")
    max_depth: int | None = Field(default=None, ge=1, description="The most levels of properties and items.")
    misplaced: Literal["drop"] | None = Field(default=None, description="What of keywords of another type.")
    placeholder: Text | None = Field(default=None, description="The property of objects that have none.")
    additional_properties: bool | None = Field(default=None, description="Whether objects are open.")
    required: Literal["all"] | None = Field(default=None, description="Which properties are demanded.")
    nulls: NullForm | None = Field(default=None, description="How null is let in.")
    types: Case | None = Field(default=None, description="How the names of types are spelt.")

    @model_validator(mode="after")
    def _fits_together(self) -> RewriteSchemaOptions:
        problems = list(self._misfits())
        if problems:
            raise misfit(problems)
        return self

    def _misfits(self) -> Iterator[Problem]:
        if not self.passes({}) and self.parameters is None:
            yield (), "nothing is to be changed: name a change"
        if self.drop and self.keep is not None:
            yield ("keep",), "what is not kept is dropped: say one of drop and keep"
        if self.describe and not self.drop and self.keep is None:
            yield ("describe",), "nothing is left out that could be described: it goes with drop or keep"
        words = {word for entry in self.drop for word in entry}
        for name, written in _WRITTEN.items():
            lost = [word for word in written if word in words or (self.keep is not None and word not in self.keep)]
            if lost and (self.describe if name == "describe" else getattr(self, name) is not None):
                yield (name,), f"it may write {lost[0]}, which is left out"

    def passes(self, root: Mapping[str, Any]) -> list[Pass]:
        """Return the changes to a schema in their order; `root` is the body that tests may look into."""
        alternatives: list[Pass] = []
        if self.one_of is not None:
            alternatives.append(one_of_as_any_of() if self.one_of == "any_of" else chosen("oneOf", self.one_of))
        if self.any_of is not None:
            alternatives.append(chosen("anyOf", self.any_of))
        return [
            *([valid] if self.invalid else []),
            *([inlined(self.inline_refs)] if self.inline_refs else []),
            *([merged_all_of()] if self.all_of else []),
            *alternatives,
            *([const_as_enum] if self.const else []),
            *([bounds_inclusive] if self.bounds else []),
            *([patterns_anchored] if self.pattern else []),
            *self._filters(root),
            *([not_deeper(self.max_depth)] if self.max_depth else []),
            *([well_placed] if self.misplaced else []),
            *([with_placeholder(self.placeholder)] if self.placeholder else []),
            *([additional_properties(self.additional_properties)] if self.additional_properties is not None else []),
            *([all_required] if self.required else []),
            *([nulls_as(self.nulls)] if self.nulls else []),
            *([types_in(self.types)] if self.types else []),
        ]

    def _filters(self, root: Mapping[str, Any]) -> list[Pass]:
        if self.keep is not None:
            return [without_words(kept(self.keep), describe=self.describe)]
        tests = [(word, compile_test(raw)) for entry in self.drop for word, raw in entry.items()]
        return [without_words(dropped(tests, root), describe=self.describe)] if tests else []
