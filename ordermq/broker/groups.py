"""Consumer groups (settings, live members, subscriptions) and producer groups
(docs/internals/protocol.md#membership)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ordermq import json_text
from ordermq.broker.connection import BrokerConnection
from ordermq.broker.store import Done, Statement, Store, Write
from ordermq.config import BrokerConfig
from ordermq.errors import StoreError
from ordermq.model.names import check_group
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import ConsumerData
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import ONEWAY_FLAG, Command, encode
from ordermq.remoting.headers import GroupHeader

BROADCASTING = "BROADCASTING"


@dataclass(slots=True)
class Member:
    """One client of a group on one connection."""

    client_id: str
    connection: BrokerConnection
    language: int
    version: int
    heartbeat_ms: int


@dataclass(slots=True)
class RegisteredSubscription:
    """A subscription of the group's last heartbeats."""

    subscription: Subscription
    tag_hashes: tuple[int, ...]  # computed once per heartbeat; every pull compares them


@dataclass(slots=True)
class Group:
    """One consumer group."""

    name: str
    settings: dict[str, Any]
    # Keyed by connection and client id: a client that reconnects is here twice for a moment,
    # and the end of its old connection must not remove the new one.
    members: dict[tuple[BrokerConnection, str], Member] = field(default_factory=dict)
    subscriptions: dict[str, RegisteredSubscription] = field(default_factory=dict)
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
        """Return the live members' ids, each once, in the order of their first heartbeats."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def earlier_of(self, connection: BrokerConnection, client_id: str) -> BrokerConnection | None:
        """Return the connection whose heartbeats came first under a member's id, if not its own."""
        # Without heartbeats of its own it is no second client: the tasks of a Spark query ask for
        # the locks of their driver, under its id.
        if (connection, client_id) not in self.members:
            return None
        first = next(own for own, name in self.members if name == client_id)
        return None if first is connection else first

    def notify_members(self) -> None:
        """Tell every member that the members changed, including the one that joined."""
        # A broadcasting member consumes every queue, whoever else is there.
        if self.message_model == BROADCASTING:
            return
        # One notice per connection: several members of one process share it.
        for connection in dict.fromkeys(connection for connection, _ in self.members):
            notify_rebalance(connection, self.name)

    def subscribe(self, data: ConsumerData) -> bool:
        """Replace the subscriptions by a heartbeat's; return True if the topics changed."""
        before = set(self.subscriptions)
        for subscription in data.subscriptions:
            known = self.subscriptions.get(subscription.topic)
            # An older version is a late heartbeat of a member that has not resubscribed yet.
            if known is None or subscription.version > known.subscription.version:
                self.subscriptions[subscription.topic] = RegisteredSubscription(
                    subscription, subscription.tag_hashes
                )
        # As in Java, the last heartbeat decides for the whole group: members must subscribe alike.
        named = {subscription.topic for subscription in data.subscriptions}
        for topic in before - named:
            del self.subscriptions[topic]
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        return named != before


