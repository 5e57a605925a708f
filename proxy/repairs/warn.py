"""Say something about a request, and change nothing.

## What it does

Puts the text into the log line and the metrics of the request, as the warning of the rule that fired.

## When a backend needs it

It takes a field and ignores it (`strict` in a tool, `logprobs`), and nothing can be repaired.

## What the client loses

Nothing that the proxy took.

## Options

The text.

## Example

```yaml
warn: this backend ignores logit_bias
```
"""

from __future__ import annotations

from pydantic import Field, RootModel

from proxy.repairs.card import Act, Card, Change
from proxy.repairs.options import STRICT


class WarnOptions(RootModel[str]):
    """The warning."""

    model_config = STRICT

    root: str = Field(min_length=1, description="The text.")


def build(options: WarnOptions) -> Act:
    """Return the act."""
    return lambda draft: Change(draft, warning=options.root)


CARD = Card(
    name="warn",
    options=WarnOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
