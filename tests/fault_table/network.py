"""A network between clients and servers that can be slow, cut, silent one way, or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ordermq.remoting.command import Framer, encode
from tests.component.certificates import Certificate

TO_SERVER, TO_CLIENT = "to server", "to client"
_ROUTES = b"brokerAddrs"  # a name in every body with addresses of brokers
_READ_BYTES = 1 << 16
_RECORDS = b"nextBeginOffset"  # a name in the header of every answer to a pull


@dataclass(frozen=True)
class TlsEnds:
    """Both sides of a network for clients that speak TLS.

    Args:
        to_client: shows a certificate.
        to_server: checks the servers', or takes any.
    """

    to_client: ssl.SSLContext
    to_server: ssl.SSLContext

    @classmethod
    def of(cls, own: Certificate, ca_file: str) -> TlsEnds:
        """Make them.

        Args: ca_file: of the authority that signed the servers' certificates; empty: take any.
        """
        to_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        to_client.load_cert_chain(own.certificate, own.key)
        to_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca_file:
            to_server.load_verify_locations(ca_file)
        else:
            to_server.check_hostname = False
            to_server.verify_mode = ssl.CERT_NONE
        return cls(to_client, to_server)


class Network:
    """Proxies in front of servers; routes on their way to clients name the proxies.

    Args:
        servers: `host:port` of name servers and brokers, or of a proxy of RocketMQ.
        is_remoting: they speak RocketMQ's remoting protocol; else bytes are passed as they come,
            and no route is changed.
        tls: clients and servers speak TLS, which ends and begins here.

    Attributes:
        addresses: of the proxy of each server.
        faults: cuts, damaged frames and so on, so far.
    """

    def __init__(
        self,
        servers: Sequence[str],
        seed: int,
        *,
        is_remoting: bool = True,
        tls: TlsEnds | None = None,
    ) -> None:
        self._tls = tls
        self.addresses = dict.fromkeys(servers, "")
        self._is_remoting = is_remoting
        self.faults = 0
        self._draw = random.Random(seed)
        self._delay_s = 0.0
        self._cut_frames = 0
        self._connections = 0
        self._silent = ""
        self._silent_below = 0
        self._loses = False
        self._damage: Callable[[bytearray], bool] | None = None
        self._damaged_share = 0.0
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        """Close every connection."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @contextlib.contextmanager
    def delayed(self, most_s: float) -> Iterator[None]:
        """Hold back what is read, each time for up to `most_s`, during the block."""
        self._delay_s = most_s
        self.faults += 1
        yield
        self._delay_s = 0.0

    def cut(self, connections: int) -> None:
        """Reset connections, each in the middle of the next frame that passes it."""
        self._cut_frames += connections

    @contextlib.contextmanager
    def silent(self, direction: str, *, loses: bool = False) -> Iterator[None]:
        """Keep back one direction of all open connections, which stay open, during the block.

        New connections pass. What was kept back is delivered late, as by a middlebox that stalled.

        Args: loses: it is lost instead, and its connections are reset at the end of the block.
        """
        self.faults += 1
        self._loses = loses
        self._open.clear()  # nobody waits for it yet
        self._silent, self._silent_below = direction, self._connections
        yield
        self._silent = ""
        self._loop.call_soon_threadsafe(self._open.set)

    @contextlib.contextmanager
    def damaged(
        self, share: float, damage: Callable[[random.Random, bytearray], bool]
    ) -> Iterator[None]:
        """Damage this share of the frames to clients during the block.

        Args: damage: returns False if this frame is none of those it damages.
        """
        self._damaged_share = share
        self._damage = lambda frame: damage(self._draw, frame)
        yield
        self._damage = None

    # On the loop's thread.

    async def _listen(self) -> None:
        for server in self.addresses:
            host, port = server.split(":")

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                host: str = host,
                port: int = int(port),
            ) -> None:
                await self._serve(reader, writer, host, port)

            listening = await asyncio.start_server(
                serve, "127.0.0.1", 0, ssl=self._tls and self._tls.to_client
            )
            self._listening.append(listening)
            self.addresses[server] = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        for listening in self._listening:
            listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(
                host, port, ssl=self._tls and self._tls.to_server
            )
        except OSError:
            writer.transport.abort()  # the server is away
            return
        number, ends = self._connections, (writer, server_writer)
        self._connections += 1
        for task in (
            self._pass(TO_SERVER, number, reader, server_writer, ends),
            self._pass(TO_CLIENT, number, server_reader, writer, ends),
        ):
            started = asyncio.ensure_future(task)
            self._tasks.add(started)
            started.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        direction: str,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while True:
                frame = await self._next(reader)
                if self._silent == direction and number < self._silent_below:
                    loses = self._loses
                    await self._open.wait()
                    if loses:
                        return
                if self._delay_s:
                    await asyncio.sleep(self._draw.uniform(0, self._delay_s))
                if self._cut_frames:
                    self._cut_frames -= 1
                    self.faults += 1
                    writer.write(frame[: self._draw.randrange(len(frame))])
                    await asyncio.sleep(0.01)  # written, then reset
                    return
                writer.write(self._readdressed(direction, frame))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has gone, so the other goes, too
        finally:
            for end in ends:
                end.transport.abort()

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next frame, or some bytes; raises IncompleteReadError at the end."""
        if self._is_remoting:
            head = await reader.readexactly(4)
            return head + await reader.readexactly(int.from_bytes(head))
        data = await reader.read(_READ_BYTES)
        if not data:
            raise asyncio.IncompleteReadError(b"", 1)
        return data

    def _readdressed(self, direction: str, frame: bytes) -> bytes:
        if direction == TO_SERVER or not self._is_remoting:
            return frame
        if _ROUTES in frame:
            (command,) = Framer().feed(frame)
            for server, proxy in self.addresses.items():
                command.body = command.body.replace(server.encode(), proxy.encode())
            return encode(command)
        if self._damage is not None and self._draw.random() < self._damaged_share:
            changed = bytearray(frame)
            if self._damage(changed):
                self.faults += 1
                return bytes(changed)
        return frame


def flip_in_record(draw: random.Random, frame: bytearray) -> bool:
    """Flip a bit of the first record of an answer to a pull, where something must notice it: its
    size, magic, checksum, queue, offset, or body."""
    header = int.from_bytes(frame[4:8]) & 0xFFFFFF
    record = 8 + header
    if _RECORDS not in frame[8:record] or len(frame) < record + 92:
        return False
    body = int.from_bytes(frame[record + 84 : record + 88])
    at = draw.choice([*range(16), *range(20, 28), *range(84, 88 + body)])
    frame[record + at] ^= 1 << draw.randrange(8)
    return True


def flip_in_lengths(draw: random.Random, frame: bytearray) -> bool:
    """Flip a bit of the lengths that begin a frame: what follows can no longer be told apart."""
    frame[draw.randrange(8)] ^= 1 << draw.randrange(8)
    return True
