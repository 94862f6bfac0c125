"""What the broker counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BrokerStatistics:
    """Counters since start; written on the broker's thread, read from any."""

    connections: int = 0  # open now
    held_pulls: int = 0  # waiting now
    requests: int = 0
    messages_stored: int = 0  # acknowledged, retries and dead letters among them
    pulls: int = 0
    bytes_pulled: int = 0
    commits: int = 0  # consumer offsets acknowledged
    commits_fenced: int = 0  # refused: not the current lock epoch
    locks_granted: int = 0
    locks_refused: int = 0
    locks_expired: int = 0
    members_expired: int = 0
    frames_refused: int = 0  # connections closed for bytes that are no frame
    requests_failed: int = 0  # answered with code 1 after an exception
    writes_failed: int = 0  # answered with an error because the store could not write
    messages_trimmed: int = 0  # deleted for their age, or because the store was too large
    timed_messages: int = 0  # waiting now until they are due
    messages_recalled: int = 0
    replies_pushed: int = 0  # to clients that asked, who took them
    half_messages: int = 0  # waiting now for the end of their transactions
    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    transactions_asked: int = 0  # questions to producers
    transactions_discarded: int = 0  # half messages given up: nobody knew how they ended
    store_groups: int = 0  # transactions, failed ones among them
