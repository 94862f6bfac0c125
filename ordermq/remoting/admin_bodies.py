"""JSON bodies of what admin tools ask for (docs/internals/protocol.md#admin-requests).

Apart from bodies.py because no producer or consumer needs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ordermq import json_text
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import (
    CONSUME_POP,
    MAX_QUEUES,
    NO_MEMBERS,
    NOTHING,
    RESETS,
    QueueData,
    checked,
    load_object,
    queue_from_json,
    queue_rows_from_body,
    queue_to_json,
    read_member,
    read_number,
    read_optional,
    with_quoted_numbers,
)


class QueueProgress(NamedTuple):
    """Progress of a group on one queue, as its broker knows it.

    Args:
        end: offset that the next message will get.
        committed: the group's committed offset; None if it has none.
        last_done_ms: store time of the last committed message, ms since 1970; 0 if not known.
        consumed: the offset up to which the queue's member says that it is done; None without one.
    """

    end: int
    committed: int | None
    last_done_ms: int
    consumed: int | None = None

    @property
    def done(self) -> int:
        """The offset up to which messages are consumed: members commit some seconds later."""
        return max(self.committed or 0, self.consumed or 0)

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet; all of the queue if nothing was."""
        return max(self.end - self.done, 0)


class GroupMember(NamedTuple):
    """Live member of a group, as its broker lists it."""

    client_id: str
    address: str
    language: str


class GroupConnections(NamedTuple):
    """Live members of a group, the topics they subscribe to, and whether they pop or pull."""

    members: tuple[GroupMember, ...]
    topics: tuple[str, ...]
    pops: bool = False


class QueueHolding(NamedTuple):
    """A member's own report on one of its queues.

    Args:
        is_locked: the member believes that it holds the queue's lock.
        done: the offset up to which it has consumed; it commits some seconds later.
        buffered: messages that are pulled and not finished.
        in_listener: those of them that its listener is processing.
        resets: how often an admin has moved the queue since the member has it; None from members
            of other clients.
    """

    is_locked: bool
    done: int
    buffered: int
    in_listener: int
    resets: int | None


class HeldLock(NamedTuple):
    """Live queue lock of the embedded broker."""

    queue: MessageQueue
    owner: str
    epoch: int
    left_ms: int  # until it expires, unless it is renewed


class QueueEnds(NamedTuple):
    """Stored messages of one queue.

    Args:
        first: oldest offset that the broker still has.
        end: offset that the next message will get.
        last_stored_ms: store time of the newest message, ms since 1970; 0 without one.
    """

    first: int
    end: int
    last_stored_ms: int

    @property
    def messages(self) -> int:
        """Messages between the two offsets."""
        return max(self.end - self.first, 0)


