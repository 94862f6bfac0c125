"""The consumer groups: settings, live members, subscriptions
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from ordermq.broker.group_commit import Statement
from ordermq.broker.store import Store
from ordermq.config import BrokerConfig
from ordermq.model.names import check_group
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData

if TYPE_CHECKING:
    from ordermq.broker.connection import BrokerConnection


@dataclass(slots=True)
class Member:
    """One client of a group on one connection."""

    client_id: str
    connection: BrokerConnection
    language: int
    version: int
    heartbeat_ms: int


@dataclass(slots=True)
class Wanted:
    """A registered subscription, ready for the pull path."""

    subscription: Subscription
    tag_hashes: tuple[int, ...]


@dataclass(slots=True)
class Group:
    """One consumer group.

    Members are keyed by connection and client id: a client that reconnects is twice here for
    a moment, and the end of its old connection must not remove the new one.
    """

    name: str
    settings: dict[str, Any]
    members: dict[tuple[BrokerConnection, str], Member] = field(default_factory=dict)
    wanted: dict[str, Wanted] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"

    @property
    def retry_max_times(self) -> int:
        return int(self.settings.get("retryMaxTimes", 16))

    @property
    def is_enabled(self) -> bool:
        return bool(self.settings.get("consumeEnable", True))

    def client_ids(self) -> list[str]:
        """The live members, each once, in the order they came."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def connections(self) -> list[BrokerConnection]:
        """Where to send a notice: each connection once."""
        return list(dict.fromkeys(connection for connection, _ in self.members))

    def subscribe(self, data: ConsumerData) -> bool:
        """Take over a heartbeat's subscriptions; return whether the topics changed."""
        before = set(self.wanted)
        for subscription in data.subscriptions:
            known = self.wanted.get(subscription.topic)
            if known is None or subscription.version > known.subscription.version:
                self.wanted[subscription.topic] = Wanted(subscription, subscription.tag_hashes)
        named = {subscription.topic for subscription in data.subscriptions}
        for topic in before - named:
            del self.wanted[topic]
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        return named != before


class GroupTable:
    """All groups the broker has heard of; their settings are durable, members are not."""

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._config = config
        self._groups: dict[str, Group] = {}
        for name, text in store.rows("SELECT name, config FROM groups"):
            self._groups[str(name)] = Group(str(name), orjson.loads(str(text)))

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    def all(self) -> list[Group]:
        return list(self._groups.values())

    def ensure(self, name: str) -> Group:
        """The group, made with the default settings if it is new.

        Raises: ConfigError: an illegal name.
        """
        found = self._groups.get(name)
        if found is None:
            check_group(name)
            found = self._groups[name] = Group(name, self._defaults(name))
        return found

    def put(self, settings: dict[str, Any]) -> tuple[Group, list[Statement]]:
        """Create or change a group's settings; the caller writes the statements.

        Raises: ConfigError: an illegal name.
        """
        group = self.ensure(str(settings.get("groupName") or ""))
        group.settings = self._defaults(group.name) | settings
        text = orjson.dumps(group.settings).decode()
        return group, [("INSERT OR REPLACE INTO groups VALUES (?, ?)", (group.name, text))]

    def remove(self, name: str) -> Statement:
        """Forget a group's settings; live members keep it, with those of a new group."""
        group = self._groups.get(name)
        if group is not None and group.members:
            group.settings = self._defaults(name)
        else:
            self._groups.pop(name, None)
        return "DELETE FROM groups WHERE name = ?", (name,)

    def register(self, member: Member, data: ConsumerData) -> tuple[Group, bool]:
        """Take a heartbeat; return its group and whether the members must hear of a change."""
        group = self.ensure(data.group)
        key = member.connection, member.client_id
        is_new = key not in group.members
        group.members[key] = member
        return group, group.subscribe(data) or is_new

    def leave(self, name: str, connection: BrokerConnection, client_id: str) -> Group | None:
        """Remove a member that says goodbye; return its group if there was one."""
        group = self._groups.get(name)
        if group is None or group.members.pop((connection, client_id), None) is None:
            return None
        return group

    def disconnect(self, connection: BrokerConnection) -> list[Group]:
        """Remove every member of a closed connection; return the groups that changed."""
        changed = []
        for group in self._groups.values():
            keys = [key for key in group.members if key[0] is connection]
            for key in keys:
                del group.members[key]
            if keys:
                changed.append(group)
        return changed

    def expire(self, now_ms: int) -> tuple[list[Group], list[Member]]:
        """Remove members without a heartbeat for too long; return groups and members."""
        changed, gone = [], []
        for group in self._groups.values():
            late = [
                key
                for key, member in group.members.items()
                if now_ms - member.heartbeat_ms > self._config.client_expiry_ms
            ]
            gone += [group.members.pop(key) for key in late]
            if late:
                changed.append(group)
        return changed, gone

    def _defaults(self, name: str) -> dict[str, Any]:
        return {
            "attributes": {},
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": True,
            "consumeFromMinEnable": True,
            "consumeMessageOrderly": False,
            "consumeTimeoutMinute": 15,
            "groupName": name,
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True,
            "retryMaxTimes": self._config.retry_max_times,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
