"""Ask for embeddings in the form that the backend knows, and answer in the one that the client asked for.

## What it does

Where the client asked for `base64`, asks for floats, and answers base64 of 32-bit floats, little-endian, as OpenAI
does. With `ask: base64` the other way round. A vector that comes in the form asked for by the client, or in none of the
two, is left as it came. With `dimensions: cut`, takes `dimensions` out of the request, keeps so many numbers of each
vector of the answer and scales them to the length that the whole vector had.

## When a backend needs it

It refuses `encoding_format: base64`, which OpenAI's libraries send by default, or refuses the field, or answers floats
all the same. It refuses `dimensions` (`does not support matryoshka representation`).

## What the client loses

Nothing. With `dimensions: cut` the quality of vectors that were made to that size; a vector that is shorter stays so.

## Options

`ask`: `float`, `base64`, or `nothing`, which takes `encoding_format` out of the request. `dimensions`: `keep` or `cut`.
All may be left out. Other formats than these two (`int8`) are left to other rules.

## Example

```yaml
recode_embeddings: {ask: float}
```
"""

from __future__ import annotations

import base64
import math
import struct
from typing import Any, Literal

import msgspec
from msgspec import structs
from pydantic import Field

from proxy.body import Body
from proxy.fields import ABSENT
from proxy.matching.values import is_integer
from proxy.repairs.card import Act, Card, Change, Draft, Undo
from proxy.repairs.losses import word
from proxy.repairs.options import Options

Format = Literal["float", "base64"]
FLOAT_BYTES = 4


class RecodeOptions(Options):
    """What the backend is asked for."""

    ask: Literal["float", "base64", "nothing"] = Field(default="float", description="The format to ask for.")
    dimensions: Literal["keep", "cut"] = Field(default="keep", description="Who makes the vectors of that size.")


class Recoding(msgspec.Struct, frozen=True):
    """What makes the answer half: the format that the client asked for, and the size that vectors are cut to."""

    format: Format
    size: int | None = None

    def __call__(self) -> Undo:
        """Return the answer half of one branch."""
        return RecodeUndo(self)


def build(options: RecodeOptions) -> Act:
    """Return the act."""

    def act(draft: Draft) -> Change | None:
        told = draft.body.get("encoding_format", ABSENT)
        wanted: Format | None = "base64" if told == "base64" else "float" if told in (None, "float", ABSENT) else None
        if wanted is None:
            return None
        body, size = _resized(_asked(draft.body, told, options), options)
        if body is draft.body:
            return None
        return Change(
            structs.replace(draft, body=body, undos=(*draft.undos, Recoding(wanted, size))),
            loses=None if size is None else f"quality of vectors cut to {word(size)}",
        )

    return act


def _asked(body: Body, told: Any, options: RecodeOptions) -> Body:
    """Return the body with the format to ask for. Absent and null mean floats."""
    if options.ask == "nothing":
        return body if told is ABSENT else body.cut(("encoding_format",))
    if told == options.ask or (options.ask == "float" and told != "base64"):
        return body
    return body.put(("encoding_format",), options.ask)


def _resized(body: Body, options: RecodeOptions) -> tuple[Body, int | None]:
    size: Any = body.get("dimensions")
    if options.dimensions != "cut" or not is_integer(size) or size < 1:
        return body, None
    return body.cut(("dimensions",)), int(size)


class RecodeUndo:
    """The answer half."""

    is_done = False

    def __init__(self, recoding: Recoding) -> None:
        self._recoding = recoding

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk: embeddings don't come in any."""
        return chunk

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, each vector in the format and size that the client asked for."""
        data = answer.get("data")
        return answer | {"data": [self._element(element) for element in data]} if isinstance(data, list) else answer

    def _element(self, element: Any) -> Any:
        if not isinstance(element, dict) or "embedding" not in element:
            return element
        return element | {"embedding": self._vector(element["embedding"])}

    def _vector(self, told: Any) -> Any:
        wanted, size = self._recoding.format, self._recoding.size
        if size is None and isinstance(told, str if wanted == "base64" else list):
            return told
        numbers = decode(told) if isinstance(told, str) else told if isinstance(told, list) else None
        if numbers is None:
            return told
        if size is not None:
            numbers = shortened(numbers, size)
        if wanted == "float":
            return numbers
        text = encode(numbers)
        return told if text is None else text


def encode(numbers: list[Any]) -> str | None:
    """Return the numbers as OpenAI's base64; None where they can't be written as 32-bit floats."""
    try:
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    except (struct.error, OverflowError):
        return None


def decode(text: str) -> list[float] | None:
    """Return the numbers of OpenAI's base64; None where the text is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    if len(data) % FLOAT_BYTES:
        return None
    return list(struct.unpack(f"<{len(data) // FLOAT_BYTES}f", data))


def shortened(numbers: list[Any], size: int) -> list[Any]:
    """Return the first `size` numbers, scaled to the length of the whole vector; what is no vector stays whole."""
    if len(numbers) <= size or not all(isinstance(number, int | float) for number in numbers):
        return numbers
    try:
        scale = math.hypot(*numbers) / math.hypot(*numbers[:size])
    except (OverflowError, ZeroDivisionError):
        return numbers[:size]
    return [number * scale for number in numbers[:size]] if math.isfinite(scale) else numbers[:size]


CARD = Card(
    name="recode_embeddings",
    options=RecodeOptions,
    build=build,
    is_exact=None,
    loses="nothing, but the quality of vectors that are cut",
    doc=__doc__,
)
