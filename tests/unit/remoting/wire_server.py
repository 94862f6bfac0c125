"""A server of frames on a free port, whose answers each test decides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ordermq.remoting.command import Command, Framer, encode

_T = TypeVar("_T")
TIMEOUT_S = 60.0


class Line:
    """The server's end of one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, command: Command) -> None:
        self._writer.write(encode(command))

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def cut(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        if not self._writer.is_closing():  # as in ordermq/broker/connection.py
            self._writer.close()


Handler = Callable[[Line, Command], Awaitable[None] | None]


class WireServer:
    """Calls `handle` with each request; keeps all of them in `requests`.

    Args: tls: of the server; None speaks plainly.
    """

    def __init__(self, handle: Handler, tls: ssl.SSLContext | None = None) -> None:
        self._handle = handle
        self._tls = tls
        self._server: asyncio.Server | None = None
        self.requests: list[Command] = []
        self.lines: list[Line] = []
        self.address = ""

    async def __aenter__(self) -> WireServer:
        await self.listen(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening and cut every line."""
        assert self._server is not None
        self._server.close()
        for line in self.lines:
            line.cut()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, framer = Line(writer), Framer()
        self.lines.append(line)
        try:
            while data := await reader.read(65_536):
                for command in framer.feed(data):
                    self.requests.append(command)
                    answer = self._handle(line, command)
                    if answer is not None:
                        await answer
        except ConnectionError:
            pass
        finally:
            line.close()


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a test's coroutine, with a deadline."""
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds; the deadline is `run`'s."""
    while not condition():
        await asyncio.sleep(0.001)
