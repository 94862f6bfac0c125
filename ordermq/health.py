"""Health: what a client or broker can do at this moment, for probes (docs/health.md)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ordermq.supervisor import LoopHealth
from ordermq.value import Value

# Longer than any pause between two tries of a loop: it does not get over its error by itself.
DEAD_MS = 60_000
ANSWER_TIMEOUT_S = 2.0  # of a thread that is asked for its health; it answers in microseconds


class Health(Value, kw_only=True):
    """The parts that every client and broker has.

    Args:
        is_alive: it runs and its threads answer; False is a reason to restart the process.
        is_ready: it is alive, and nothing in `reasons` keeps it from its work.
        reasons: why it is not ready, in words.
        loops: the loops that have failed at least once, those that fail now first.
        internal_errors: errors nobody expected of tasks and callbacks, in this process.
        log_errors: errors of log handlers, in this process.
        log_lines_dropped: log lines that were dropped because a handler blocked, in this process.
    """

    is_alive: bool
    is_ready: bool
    reasons: tuple[str, ...] = ()
    loops: tuple[LoopHealth, ...] = ()
    internal_errors: int = 0
    log_errors: int = 0
    log_lines_dropped: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self)


class ClientHealth(Health, kw_only=True):
    """The health of a producer.

    Args:
        connected, not_connected: masters in the known routes, by address.
        heartbeat_age_ms: since a broker last acknowledged a heartbeat; None before the first.
        route_age_ms: since a name server last answered; None before the first time.
    """

    connected: tuple[str, ...] = ()
    not_connected: tuple[str, ...] = ()
    heartbeat_age_ms: int | None = None
    route_age_ms: int | None = None


class ConsumerHealth(ClientHealth, kw_only=True):
    """The health of a member of a consumer group.

    Args:
        queues: held now, as `topic@broker/number`.
        lease_left_ms: of the lease that ends first; None without locks.
        poll_age_ms, oldest_poll: the queue whose last answered pull is the oldest, and its age;
            without queues that wait for room, for a lease, or for their hand-over.
        blocked_ms, oldest_blocked: the queue that has waited longest behind a failing message.
            It makes no consumer unready: a restart would not help.
    """

    queues: tuple[str, ...] = ()
    lease_left_ms: int | None = None
    poll_age_ms: int | None = None
    oldest_poll: str | None = None
    blocked_ms: int | None = None
    oldest_blocked: str | None = None


class BrokerHealth(Health, kw_only=True):
    """The health of an embedded broker.

    Args:
        connections: open now.
        failed_commits: group commits of the store that failed in a row.
    """

    address: str = ""
    connections: int = 0
    failed_commits: int = 0


def loop_reasons(loops: tuple[LoopHealth, ...]) -> list[str]:
    """Return a reason for each loop that fails now."""
    return [
        f"loop {loop.name!r} has been failing for {loop.failing_ms / 1_000:.1f} s: "
        f"{loop.last_error}"
        for loop in loops
        if loop.failing_ms is not None
    ]


def are_alive(loops: tuple[LoopHealth, ...]) -> bool:
    """Return False if a loop has failed for so long that it will not recover by itself."""
    return all(loop.failing_ms is None or loop.failing_ms < DEAD_MS for loop in loops)