class GroupTable:
    """All consumer groups known to the broker; their settings are durable, members are not."""

    def __init__(self, store: Store, config: BrokerConfig) -> None:
        self._store = store
        self._config = config
        self._groups: dict[str, Group] = {}
        for name, text in store.rows("SELECT name, config FROM groups"):
            self._groups[str(name)] = Group(str(name), json_text.loads(str(text)))

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    def all(self) -> list[Group]:
        return list(self._groups.values())

    def ensure(self, name: str) -> Group:
        """Return the group, created with the default settings if it is new.

        Raises: ConfigError: an illegal name.
        """
        found = self._groups.get(name)
        if found is None:
            check_group(name)
            found = self._groups[name] = Group(name, self._defaults(name))
        return found

    def put(self, settings: dict[str, Any], done: Done) -> None:
        """Create or change a group's settings; `done` is called once they are durable.

        Raises: ConfigError: an illegal name.
        """
        name = str(settings.get("groupName") or "")
        check_group(name)
        complete = self._defaults(name) | settings

        def finish(error: StoreError | None) -> None:
            if error is None:
                self.ensure(name).settings = complete
            done(error)

        text = json_text.dumps(complete).decode()
        put = Statement("INSERT OR REPLACE INTO groups VALUES (?, ?)", (name, text))
        self._store.submit(Write(finish, statements=[put]))

    def remove(self, name: str, done: Done, more: Sequence[Statement] = ()) -> None:
        """Forget a group's settings; a group with live members stays, with default settings.

        Args:
            more: statements of the same write.
        """

        def finish(error: StoreError | None) -> None:
            if error is None:
                group = self._groups.get(name)
                if group is not None and group.members:
                    group.settings = self._defaults(name)
                else:
                    self._groups.pop(name, None)
            done(error)

        delete = Statement("DELETE FROM groups WHERE name = ?", (name,))
        self._store.submit(Write(finish, statements=[delete, *more]))

    def register(self, member: Member, data: ConsumerData) -> tuple[Group, bool]:
        """Record a heartbeat; return its group, and True if members or topics changed."""
        group = self.ensure(data.group)
        # Replaced even if known: the new object has the time of this heartbeat.
        key = member.connection, member.client_id
        is_new = key not in group.members
        group.members[key] = member
        return group, group.subscribe(data) or is_new

    def leave(self, name: str, connection: BrokerConnection, client_id: str) -> Group | None:
        """Remove a member that unregistered; return its group if it was a member."""
        group = self._groups.get(name)
        if group is None or group.members.pop((connection, client_id), None) is None:
            return None
        return group

    def disconnect(self, connection: BrokerConnection) -> list[Group]:
        """Remove every member of a closed connection; return the groups that changed."""
        changed = []
        # Every group is searched: a closed connection is rare, and an index of connections would
        # have to be maintained with every heartbeat.
        for group in self._groups.values():
            keys = [key for key in group.members if key[0] is connection]
            for key in keys:
                del group.members[key]
            if keys:
                changed.append(group)
        return changed

    def expire(self, now_ms: int) -> tuple[list[Group], list[Member]]:
        """Remove members without a heartbeat for too long; return their groups, and them."""
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
        # The fields of RocketMQ 5's SubscriptionGroupConfig; its tools require all of them.
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


class ProducerTable:
    """Live producers: connections by producer group, each with the time of its last heartbeat."""

    def __init__(self, config: BrokerConfig) -> None:
        self._expiry_ms = config.client_expiry_ms
        self._groups: dict[str, dict[BrokerConnection, int]] = {}
        self._clients: dict[str, BrokerConnection] = {}  # by client id, for request-reply

    def register(
        self, group: str, client_id: str, connection: BrokerConnection, now_ms: int
    ) -> None:
        """Record a heartbeat."""
        self._groups.setdefault(group, {})[connection] = now_ms
        self._clients[client_id] = connection

    def client(self, client_id: str) -> BrokerConnection | None:
        """Return the connection of a client's last heartbeat as a producer."""
        return self._clients.get(client_id)

    def leave(self, group: str, connection: BrokerConnection) -> None:
        """Remove a producer that unregistered."""
        members = self._groups.get(group, {})
        members.pop(connection, None)
        if not members:
            self._groups.pop(group, None)

    def disconnect(self, connection: BrokerConnection) -> None:
        """Forget a closed connection."""
        for group in list(self._groups):
            self.leave(group, connection)
        # Only if it still is this connection: the client may have reconnected already.
        for client_id in [name for name, own in self._clients.items() if own is connection]:
            del self._clients[client_id]

    def next_of(self, group: str, now_ms: int) -> BrokerConnection | None:
        """Return a live producer of the group, in rotation; None if there is none."""
        members = self._groups.get(group, {})
        # Silent producers are removed only here: nothing else asks whether they are alive.
        for connection, heartbeat_ms in list(members.items()):
            del members[connection]
            if now_ms - heartbeat_ms <= self._expiry_ms:
                members[connection] = heartbeat_ms  # to the end: the next call gets another one
                return connection
        return None


def notify_rebalance(connection: BrokerConnection, group: str) -> None:
    """Ask one client to rebalance a group now, instead of at its next interval."""
    request = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(group).to_ext())
    request.flag = ONEWAY_FLAG
    connection.send(encode(request))
