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
    """Play a scene on a loop; it leaves as many descriptors as there were."""
    ours, theirs = socket.socketpair()
    kept = set(forking._descriptors)

    async def play() -> None:
        # The loop's own descriptors are there before and after.
        before = os.listdir("/dev/fd")
        await scene(transport_of(ours), Lock(), outbox_of)
        assert os.listdir("/dev/fd") == before
        assert set(forking._descriptors) == kept

    with ours, theirs:
        asyncio.run(play())


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
