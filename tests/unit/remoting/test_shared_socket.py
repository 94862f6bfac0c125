"""The duplicate of a shared socket is closed, and forks are told of the right descriptors."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ordermq import forking
from ordermq.remoting.writing import DirectOutbox, Outbox, SharedSocket
from ordermq.threads import Lock

OutboxOf = Callable[[socket.socket], Outbox]


def transport_of(ours: socket.socket) -> Any:
    return SimpleNamespace(
        get_extra_info=lambda name: ours,
        is_closing=lambda: False,
        get_write_buffer_size=lambda: 0,
    )


def with_socket(scene: Callable[[Any, Lock, OutboxOf], Any], outbox_of: OutboxOf) -> None:
    """Play a scene on a loop; it leaves no duplicate of the socket."""
    ours, theirs = socket.socketpair()

    async def play() -> None:
        told = told_of(ours)
        await scene(transport_of(ours), Lock(), outbox_of)
        # Not of all descriptors: clients of other tests may just be ending.
        assert [
            each for each in os.listdir("/dev/fd") if place_of(int(each)) == place_of(ours)
        ] == [str(ours.fileno())]
        assert told_of(ours) == told

    with ours, theirs:
        asyncio.run(play())


def place_of(opened: int | socket.socket) -> tuple[int, int] | None:
    """Return what tells one open socket from all others; None of a closed descriptor."""
    number = opened if isinstance(opened, int) else opened.fileno()
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def told_of(ours: socket.socket) -> set[int]:
    """Return what forks are told of that is this socket, or closed."""
    return {each for each in forking._descriptors if place_of(each) in (place_of(ours), None)}


def shared_by(transport: Any, lock: Lock, outbox_of: OutboxOf) -> SharedSocket:
    return SharedSocket(transport, lock, outbox_of, on_broken=lambda error: None)


def request() -> Any:
    return cast(Any, SimpleNamespace(is_asked=False))


def test_a_duplicate_that_was_used_is_closed() -> None:
    async def scene(transport: Any, lock: Lock, outbox_of: OutboxOf) -> None:
        shared, ended = shared_by(transport, lock, outbox_of), asyncio.Event()
        with lock:
            assert shared.append(b"a", request())
        shared.send()
        shared.close(ended.set)
        assert ended.is_set()
        assert not shared.is_free  # so nobody makes another one

    with_socket(scene, DirectOutbox)


def test_a_duplicate_that_a_writer_makes_during_the_close_is_closed_behind_it() -> None:
    async def scene(transport: Any, lock: Lock, outbox_of: OutboxOf) -> None:
        shared, ended = shared_by(transport, lock, outbox_of), asyncio.Event()
        lock.acquire()  # a caller has found it free, and was suspended
        shared.close(ended.set)
        assert not ended.is_set()
        assert shared.append(b"a", request())
        lock.release()
        await asyncio.wait_for(ended.wait(), 60)

    with_socket(scene, DirectOutbox)


def test_a_number_that_may_be_another_sockets_by_now_is_not_written_to() -> None:
    async def scene(transport: Any, lock: Lock, outbox_of: OutboxOf) -> None:
        ours, others = transport.get_extra_info("socket"), socket.socketpair()
        with others[0], others[1]:
            shared = shared_by(transport, lock, outbox_of)

            def ends(name: str) -> socket.socket:
                # The loop closes the connection, and opens another one, before the duplicate.
                transport.is_closing = lambda: True
                return others[0]

            transport.get_extra_info = ends
            with lock, pytest.raises(OSError, match="ending"):
                shared.append(b"of the first", request())
            shared.close(lambda: None)
            others[1].setblocking(False)
            with pytest.raises(BlockingIOError):
                others[1].recv(100)
            transport.get_extra_info = lambda name: ours

    with_socket(scene, DirectOutbox)


def test_a_close_that_waits_leaves_the_number_of_another_socket_alone() -> None:
    async def scene(transport: Any, lock: Lock, outbox_of: OutboxOf) -> None:
        shared, ended = shared_by(transport, lock, outbox_of), asyncio.Event()
        number = transport.get_extra_info("socket").fileno()
        lock.acquire()
        shared.close(ended.set)
        # The transport has closed its descriptor, and the next connection got the number.
        forking.keep_from_children(number)
        lock.release()
        await asyncio.wait_for(ended.wait(), 60)
        assert number in forking._descriptors
        forking.closes(number)

    with_socket(scene, DirectOutbox)


def test_an_outbox_that_cannot_be_made_costs_no_second_duplicate() -> None:
    is_first = True

    def outbox_of(own: socket.socket) -> Outbox:
        nonlocal is_first
        if is_first:
            is_first = False
            raise MemoryError
        return DirectOutbox(own)

    async def scene(transport: Any, lock: Lock, outbox_of: OutboxOf) -> None:
        shared, ended = shared_by(transport, lock, outbox_of), asyncio.Event()
        with lock, pytest.raises(MemoryError):
            shared.append(b"a", request())
        with lock:
            assert shared.append(b"a", request())
        shared.close(ended.set)
        assert ended.is_set()

    with_socket(scene, outbox_of)
