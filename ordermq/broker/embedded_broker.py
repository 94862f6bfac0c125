"""The embedded broker: start and stop, its thread, its address."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from dataclasses import fields, replace
from typing import Never, Self

from ordermq.broker.server import BrokerServer
from ordermq.broker.statistics import BrokerStatistics
from ordermq.broker.store import Store
from ordermq.clock import Clock, SystemClock
from ordermq.closing import Starting
from ordermq.config import BrokerConfig
from ordermq.config.checks import join_address, refuse_unknown
from ordermq.errors import ConfigError, ConnectFailed, StateError
from ordermq.events import NoHistory, Recorder
from ordermq.health import ANSWER_TIMEOUT_S, BrokerHealth
from ordermq.remoting.connecting import descriptors_used_up
from ordermq.remoting.event_loop import new_event_loop
from ordermq.threads import NativeEvent, start_thread, wait_for_thread


class EmbeddedBroker(Starting):
    """A name server and broker on one port of this machine, on a thread of its own.

    What it acknowledges is on disk (`BrokerConfig.durability`). A broker started again on the
    same path has every message, committed offset, lock and epoch.

    Args:
        path: its database: a file, or a directory to keep `broker.db` in. None keeps
            everything in memory, as long as the broker runs.
        host: an IP address of this machine to listen on.
        port: 0 for any free port.
        config: its settings, as `BrokerConfig(lock_max_live_ms=5_000)`.
        clock: for leases, delays and held pulls; tests pass a ManualClock.
        history: recorder of the events of docs/internals/semantics.md#invariants.
    Raises: ConfigError: the port is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        history: Recorder | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            settings = {each.name for each in fields(BrokerConfig)}
            given = "a setting of config=BrokerConfig(...)"
            refuse_unknown(EmbeddedBroker, unknown, dict.fromkeys(settings, given))
        if config is not None and not isinstance(config, BrokerConfig):
            raise ConfigError(f"config: expected a BrokerConfig, not a {type(config).__name__}")
        if isinstance(history, str | os.PathLike):  # as a member takes one
            raise ConfigError(
                f"history={history!r}: expected a recorder, as History(path, 'broker') of "
                "ordermq.events"
            )
        is_number = isinstance(port, int) and not isinstance(port, bool)
        if not is_number or not 0 <= port <= 65_535:  # the kernel takes a higher one modulo 65,536
            raise ConfigError(f"port={port!r}: expected 1..65535, or 0 for any free port")
        self._path = path
        self._host = host
        self._wanted_port = port
        self._config = config or BrokerConfig()
        self._clock = clock or SystemClock()
        self._history = history or NoHistory()
        self.statistics = BrokerStatistics()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._is_ending = False
        # Set when clients can connect, and also when that failed: `start` waits for either.
        self._has_begun = NativeEvent()
        self._failure: BaseException | None = None
        self._server: BrokerServer | None = None
        self._port = 0

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else str(self._path)
        if self._thread is None:
            return f"<EmbeddedBroker, not started, {where}>"
        state = "" if self._thread.is_alive() else ", closed"
        return f"<EmbeddedBroker {self.address if self._port else 'no port'}{state}, {where}>"

    def start(self) -> Self:
        """Open the database and listen; return when clients can connect.

        Raises: StoreError: the database cannot be opened. ConnectFailed: the address is not
            available. StateError: it was started before.
        """
        if self._thread is not None:
            raise StateError("start() may be called only once; create a new EmbeddedBroker")
        # A daemon: a program that forgets to close its broker still ends, and closes it then.
        self._thread = threading.Thread(target=self._run, name="ordermq-broker", daemon=True)
        _started.add(self)
        try:
            start_thread(self._thread)
            wait_for_thread(self._has_begun, self._thread)
        except BaseException:  # as of Ctrl-C: it ends as soon as it has begun
            self._end()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Acknowledge what was written, close every connection and the database."""
        # Also called after a failed start and from `__exit__` after `close`: then nothing is left.
        if self._thread is None:
            return
        self._end()
        # Joined without a time-out: everything acknowledged must be on disk when this returns.
        # After an exception here, as of Ctrl-C, it ends all the same; a later call waits for it.
        if self._thread.ident is not None:  # else an exception came before it was started
            self._thread.join()

    def _end(self) -> None:
        self._is_ending = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)

    def health(self) -> BrokerHealth:
        """Return what the broker can do at this moment, for a probe; any thread, never raises.

        It answers within two seconds even if the broker's thread is blocked.
        """
        server, loop, thread = self._server, self._loop, self._thread
        if server is None or loop is None or thread is None or not thread.is_alive():
            return _unwell("the broker is not running: it was closed, or not started")
        # No future of `concurrent.futures`: the broker's thread would wait for its lock, which
        # a caller that a signal handler interrupts may still hold.
        found: list[BrokerHealth] = []
        has_answered = NativeEvent()

        def answer() -> None:
            try:
                found.append(server.health())
            finally:
                has_answered.set()

        try:
            loop.call_soon_threadsafe(answer)
        except RuntimeError:  # its loop was closed in this moment
            return _unwell("the broker is closing")
        has_answered.wait(ANSWER_TIMEOUT_S)
        if not found:
            return _unwell(f"the broker's thread has not answered for {ANSWER_TIMEOUT_S:.0f} s")
        return replace(found[0], address=self.address)

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises: StateError: it was not started.
        """
        if not self._port:
            raise StateError("the broker has no port yet: call start() first")
        return self._port

    @property
    def address(self) -> str:
        """The `host:port` it listens on."""
        return join_address(self._host, self.port)

    @property
    def name_servers(self) -> str:
        """The name server list to give to clients; the broker is its own name server."""
        return self.address

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except Exception as error:
            # Before it is ready `start` raises the error; after, nobody waits for this thread.
            if self._server is not None:
                raise
            self._failure = error
            self._has_begun.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._is_ending:
            self._stop.set()
        store = Store(self._path, self._config)
        try:
            server = BrokerServer(store, self._config, self._clock, self._history, self.statistics)
            try:
                self._port = await server.start(self._host, self._wanted_port)
            except OSError as error:
                used_up = descriptors_used_up(error, "the broker cannot listen")
                raise used_up or ConnectFailed(
                    f"the broker cannot listen ({error.strerror}): use another host or port",
                    address=f"{self._host}:{self._wanted_port}",
                ) from error
            self._server = server
            self._has_begun.set()
            await self._stop.wait()
            await server.stop()
        finally:
            store.close()


_started: weakref.WeakSet[EmbeddedBroker] = weakref.WeakSet()
os.register_at_fork(after_in_child=_started.clear)


@atexit.register
def _close_forgotten() -> None:
    for broker in list(_started):
        broker.close()


def _unwell(reason: str) -> BrokerHealth:
    return BrokerHealth(is_alive=False, is_ready=False, reasons=(reason,))
