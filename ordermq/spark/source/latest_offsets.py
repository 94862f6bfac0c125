"""Where the queues of a stream end: kept in memory by the I/O thread, asked for while needed.

An idle query asks 92 times a second. It is answered from memory, and the answer starts a new
question when it has grown old; nobody asks the brokers while a long batch runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from ordermq.errors import OrderMQError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import Link
from ordermq.spark.source.offsets import Offsets

_log = logging.getLogger("ordermq.spark")
REFRESH_MS: Final = 25  # an answer older than this starts a new question
_STALE_MS: Final = 100  # one older than this is not given: the caller waits for a new one


class Tails:
    """The ends of all queues of some topics, new queues among them."""

    def __init__(self, link: Link, topics: Sequence[str]) -> None:
        self._link = link
        self._topics = topics
        self._routed_ms: int | None = None
        self._lock = threading.Lock()
        self._known: Offsets = {}
        self._asked_ms: int | None = None  # when the question of the last answer was sent
        self._asking: Any = None
        self._complaint = ""

    def latest(self) -> Offsets:
        """The ends as last told; a question at most 100 ms ago.

        Raises: RemotingError, RouteError: nobody has answered yet, ever.
        """
        now_ms = self._link.clock.now_ms()
        with self._lock:
            age_ms = None if self._asked_ms is None else now_ms - self._asked_ms
            if self._asking is not None and self._asking.done():
                self._asking = None
            if self._asking is None and (age_ms is None or age_ms > REFRESH_MS):
                self._asking = self._link.submit(self._ask())
            asking = self._asking
        if asking is not None and (age_ms is None or age_ms > _STALE_MS):
            asking.result()
        return dict(self._known)

    def fresh(self) -> Offsets:
        """The ends now.

        Raises: as `latest`.
        """
        self._link.submit(self._ask()).result()
        return dict(self._known)

    async def _ask(self) -> None:
        asked_ms = self._link.clock.now_ms()
        try:
            queues = await self._queues(asked_ms)
        except OrderMQError as error:
            self._complain(error)
            if not self._known:
                raise
            queues = sorted(self._known)
        answers = await asyncio.gather(
            *(self._tail(queue) for queue in queues), return_exceptions=True
        )
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, OrderMQError):
                # A broker that is away for a while: its queues stand still until it is back.
                self._complain(answer)
                if queue not in self._known and not self._known:
                    raise answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._known[queue] = answer
        self._asked_ms = asked_ms

    async def _queues(self, now_ms: int) -> list[MessageQueue]:
        client = self._link.client
        if self._routed_ms is None:
            self._routed_ms = now_ms
        elif now_ms - self._routed_ms > client.config.route_interval_ms:
            self._routed_ms = now_ms
            await client.routes.refresh_all()  # a topic may have got more queues
        return await self._link.queues(self._topics)

    async def _tail(self, queue: MessageQueue) -> int:
        client = self._link.client
        return await client.api.max_offset(client.routes.master_of(queue.broker_name), queue)

    def _complain(self, error: OrderMQError) -> None:
        if str(error) != self._complaint:  # once, not 92 times a second
            self._complaint = str(error)
            _log.warning("the ends of some queues are not known anew: %s", error)
