"""What a request's schemas lost, as one sentence. Shape: "keywords pattern, minLength of 2 schemas"."""

from __future__ import annotations

from proxy.repairs.losses import SHOWN_NAMES, join_losses, plain

KEYWORD = "keyword "
"""What begins the name of a loss that is a keyword's."""


class Report:
    """What was lost of the schemas of one request."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._counts: dict[str, int] = {}

    def add(self, told: list[str]) -> None:
        """Count what was lost of one schema."""
        words = [what.removeprefix(KEYWORD) for what in told if what.startswith(KEYWORD)]
        self._words += words
        kinds = [*(["keywords"] if words else []), *(what for what in told if not what.startswith(KEYWORD))]
        for kind in dict.fromkeys(kinds):
            self._counts[kind] = self._counts.get(kind, 0) + 1

    def sentence(self) -> str | None:
        """Return the sentence, or None where nothing was lost."""
        names = list(dict.fromkeys(self._words))
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        shown = f"keyword{'s' if len(names) > 1 else ''} {', '.join(map(plain, names[:SHOWN_NAMES]))}{more}"
        losses = [(shown if kind == "keywords" else kind, count) for kind, count in self._counts.items()]
        return join_losses(f"{lost} of {count} schema{'s' if count > 1 else ''}" for lost, count in losses)
