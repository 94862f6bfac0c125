"""Proxies that damage or cut up what a broker sends on its way to a client."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Callable, Sequence

import pytest

from ordermq.config import RemotingConfig
from ordermq.remoting.command import Command, Framer, encode
from ordermq.remoting.dialer import Dialer
from ordermq.remoting.tls import client_context

Damage = Callable[[Command], None]
Cut = Callable[[bytes], Sequence[bytes]]


class DamagingProxy:
    """Stands in front of an embedded broker; routes name the proxy instead.

    Args:
        target: `host:port` of the broker.
        damage: changes a command that the broker sent; on the proxy's thread.
    """

    def __init__(self, target: str, damage: Damage) -> None:
        self._target = target
        self._damage = damage
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> DamagingProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.split(":")
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        except OSError:  # it has ended
            writer.close()
            return
        for task in (self._pass(reader, broker_writer), self._pass_back(broker_reader, writer)):
            self._tasks.add(asyncio.ensure_future(task))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass what the broker sends."""
        framer = Framer()
        try:
            while data := await reader.read(65_536):
                for command in framer.feed(data):
                    # Routes name the broker: the client must come through here.
                    target, own = self._target.encode(), self.address.encode()
                    command.body = command.body.replace(target, own)
                    self._damage(command)
                    writer.write(encode(command))
        finally:
            writer.close()


class CuttingProxy(DamagingProxy):
    """Passes bytes in pieces, whatever they are; routes name the broker itself.

    Args: cut: returns what to send of bytes that came, each with a write of its own.
    """

    def __init__(self, target: str, cut: Cut) -> None:
        super().__init__(target, lambda command: None)
        self._cut = cut

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                for piece in self._cut(data):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        finally:
            writer.close()


def lead_through(proxy: CuttingProxy, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients connect to the proxy where routes name the broker at `target`."""
    connect = Dialer.open

    async def redirected(self: Dialer, host: str, port: int) -> socket.socket:
        address = proxy.address if f"{host}:{port}" == target else f"{host}:{port}"
        there, number = address.split(":")
        return await connect(self, there, int(number))

    monkeypatch.setattr(Dialer, "open", redirected)


class RandomCuts:
    """Cuts bytes into pieces of sizes around those of a TLS record's head, and longer ones."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def __call__(self, data: bytes) -> list[bytes]:
        pieces, at = [], 0
        while at < len(data):
            size = self._draw.choice((1, 4, 5, 6, 300, 5_000))
            pieces.append(data[at : at + size])
            at += size
        return pieces


class RandomFlips:
    """Flips one bit of some of the long pieces: of answers to pulls, not of a handshake.

    Args: share: of the long pieces.
    Attributes: count: how many were changed.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._draw = random.Random(seed)
        self._share = share
        self.count = 0

    def __call__(self, data: bytes) -> list[bytes]:
        if len(data) < 3_000 or self._draw.random() >= self._share:
            return [data]
        self.count += 1
        changed = bytearray(data)
        changed[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)
        return [bytes(changed)]


def speak_tls_up_to(newest: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients speak no newer TLS."""

    def old_context(config: RemotingConfig) -> ssl.SSLContext | None:
        context = client_context(config)
        assert context is not None
        context.maximum_version = newest
        return context

    monkeypatch.setattr("ordermq.remoting.tls.client_context", old_context)
