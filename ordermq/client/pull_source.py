"""Which replica of its broker a queue is pulled from (Java's PullAPIWrapper)."""

from __future__ import annotations

from ordermq.client.routes import Routes
from ordermq.model.message_queue import MessageQueue

MASTER_ID = 0


class PullSource:
    """The replica one queue's next pull goes to; on the I/O thread.

    A broker that may let its slaves be read says with every answer which of its replicas to
    ask next: a slave for what has left the master's memory, or the master again. Only pulls
    ever go to a slave: it keeps no locks, and what is committed there is lost.
    """

    def __init__(self, routes: Routes, queue: MessageQueue) -> None:
        self._routes = routes
        self._queue = queue
        self._wanted = MASTER_ID

    @property
    def wanted(self) -> int:
        """The broker id that was suggested last."""
        return self._wanted

    def choose(self) -> tuple[int, str]:
        """The broker id, 0 is the master, and the address to pull from now.

        Raises: RouteError: no route names the broker.
        """
        return self._routes.replica_of(self._queue.broker_name, self._wanted)

    def suggest(self, broker_id: int) -> bool:
        """An answer said which replica to ask next; True if that is another one."""
        if broker_id == self._wanted:
            return False
        before = self.choose()
        self._wanted = broker_id
        return self.choose() != before

    async def failed(self) -> None:
        """A pull got no answer: ask another replica next, if there is one, and for the route.

        The name server takes a killed master out of the route at once, a silent one after
        two minutes; trying the next replica without waiting for that costs one request.
        """
        asked, _ = self.choose()
        await self._routes.refresh_soon(self._queue.topic)
        others = set(self._routes.replicas_of(self._queue.broker_name)) - {asked}
        self._wanted = min(others, default=MASTER_ID)
