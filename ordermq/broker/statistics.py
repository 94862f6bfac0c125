"""Counters of the broker."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class BrokerStatistics:
    """Counters since start; written on the broker's thread, readable from any."""

    connections: int = 0  # open now
    held_pulls: int = 0  # waiting now for a message
    requests: int = 0
    messages_stored: int = 0  # acknowledged, including retries and dead letters
    copies_dropped: int = 0  # messages that a producer sent again and that were stored already
    pulls: int = 0
    pops: int = 0
    held_pops: int = 0  # waiting now for a message, or for a queue that is leased
    bytes_pulled: int = 0
    pulls_refused: int = 0  # one too many that would have waited for a message
    floods_held: int = 0  # times that a connection was not read because its writes waited
    commits: int = 0  # consumer offsets acknowledged
    commits_fenced: int = 0  # refused because the lock epoch was not the current one
    commits_refused: int = 0  # beyond the end of their queue
    locks_granted: int = 0
    locks_refused: int = 0
    locks_expired: int = 0
    members_expired: int = 0  # dropped for missing heartbeats
    frames_refused: int = 0  # connections closed because of a malformed frame
    connections_refused: int = 0  # one too many, in total or of their address
    connections_idle: int = 0  # closed after a long silence
    frames_expired: int = 0  # connections closed because a frame was not completed in time
    frames_over_budget: int = 0  # the same, because unfinished frames took too much memory
    slow_readers: int = 0  # the same, because their answers were not read
    requests_failed: int = 0  # answered with code 1 after an exception
    history_errors: int = 0  # events that could not be recorded
    internal_errors: int = 0  # errors nobody expected, of loops and callbacks
    writes_failed: int = 0  # answered with an error because the store could not write
    messages_trimmed: int = 0  # deleted by retention
    timed_messages: int = 0  # waiting now for their time
    messages_recalled: int = 0
    replies_pushed: int = 0  # replies that the requesting client acknowledged
    half_messages: int = 0  # whose transactions have not ended, or not durably yet
    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    transactions_asked: int = 0  # transaction checks sent to producers
    transactions_discarded: int = 0  # half messages given up after inconclusive checks
    store_groups: int = 0  # group commits, including failed ones

    def __repr__(self) -> str:
        counts = {one.name: getattr(self, one.name) for one in fields(self)}
        counted = " ".join(f"{name}={count}" for name, count in counts.items() if count)
        return f"<BrokerStatistics {counted or 'nothing counted'}>"
