"""Limits of connections: their number, unfinished input, silence, answers that nobody reads.

All of them hold before anything is known about a client, so that clients the broker does not
trust cannot take its memory and its descriptors (docs/embedded-broker.md#limits).
"""

from __future__ import annotations

import logging
import math
import resource
from typing import Protocol

from ordermq.broker.statistics import BrokerStatistics
from ordermq.clock import Clock
from ordermq.config import BrokerConfig

log = logging.getLogger("ordermq.broker")

# Descriptors of the process that connections may not take: the database, logs, the program's own.
_SPARE_DESCRIPTORS = 64
_CHECKS_PER_TIMEOUT = 4  # a limit of time is enforced after at most 5/4 of it
_LOG_INTERVAL_MS = 60_000  # between two lines about the same limit and address
_MAX_LOGGED = 1_024  # limits and addresses remembered for that


class LimitedConnection(Protocol):
    """A connection as its limits see it.

    Attributes:
        idle_checks: checks since the last byte was received.
        frame_checks: checks since the unfinished frame began.
        stalled_checks: checks since the client last read something while answers waited for it.
    """

    peer: str
    idle_checks: int
    frame_checks: int
    stalled_checks: int

    @property
    def is_signed(self) -> bool:
        """True once a request had a good signature."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the frame that is not complete."""

    def note_stalled(self) -> None:
        """Count a check if answers wait and none of them left since the last check."""

    def abort(self) -> None:
        """Close the connection now."""


class ConnectionLimits:
    """Counts and watches the connections of one broker; on the loop thread."""

    def __init__(self, config: BrokerConfig, clock: Clock, statistics: BrokerStatistics) -> None:
        self._clock = clock
        self._statistics = statistics
        self._max_per_address = config.max_connections_per_address
        # A broker that used up the descriptors could not even open its own files.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._is_bound_by_descriptors = descriptors - _SPARE_DESCRIPTORS < config.max_connections
        self._max = max(min(config.max_connections, descriptors - _SPARE_DESCRIPTORS), 1)
        # One frame must fit, or no large message could ever be sent.
        self._max_unfinished = max(config.max_unfinished_bytes, config.max_frame_bytes)
        self._count = 0
        self._by_address: dict[str, int] = {}
        self._open: dict[LimitedConnection, str] = {}
        self._unfinished: dict[LimitedConnection, int] = {}
        self._unfinished_bytes = 0
        self.unstored_bytes = 0  # received and waiting for the store, of all connections
        self._logged: dict[tuple[str, str], int] = {}
        # Times are counted in checks, so that received bytes cost no look at the clock.
        times_ms = [config.frame_timeout_ms, config.reader_timeout_ms]
        if config.idle_close_ms:
            times_ms.append(config.idle_close_ms)
        self.interval_ms = max(min(times_ms) // _CHECKS_PER_TIMEOUT, 1)
        self._idle_checks = config.idle_close_ms / self.interval_ms or math.inf
        self._frame_checks = config.frame_timeout_ms / self.interval_ms
        self._stalled_checks = config.reader_timeout_ms / self.interval_ms

    def admit(self, address: str) -> bool:
        """Count a new connection from an address; False if it is one too many."""
        if self._count >= self._max:
            reason = f"{self._max} are open, the most that " + (
                f"{self._max + _SPARE_DESCRIPTORS} descriptors allow: raise `ulimit -n`"
                if self._is_bound_by_descriptors
                else "max_connections allows"
            )
        elif self._by_address.get(address, 0) >= self._max_per_address:
            reason = (
                f"{self._max_per_address} from this address are open, the most that "
                "max_connections_per_address allows"
            )
        else:
            self._count += 1
            self._by_address[address] = self._by_address.get(address, 0) + 1
            return True
        self._statistics.connections_refused += 1
        self._warn("refusing connection", address, reason)
        return False

    def watch(self, connection: LimitedConnection, address: str) -> None:
        """Enforce the limits of an admitted connection, until `release`."""
        self._open[connection] = address

    def release(self, connection: LimitedConnection) -> None:
        """Forget a connection that is closed; a second call does nothing."""
        address = self._open.pop(connection, None)
        if address is None:
            return
        self.note_unfinished(connection, 0)
        self._count -= 1
        if self._by_address[address] == 1:
            del self._by_address[address]
        else:
            self._by_address[address] -= 1

    def note_unfinished(self, connection: LimitedConnection, size: int) -> None:
        """Note the bytes of a connection's unfinished frame, and enforce the budget of all.

        The connection with the most bytes is closed, so that small senders outlive large ones;
        before it, those that have not shown a good signature.
        """
        before = self._unfinished.pop(connection, 0)
        if size:
            self._unfinished[connection] = size
        self._unfinished_bytes += size - before
        while self._unfinished_bytes > self._max_unfinished:
            largest = max(self._unfinished, key=self._rank)
            self._unfinished_bytes -= self._unfinished.pop(largest)
            self._statistics.frames_over_budget += 1
            self._warn(
                "closing connection", self._open[largest],
                f"unfinished frames of all connections take over {self._max_unfinished} bytes "
                "(max_unfinished_bytes), and this one has the most",
            )  # fmt: skip
            largest.abort()

    def _rank(self, connection: LimitedConnection) -> tuple[bool, int]:
        return not connection.is_signed, self._unfinished[connection]

    def check(self) -> None:
        """Close the connections that are beyond a limit of time; call each `interval_ms`."""
        for connection, address in list(self._open.items()):
            connection.idle_checks += 1
            if connection.unfinished_bytes:
                connection.frame_checks += 1
            connection.note_stalled()
            if connection.stalled_checks > self._stalled_checks:
                self.close_slow_reader(connection, "it does not read answers (reader_timeout_ms)")
            elif connection.frame_checks > self._frame_checks:
                self._statistics.frames_expired += 1
                self._close(connection, address, "its frame is not complete (frame_timeout_ms)")
            elif connection.idle_checks > self._idle_checks:
                self._statistics.connections_idle += 1
                # Every client meets this sometimes; it is no reason to worry.
                log.info("closing idle connection: client=%s", connection.peer)
                connection.abort()

    def close_slow_reader(self, connection: LimitedConnection, reason: str) -> None:
        """Close a connection whose client does not read what it asked for."""
        self._statistics.slow_readers += 1
        self._close(connection, self._open[connection], reason)

    def _close(self, connection: LimitedConnection, address: str, reason: str) -> None:
        self._warn("closing connection", address, reason)
        connection.abort()

    def out_of_descriptors(self, error: OSError) -> None:
        """Note that the operating system gave no descriptor for a connection."""
        self._statistics.connections_refused += 1
        self._warn("cannot accept connections", "any", f"{error.strerror}: raise `ulimit -n`")

    def _warn(self, what: str, address: str, reason: str) -> None:
        # One line per limit, address and minute: who runs into a limit mostly does it at once
        # again, and the log would be the next thing to fill up.
        key, now_ms = (reason, address), self._clock.now_ms()
        if now_ms - self._logged.get(key, -_LOG_INTERVAL_MS) < _LOG_INTERVAL_MS:
            return
        if len(self._logged) >= _MAX_LOGGED:
            self._logged.clear()
        self._logged[key] = now_ms
        log.warning("%s: address=%s reason=%s", what, address, reason)
