"""Print docs/repairs.md: every repair's own page, after a table of all. `make gen` puts it there."""

import sys

from proxy.repairs import REPAIRS
from proxy.repairs.card import Card

INTRODUCTION = """# Repairs

What a rule's `repair` may name. *Exact* means that the client can't tell the difference; a *lossy* repair says in the
`Mendproxy-Repairs` header what is lost, and a client can refuse it with `Prefer: handling=strict`.

<!-- Made from the repairs' own texts by `make gen`: edit those. -->
"""
KINDS = {True: "exact", False: "lossy", None: "depends on the request"}


def row(card: Card) -> str:
    """Return the repair's line of the table."""
    return f"| [`{card.name}`](#{card.name}) | {card.doc.strip().splitlines()[0]} | {KINDS[card.is_exact]} |"


def page(card: Card) -> str:
    """Return the repair's text, its headings one level down."""
    return f"## {card.name}\n\n{card.doc.strip()}\n".replace("\n## ", "\n### ")


def document() -> str:
    """Return the whole page."""
    table = "\n".join(["| repair | what it does | |", "|---|---|---|", *map(row, REPAIRS.values())])
    return "\n".join([INTRODUCTION, table + "\n", *map(page, REPAIRS.values())])


if __name__ == "__main__":
    sys.stdout.write(document())
