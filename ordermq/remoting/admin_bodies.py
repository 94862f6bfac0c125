"""The bodies that admin requests bring back, typed
(docs/internals/protocol.md#requests-to-consumers, docs/internals/protocol.md#admin-requests)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from ordermq.errors import ProtocolError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import (
    load_object,
    queue_from_json,
    queue_rows_from_body,
    queue_to_json,
    with_quoted_names,
)

_T = TypeVar("_T")
_NUMBER_AS_NAME = re.compile(rb"([{,]\s*)(-?\d+)\s*:")


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is on one queue, as its broker knows it.

    Args:
        end: the offset the next message will get.
        committed: the group's offset; None if it has none.
        last_done_ms: when the last consumed message was stored, ms since 1970; 0 if not known.
    """

    end: int
    committed: int | None
    last_done_ms: int

    @property
    def lag(self) -> int:
        """Messages not yet consumed; all that came after the start, if nothing was committed."""
        return max(self.end - (self.committed or 0), 0)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live member of a group: who, from where, in what language."""

    client_id: str
    address: str
    language: str


@dataclass(frozen=True, slots=True)
class MemberWishes:
    """What a member of a group subscribed, by topic, and how it listens; None if it is silent."""

    subscriptions: Mapping[str, str]
    is_orderly: bool | None


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The live members of a group and the topics they want."""

    members: tuple[GroupMember, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueHolding:
    """What a member says of a queue it has.

    Args:
        is_locked: it believes to hold the queue's lock.
        done: the offset up to which it is done, as it last told the broker.
        buffered: messages pulled and not done.
        in_listener: those of them which its listener has.
    """

    is_locked: bool
    done: int
    buffered: int
    in_listener: int


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A live lock, as the embedded broker keeps it."""

    queue: MessageQueue
    owner: str
    epoch: int
    left_ms: int  # until it runs out, unless it is renewed


def masters_from_body(body: bytes) -> dict[str, str]:
    """Answer of GET_BROKER_CLUSTER_INFO: the address of each broker's master, by broker name."""
    what = "cluster"
    # Broker ids are names of members, which some name servers write without quotes.
    value = load_object(_NUMBER_AS_NAME.sub(rb'\1"\2":', body), what)
    masters = {}
    for name, broker in _of_kind(value, "brokerAddrTable", dict, what).items():
        addresses = broker.get("brokerAddrs") if isinstance(broker, dict) else None
        if not isinstance(addresses, dict):
            raise ProtocolError(f"{what}: brokerAddrs of {name!r} is {addresses!r}")
        if "0" in addresses:
            masters[name] = _text(addresses, "0", what)
    return masters


def progress_from_body(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """Answer of GET_CONSUME_STATS."""
    what = "offsetTable"
    return {
        queue: QueueProgress(
            _int(row, "brokerOffset", what),
            _int(row, "consumerOffset", what),
            _int(row, "lastTimestamp", what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def connections_from_body(body: bytes) -> GroupConnections:
    """Answer of GET_CONSUMER_CONNECTION_LIST."""
    what = "group connections"
    value = load_object(body, what)
    rows = _of_kind(value, "connectionSet", list, what)
    wanted = _of_kind(value, "subscriptionTable", dict, what)
    members = (
        GroupMember(
            _text(row, "clientId", what), _text(row, "clientAddr", what),
            _text(row, "language", what),
        )
        for row in rows
    )  # fmt: skip
    return GroupConnections(
        tuple(sorted(members, key=lambda member: member.client_id)), tuple(sorted(wanted))
    )


def holdings_from_body(body: bytes) -> dict[MessageQueue, QueueHolding]:
    """Answer of GET_CONSUMER_RUNNING_INFO: the member's queues."""
    what = "mqTable"
    return {
        queue: QueueHolding(
            row.get("locked") is True,
            _int(row, "commitOffset", what),
            _int(row, "cachedMsgCount", what),
            _int(row, "transactionMsgCount", what),
        )
        for queue, row in queue_rows_from_body(body, what).items()
    }


def wishes_from_body(body: bytes) -> MemberWishes:
    """Answer of GET_CONSUMER_RUNNING_INFO: what the member subscribed, and how it listens."""
    what = "running info"
    value = with_quoted_names(body, what)
    rows = _of_kind(value, "subscriptionSet", list, what)
    said = _of_kind(value, "properties", dict, what).get("PROP_CONSUMEORDERLY")
    return MemberWishes(
        {_text(row, "topic", what): _text(row, "subString", what) for row in rows},
        None if said is None else str(said).lower() == "true",
    )


def held_locks_to_body(locks: Iterable[HeldLock | None]) -> bytes:
    """Answer of OMQ_QUERY_LOCKS."""
    rows = [
        queue_to_json(lock.queue)
        | {"owner": lock.owner, "epoch": lock.epoch, "leftMs": lock.left_ms}
        for lock in locks
        if lock is not None
    ]
    return orjson.dumps({"locks": rows})


def held_locks_from_body(body: bytes) -> list[HeldLock]:
    what = "held locks"
    rows = _of_kind(load_object(body, what), "locks", list, what)
    return [
        HeldLock(
            queue_from_json(row, what), _text(row, "owner", what), _int(row, "epoch", what),
            _int(row, "leftMs", what),
        )
        for row in rows
    ]  # fmt: skip


def _of_kind(value: Mapping[str, Any], name: str, kind: type[_T], what: str) -> _T:
    """A list or object that may be missing or null, which is an empty one."""
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind):
        raise ProtocolError(f"{what}: {name} is {found!r}, expected a {kind.__name__}")
    return found


def _int(row: Mapping[str, Any], name: str, what: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"{what}: {name} is {value!r}, expected a number")
    return value


def _text(row: object, name: str, what: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise ProtocolError(f"{what}: {name} is {value!r}, expected a text")
    return value
