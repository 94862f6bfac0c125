"""What a consumer counts; read by the CLI and by metrics."""

from __future__ import annotations

import threading
from collections import Counter


class ConsumerStatistics:
    """Counters of one consumer; any thread.

    Names: messages_done, batches, batches_failed, listener_errors, pulls,
    pulls_from_slaves, pull_errors, commits, commit_errors, fenced_commits, lock_errors,
    leases_lost, hand_offs, diverted, skipped, callback_errors, internal_errors; of concurrent
    groups also sent_back, send_back_errors, timed_out, dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        """A copy, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))