def queue_ends_from_body(body: bytes) -> dict[MessageQueue, QueueEnds]:
    """Return the offsets in an answer to GET_TOPIC_STATS_INFO, by queue."""
    what = "offsetTable"
    return {
        queue: QueueEnds(
            max(read_member(row, "minOffset", int, what), 0),  # -1: RocketMQ has no file of it yet
            read_member(row, "maxOffset", int, what),
            read_member(row, "lastUpdateTimestamp", int, what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def topic_table_from_body(body: bytes, broker_name: str) -> dict[str, QueueData]:
    """Return the topics in an answer of this broker to GET_ALL_TOPIC_CONFIG, by name."""
    what = "topicConfigTable"
    # Static topics of RocketMQ 5 come with tables whose names are numbers.
    value = with_quoted_numbers(body, what)
    return {
        name: QueueData(
            broker_name,
            read_number(row, "readQueueNums", MAX_QUEUES, what),
            read_number(row, "writeQueueNums", MAX_QUEUES, what),
            read_member(row, "perm", int, what),
            read_optional(row, "topicSysFlag", 0, what),
        )
        for name, row in read_optional(value, what, NO_MEMBERS, what).items()
    }


def stores_batches_from_body(body: bytes) -> bool:
    """Return True if an answer to GET_TOPIC_CONFIG is that of a batch topic."""
    what = "attributes"
    attributes = read_optional(with_quoted_numbers(body, what), what, NO_MEMBERS, what)
    return attributes.get("queue.type") == "BatchCQ"


def group_to_body(group: str, *, is_orderly: bool) -> bytes:
    """The SubscriptionGroupConfig of a new group, with RocketMQ's defaults for the rest."""
    return json_text.dumps(
        {
            "groupName": group,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeBroadcastEnable": True,
            "consumeMessageOrderly": is_orderly,
            "retryQueueNums": 1,
            "retryMaxTimes": 16,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True,
        }
    )


def group_names_from_body(body: bytes) -> list[str]:
    """Return the names in an answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, sorted."""
    what = "subscriptionGroupTable"
    value = with_quoted_numbers(body, what)
    return sorted(read_optional(value, what, NO_MEMBERS, what))


def group_list_from_body(body: bytes) -> list[str]:
    """Return the groups in an answer to QUERY_TOPIC_CONSUME_BY_WHO, sorted."""
    what = "groupList"
    found = read_optional(load_object(body, what), what, NOTHING, what)
    return sorted(checked(group, str, what) for group in found)


def runtime_info_from_body(body: bytes) -> dict[str, str]:
    """Return the table of an answer to GET_BROKER_RUNTIME_INFO."""
    what = "state of a broker"
    table = read_optional(load_object(body, what), "table", NO_MEMBERS, what)
    return {str(name): str(value) for name, value in table.items()}


def wall_ms_of_state(table: Mapping[str, str]) -> int | None:
    """Return the broker's wall clock by its runtime info, at most a second behind; None if the
    broker does not tell.
    """
    # RocketMQ's "runtime" is written as `[ 3 days, 0 hours, 12 minutes, 7 seconds ]`: by the
    # broker's language, thousands of days have a separator.
    parts = re.findall(r"(\d[^\s]*) (?:days|hours|minutes|seconds)", table.get("runtime", ""))
    begun = table.get("bootTimestamp", "")
    if len(parts) != 4 or not begun.isdecimal():
        return None
    days, hours, minutes, seconds = (int(re.sub(r"\D", "", part)) for part in parts)
    return int(begun) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000


def runtime_of(uptime_ms: int) -> str:
    """Return a time since the start as brokers write it, without the rest of its last second."""
    minutes, seconds = divmod(uptime_ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def progress_from_body(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """Return the progress in an answer to GET_CONSUME_STATS, by queue."""
    what = "offsetTable"
    return {
        queue: QueueProgress(
            read_member(row, "brokerOffset", int, what),
            read_member(row, "consumerOffset", int, what),
            read_member(row, "lastTimestamp", int, what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def connections_from_body(body: bytes) -> GroupConnections:
    """Return the connections in an answer to GET_CONSUMER_CONNECTION_LIST."""
    what = "group connections"
    value = load_object(body, what)
    rows = read_optional(value, "connectionSet", NOTHING, what)
    subscribed = read_optional(value, "subscriptionTable", NO_MEMBERS, what)
    # Sorted, because brokers list them in the order of a hash table.
    members = (
        GroupMember(
            read_member(row, "clientId", str, what), read_member(row, "clientAddr", str, what),
            read_member(row, "language", str, what),
        )
        for row in rows
    )  # fmt: skip
    return GroupConnections(
        tuple(sorted(members, key=lambda member: member.client_id)),
        tuple(sorted(subscribed)),
        value.get("consumeType") == CONSUME_POP,
    )


def holdings_from_body(body: bytes) -> dict[MessageQueue, QueueHolding]:
    """Return the queues in a member's answer to GET_CONSUMER_RUNNING_INFO."""
    what = "mqTable"
    return {
        queue: QueueHolding(
            row.get("locked") is True,
            read_member(row, "commitOffset", int, what),
            read_member(row, "cachedMsgCount", int, what),
            read_member(row, "transactionMsgCount", int, what),
            read_member(row, RESETS, int, what) if RESETS in row else None,
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def held_locks_to_body(locks: Iterable[HeldLock | None]) -> bytes:
    """Encode the answer to OMQ_QUERY_LOCKS."""
    rows = [
        queue_to_json(lock.queue)
        | {"owner": lock.owner, "epoch": lock.epoch, "leftMs": lock.left_ms}
        for lock in locks
        if lock is not None
    ]
    return json_text.dumps({"locks": rows})


def held_locks_from_body(body: bytes) -> list[HeldLock]:
    """Return the locks in an answer to OMQ_QUERY_LOCKS."""
    what = "held locks"
    rows = read_optional(load_object(body, what), "locks", NOTHING, what)
    return [
        HeldLock(
            queue_from_json(row, what),
            read_member(row, "owner", str, what),
            read_member(row, "epoch", int, what),
            read_member(row, "leftMs", int, what),
        )
        for row in rows
    ]
