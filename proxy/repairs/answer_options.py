"""The repairs of an answer as a policy lists them: one list for both of its shapes, or a list for each.

The table of those that may stand there is this model's fields, so that a fault has its place, and an editor knows them.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, RootModel, model_validator

from proxy.repairs.answer_edits import EchoPrompt, FinishWithCalls, JoinParts, SkipChunks
from proxy.repairs.clamp import ClampOptions
from proxy.repairs.coerce import CoerceOptions
from proxy.repairs.default import DefaultOptions
from proxy.repairs.drop import DropOptions
from proxy.repairs.keep import KeepOptions
from proxy.repairs.map import MapOptions
from proxy.repairs.move import MoveOptions
from proxy.repairs.options import STRICT, Options, misfit
from proxy.repairs.set import SetOptions


class AnswerRepair(Options):
    """One repair of the answer."""

    clamp: ClampOptions | None = Field(default=None, description="Hold numbers and lengths within limits.")
    coerce: CoerceOptions | None = Field(default=None, description="Say values in another type.")
    default: DefaultOptions | None = Field(default=None, description="Write fields that are absent.")
    drop: DropOptions | None = Field(default=None, description="Remove fields.")
    keep: KeepOptions | None = Field(default=None, description="Keep only some fields or elements.")
    map: MapOptions | None = Field(default=None, description="Replace scalars by a table.")
    move: MoveOptions | None = Field(default=None, description="Rename or move fields.")
    set: SetOptions | None = Field(default=None, description="Write fields.")
    finish_with_calls: FinishWithCalls | None = Field(
        default=None, description="The finish_reason of a choice that called a tool and says stop."
    )
    join_parts: JoinParts | None = Field(default=None, description="Make text of a content that is a list of parts.")
    skip_chunks: SkipChunks | None = Field(
        default=None, description="Tests by path; a chunk for which all hold is not sent."
    )
    echo_prompt: EchoPrompt | None = Field(
        default=None, description="Put the prompt before the text where echo is true."
    )

    @model_validator(mode="after")
    def _is_one(self) -> AnswerRepair:
        if len(self.model_fields_set) != 1:
            count = len(self.model_fields_set)
            raise misfit(
                [((), f"a repair is a mapping with one key, this one has {count}: begin each with its own `-`")]
            )
        if self.options is None:
            raise misfit([((self.name,), "say its options")])
        return self

    @property
    def name(self) -> str:
        """The repair's name."""
        return next(iter(self.model_fields_set))

    @property
    def options(self) -> Any:
        """The repair's own options."""
        return getattr(self, self.name)


class ByShape(Options):
    """Repairs by the shape in which the backend answers."""

    both: list[AnswerRepair] = Field(
        default=[], description="Repairs of JSON answers and, `message` for `delta`, chunks."
    )
    answer: list[AnswerRepair] = Field(default=[], description="Repairs of JSON answers only.")
    chunk: list[AnswerRepair] = Field(default=[], description="Repairs of chunks only, by their own paths.")

    @model_validator(mode="after")
    def _is_something(self) -> ByShape:
        if not (self.both or self.answer or self.chunk):
            raise misfit([((), "say repairs for one of both, answer and chunk")])
        return self


class ResponseOptions(RootModel[list[AnswerRepair] | ByShape]):
    """The repairs of the answer."""

    model_config = STRICT

    root: list[AnswerRepair] | ByShape = Field(description="A list of repairs, or lists by the shape of the answer.")

    @model_validator(mode="after")
    def _is_something(self) -> ResponseOptions:
        if not self.root:
            raise misfit([((), "an empty list repairs nothing")])
        return self

    @property
    def shapes(self) -> ByShape:
        """The options in their long form."""
        return ByShape(both=self.root) if isinstance(self.root, list) else self.root
