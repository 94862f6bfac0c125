"""Members of one process that brokers could not tell apart."""

from __future__ import annotations

import threading
from typing import NamedTuple

from ordermq.errors import StateError

_lock = threading.Lock()
_taken: set[Membership] = set()


class Membership(NamedTuple):
    """Who a member is to its brokers: nobody else of this process may be the same.

    Both would be granted the same locks and hold the same share
    (docs/internals/semantics.md#duplicate-client-ids).
    """

    name_servers: tuple[str, ...]
    namespace: str
    group: str
    client_id: str

    def claim(self) -> None:
        """Take it, until `give_up`.

        Raises: StateError: another running member has it.
        """
        with _lock:
            if self in _taken:
                raise StateError(
                    f"another running member of the group has the client id {self.client_id}, and "
                    "both would own its queues: give each an instance_name of its own, or none",
                    group=self.group,
                )
            _taken.add(self)

    def give_up(self) -> None:
        """Let others take it; nothing happens a second time."""
        with _lock:
            _taken.discard(self)
