"""Write the JSON Schemas of tools and of the answer's format as the backend can read them.

## What it does

Each option is one change, made at every depth; a property that has a keyword's name is none. They are made in this
order: `parameters`, `invalid`, `inline_refs`, `all_of`, `one_of`, `any_of`, `const`, `bounds`, `pattern`, `drop` and
`keep`, `max_depth`, `misplaced`, `placeholder`, `additional_properties`, `required`, `nulls`, `types`. A schema of more
than 64 levels is left as it is, or replaced where `invalid` is given.

## When a backend needs it

Its converter from schemas to grammars knows but some keywords (`Unimplemented keys: ["propertyNames"]`, `Pattern must
start with '^'`), its API takes a dialect of its own (`Unknown name "additionalProperties"`), or it is strict
(`'required' is required to be supplied`).

## What the client loses

The constraints that are left out; the sentence names the keywords and counts the schemas. What only says the same in
other words (`const` as an `enum`, `nullable`) loses nothing, nor does a keyword without a meaning (`$schema`,
`minLength: 0`).

## Options

`in`: `tools`, `response_format` (with `text.format`, `structured_outputs.json`, `guided_json`), both when left out.
`only_strict: true`: only schemas beside `strict: true`. `parameters`: of a tool that has none, `fill` in an object
without properties, or `drop` such an object. `invalid: drop`: values that no keyword can have; what is no schema at all
becomes `{type: object}`. `inline_refs: 1`: references written out, a definition so often inside itself. `all_of:
merge`; `one_of`: `any_of`, `first` or `merge`; `any_of`: `first` or `merge`. `const: enum`. `bounds: inclusive`.
`pattern: anchor`. `drop`: keywords, or mappings of keywords to tests of their values. `keep`: the only keywords left.
`describe: true`: what is dropped is said in the `description`. `max_depth`: levels of properties and items.
`misplaced: drop`: keywords of objects elsewhere, names in `required` that are no properties. `placeholder`: the name of
a property for objects that have none. `additional_properties: false`. `required: all`: what could be absent may be null
instead. `nulls`: `nullable`, `any_of` or `type`, how null is let in. `types`: `upper` or `lower` case.

## Example

```yaml
rewrite_schema:
  inline_refs: 1
  const: enum
  drop: [$schema, pattern, {format: {not_in: [date-time]}}, {maxLength: {gt: 1000}}]
  describe: true
```
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from proxy.fields import ABSENT
from proxy.matching.values import is_same
from proxy.repairs.card import Act, Card, Change, Draft
from proxy.repairs.schema_losses import Report
from proxy.repairs.schema_options import RewriteSchemaOptions
from proxy.repairs.schema_shape import is_object
from proxy.repairs.schemas import MAX_NESTING, NOTES, SITES, Pass, Schema, Site, Tell, is_deeper

_ROUNDS: Final = 4
_BARE: Final = ("type", "properties", "required", "additionalProperties", *NOTES)


def build(options: RewriteSchemaOptions) -> Act:
    """Return the act."""
    sites = [site for group in options.in_ for site in SITES[group]]

    def act(draft: Draft) -> Change | None:
        passes, body, report = options.passes(draft.body), draft.body, Report()
        for site in sites:
            for place, value in site.places(body, only_strict=options.only_strict):
                told: list[str] = []
                new = _rewritten(value, site, options, passes, told.append)
                if new is ABSENT and value is not ABSENT:
                    body = body.cut(place)
                elif new is not ABSENT and not is_same(new, value):
                    body = body.put(place, new)
                    report.add(told)
        return None if body is draft.body else Change(structs.replace(draft, body=body), loses=report.sentence())

    return act


def _rewritten(value: Any, site: Site, options: RewriteSchemaOptions, passes: list[Pass], tell: Tell) -> Any:
    """Return the schema with the changes made, or ABSENT where it is to be none."""
    schema = _started(value, site, options, tell)
    if not isinstance(schema, dict) or is_deeper(schema, MAX_NESTING):
        return schema
    schema = _changed(schema, passes, tell)
    filled = _filled(schema, site, options)
    if filled is not schema:
        # Properties that were there meant nothing, and are left out now.
        schema = _changed(filled, passes, tell)
    is_empty = not schema.get("properties") and all(word in _BARE for word in schema)
    return ABSENT if is_empty and site.is_of_tool and options.parameters == "drop" else schema


def _changed(schema: Schema, passes: list[Pass], tell: Tell) -> Schema:
    # A change can make work for one before it (null as an alternative makes new schemas), hence rounds.
    for _ in range(_ROUNDS):
        before = schema
        for change in passes:
            schema = change(schema, tell)
        if len(passes) == 1 or is_same(schema, before):
            break
    return schema


def _started(value: Any, site: Site, options: RewriteSchemaOptions, tell: Tell) -> Any:
    """Return the schema to begin with: filled in, or replaced where it is none that can be read."""
    is_missing = value is ABSENT or value is None
    is_readable = isinstance(value, dict) and not is_deeper(value, MAX_NESTING)
    if options.invalid is not None and not is_missing and not is_readable:
        tell("all")
        value = {"type": "object"}
    if options.parameters != "fill" or not site.is_of_tool:
        return value
    return _filled({"type": "object"}, site, options) if is_missing else _filled(value, site, options)


def _filled(schema: Any, site: Site, options: RewriteSchemaOptions) -> Any:
    """Return a tool's schema with properties, where it is an object's that has none, and that is asked for."""
    is_open = isinstance(schema, dict) and is_object(schema) and "properties" not in schema
    return schema | {"properties": {}} if is_open and site.is_of_tool and options.parameters == "fill" else schema


CARD = Card(
    name="rewrite_schema",
    options=RewriteSchemaOptions,
    build=build,
    is_exact=None,
    loses="the constraints that are left out",
    doc=__doc__,
)
