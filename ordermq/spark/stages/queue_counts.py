"""The number of a topic's queues, by which each key has its queue, and the state there.

With more or fewer queues, keys move to others, where they would begin without state. So the stage's
folder has the numbers with which its states were made, and each task compares them with the route
after it has got rows: what was sent to another queue was sent after the route had changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ordermq.client.session import ClientSession
from ordermq.errors import OrderingError, OrderMQError
from ordermq.spark.options import client_options
from ordermq.spark.session import shared_session
from ordermq.spark.stages.state_store import StateFolder

_log = logging.getLogger("ordermq.spark")
# By folder and topic, as this worker has seen them last: a state's folder may be far away.
_seen: dict[tuple[str, str], dict[str, int]] = {}
_unknown: set[str] = set()  # topics whose route was not told to the last question


def check_queue_counts(
    folder: StateFolder, client: Mapping[str, str], topic: str, *, may_change: bool
) -> None:
    """Make sure that a topic has as many queues as when its keys' states were made.

    Args:
        client: options of the format: name servers, account, TLS.
        may_change: keep the new numbers, and log a warning.
    Raises: OrderingError: it has more or fewer at a broker, or is at another broker, too.
        StoreError: the numbers cannot be read or written.
    """
    session = shared_session(*client_options(client))
    try:
        now = session.call(_queue_counts(session, topic))
    except OrderMQError as error:
        # The source has just read the rows. The next task of the topic asks again.
        level = logging.DEBUG if topic in _unknown else logging.WARNING  # once per outage
        _unknown.add(topic)
        _log.log(level, "topic %s: not known whether it has other queues now: %s", topic, error)
        return
    _unknown.discard(topic)
    place = folder.path, topic
    if _agree(_seen.get(place), now):
        return
    before = folder.queue_counts(topic)
    if before and not _agree(before, now):
        change = (
            f"topic {topic} has other queues than when the states of its keys were made, "
            f"{_text(now)} instead of {_text(before)}"
        )
        if not may_change:
            raise OrderingError(
                f"{change}: use a new topic for the other number, or start the query with a new "
                "checkpoint, or pass allow_queue_change=True to apply_with_keyed_state to go on. "
                "Keys have moved to other queues, and begin there without the states that they had",
                topic=topic,
            )
        _log.warning("%s: keys that have moved begin without state", change)
    if before != before | now:
        folder.keep_queue_counts(topic, before | now)
    _seen[place] = before | now


async def _queue_counts(session: ClientSession, topic: str) -> dict[str, int]:
    route = await session.routes.refresh(topic)
    # Those to which keys are sent. Without regard to the permission: a broker that is read-only
    # for a while is not another number of queues, and neither is one that is away.
    return (
        {} if route is None else {each.broker_name: each.write_queue_nums for each in route.queues}
    )


def _agree(before: Mapping[str, int] | None, now: Mapping[str, int]) -> bool:
    return before is not None and now.items() <= before.items()


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} at {broker}" for broker, count in sorted(counts.items()))
