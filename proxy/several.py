"""`mendproxy serve --workers N`: what the supervisor's process does from its start to its end.

SO_REUSEPORT lets any process of the same user share a port, also one that should not. So the port is first bound
without it, which fails where somebody has it, and then held with it for as long as the workers need it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from proxy.files import Signature
from proxy.lifecycle import Life, open_admin_port, say_what_is_served
from proxy.options import CannotStart, Options
from proxy.reload import Reloader, Status
from proxy.service import url
from proxy.supervisor import Supervisor

# In memory, and there to be written to also where a container's file system is not.
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 a folder of an unguessable name is made in it


async def serve_by_workers(options: Options) -> None:
    """Serve by several processes until a signal ends it.

    Raises: CannotStart, PolicyFault, OSError where the policy's file can't be read.
    """
    loaded = options.load()
    async with AsyncExitStack() as stack:
        port = stack.enter_context(held_port(options.host, options.port))
        options = replace(options, port=port)
        if options.learned is None:
            options = replace(options, learned=own_file(stack), is_learned_kept=False)
        supervisor, status = Supervisor(options, loaded), Status()
        admin_url = await open_admin_port(stack, options, supervisor, status)
        trouble = await _supervise(options, supervisor, status, loaded.signature, admin_url)
        if trouble:
            raise CannotStart(trouble)


async def _supervise(
    options: Options, supervisor: Supervisor, status: Status, used: Signature | None, admin_url: str
) -> str:
    """Return what was in the way of the start, nothing where all went well until the end."""
    async with asyncio.TaskGroup() as group:
        try:
            trouble = await supervisor.start(group)
            if not trouble:
                await _live(options, supervisor, status, used, admin_url)
        finally:
            await supervisor.end()
    return trouble


async def _live(
    options: Options, supervisor: Supervisor, status: Status, used: Signature | None, admin_url: str
) -> None:
    reloader = Reloader(Path(options.config), options.load, supervisor, status, used)
    life = Life(options, supervisor, reloader, status)
    life.heed_signals()
    served_url = url(options.host, options.port, is_tls=options.tls.cert is not None)
    say_what_is_served(options, supervisor.policy, served_url, admin_url)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reloader.watch()), group.create_task(supervisor.ask_again())]
        keep = supervisor.keeper
        if keep is not None:
            group.create_task(keep.run())
        await life.run()
        for task in tasks:
            task.cancel()
        if keep is not None:
            keep.end()


def own_file(stack: AsyncExitStack) -> str:
    """Return a file for what is learned that goes with the process. Raises: CannotStart."""
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mendproxy-", dir=memory))
    except OSError as error:
        message = f"no folder for what the workers learn ({error.strerror}): give them a file by --learned"
        raise CannotStart(message) from error
    return str(Path(folder, "learned.yaml"))


@contextmanager
def held_port(host: str, port: int) -> Iterator[int]:
    """Hold a port for workers that share it; give its number. Port 0 asks for any that is free. Raises: CannotStart."""
    with ExitStack() as stack:
        try:
            for family, address in _addresses(host):
                with _bound(family, address, port) as alone:
                    port = port or alone.getsockname()[1]
                stack.enter_context(_bound(family, address, port, is_shared=True))
        except OSError as error:
            raise CannotStart(f"can't listen on {host}:{port}: {error.strerror or error}") from error
        yield port


def _addresses(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the addresses that a host stands for, with their families. Raises: OSError."""
    found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, address) for family, _, _, _, address in dict.fromkeys(found)]


def _bound(family: int, address: tuple[Any, ...], port: int, *, is_shared: bool = False) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As asyncio binds: a port that was used a minute ago may be had again, IPv6 does not mean IPv4 too.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address[0], port, *address[2:]))
    except OSError:
        bound.close()
        raise
    return bound
