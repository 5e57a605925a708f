"""Options that are text which a repair writes into a body."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

Text = Annotated[str, Field(min_length=1), AfterValidator(str)]
"""A text that may stand in a body; one that knows where it came from (captured, expanded) becomes a plain one."""
