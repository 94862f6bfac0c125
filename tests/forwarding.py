"""A port that leads to another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self


class Forwarder:
    """Forwards connections of 127.0.0.1:port to `target`, on a thread of its own.

    Args: port: 0: any free one; `address` has it once entered.
    """

    def __init__(self, port: int, target: str) -> None:
        self.address = ""
        self._port = port
        self._host, _, number = target.rpartition(":")
        self._target_port = int(number)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self._ready = threading.Event()
        self._failure: OSError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, "127.0.0.1", self._port)
            )
        except OSError as error:
            self._failure = error
            self._ready.set()
            return
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(task)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._host, self._target_port)
        with contextlib.suppress(asyncio.CancelledError):  # the forwarder ends
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        there[1].close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
