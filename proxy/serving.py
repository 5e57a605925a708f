"""`mendproxy serve`: the process is set up, serves until a signal ends it, and tells why where it can't."""

from __future__ import annotations

import asyncio
import os
import sys

import click

import proxy.bare_imports  # noqa: F401 before anything that imports what it imports
from proxy.errors import PolicyFault
from proxy.lifecycle import allow_descriptors, serve
from proxy.log import set_up
from proxy.options import CannotStart, Options, loop_factory
from proxy.tls import Tls

__all__ = ["Options", "Tls", "run"]

COULD_NOT_START = 3


def run(options: Options) -> None:
    """Serve as it is said, or end with what is in the way."""
    sink = set_up(options.log_format, options.log_level, pid=os.getpid() if options.workers > 1 else None)
    allow_descriptors()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_served(options))
    except PolicyFault as error:
        _fail("\n".join(map(str, error.faults)))
    except CannotStart as error:
        _fail(f"mendproxy: {error}")
    except OSError as error:
        _fail(f"mendproxy: {options.config}: {error.strerror or error}")
    finally:
        sink.flush()


async def _served(options: Options) -> None:
    if options.workers == 1:
        await serve(options)
        return
    # One process has no use for what looks after several.
    from proxy.several import serve_by_workers

    await serve_by_workers(options)


def _fail(message: str) -> None:
    click.echo(message, err=True)
    sys.exit(COULD_NOT_START)
