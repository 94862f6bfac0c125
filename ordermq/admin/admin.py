"""Admin: looks at a cluster and changes it, for operators and their scripts."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Unpack, cast

from ordermq.admin.check import CheckStep, ConnectionCheck
from ordermq.admin.dead_letters import DeadLetters, DeadLetterTopics, Redriven
from ordermq.admin.doctor import Doctor, Finding
from ordermq.admin.groups import Groups, GroupState, GroupSummary
from ordermq.admin.message_search import FoundMessage, MessageSearch, require_one
from ordermq.admin.parked import ParkedKey, ParkedTopics
from ordermq.admin.reset import QueueReset, Resets
from ordermq.admin.topics import (
    Place,
    Topics,
    TopicState,
    TopicSummary,
    require_no_time,
    require_place,
    time_hint,
)
from ordermq.client.session import ClientSession
from ordermq.clock import Clock
from ordermq.closing import Closing
from ordermq.config import ClientConfig, ProducerConfig, RemotingConfig
from ordermq.config.checks import refuse_unknown
from ordermq.config.foreign_methods import ExplainsMethods
from ordermq.errors import ConfigError
from ordermq.model.message import MessageView
from ordermq.model.message_queue import MessageQueue
from ordermq.model.names import check_group, check_sendable_topic, check_topic, group_named
from ordermq.producer.producer import Producer
from ordermq.wall_time import time_of

if TYPE_CHECKING:
    from ordermq.config.settings import RemotingSettings

_MOST_PEEKED = 10_000


class Admin(ExplainsMethods, Closing):
    """Administers the cluster behind these name servers: RocketMQ's, or an embedded broker.

    It joins no group, and does nothing by itself: each call asks the brokers and returns with
    their answers. Any thread may call.

    Args:
        name_servers: `host:port`, several joined by `;`, or a list of them; default those of the
            environment variable ORDERMQ_NAME_SERVERS.
        clock: for tests.
        settings: of `RemotingConfig`, flat: accounts, TLS, namespaces, time-outs.
    Raises: ConfigError: a setting that is unknown or out of its range.

    Every call may raise RouteError (no name server answers, or no broker has the topic),
    BrokerError (refused) and other RemotingErrors (not answered).
    """

    _kind = "admin"

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        clock: Clock | None = None,
        **settings: Unpack[RemotingSettings],
    ) -> None:
        config = RemotingConfig.of(**settings)
        servers = ClientConfig().name_servers_or(name_servers)
        self._client = ClientSession(servers, config, clock=clock)
        self._topics = Topics(self._client)
        self._groups = Groups(self._client, self._topics)
        self._resets = Resets(self._client, self._topics)
        self._parked = ParkedTopics(self._client, self._topics)
        self._search = MessageSearch(self._client, self._topics)
        self._check = ConnectionCheck(self._client, self._topics, self._groups)
        open_producer = partial(
            Producer,
            "ordermq-redrive",
            name_servers=list(self._client.name_servers.addresses),
            config=ProducerConfig(remoting=config),
            clock=clock,
        )
        self._dead_letters = DeadLetterTopics(self._client, self._topics, open_producer)
        self._doctor = Doctor(
            self._client,
            self._topics,
            self._groups,
            self._dead_letters,
            self._check,
            open_producer,
        )

    def __repr__(self) -> str:
        return f"<Admin of {';'.join(self._client.name_servers.addresses)}>"

    def close(self) -> None:
        """Disconnect; a second call does nothing."""
        self._client.close()

    def check(self, *, topic: str | None = None, group: str | None = None) -> list[CheckStep]:
        """Try each step from the name servers to the brokers; return which work, and why not.

        Args:
            topic, group: look for them, too.
        """
        return self._client.call(self._check.run(topic, group))

    def doctor(
        self, *, topic: str | None = None, group: str | None = None, sends: bool = True
    ) -> list[Finding]:
        """Look for what is wrong, and say what to do: as `check`, and further.

        Each broker's version, settings, disk, load and clock, and the group's settings, members,
        subscriptions, lag and dead letters.

        Args:
            topic: look at it, too.
            group: or its retry or dead-letter topic; look at it, too.
            sends: send a message through each broker and read it. The topic `ordermq_doctor` is
                created for that, and deleted again unless it was there.
        """
        group = None if group is None else group_named(group)
        return self._doctor.run(topic, group, sends)

    # Topics.

    def topics(self, *, with_internal: bool = False) -> list[TopicSummary]:
        """Return the topics of the cluster, sorted by name.

        Args:
            with_internal: also retry and dead-letter topics, and the brokers' own.
        """
        return self._client.call(self._topics.summaries(with_internal=with_internal))

    def _place(self, name: str, place: Place | timedelta) -> Place:
        """Return a place with an age, or a time as a text, made a time.

        Raises: ConfigError: it is no place.
        """
        moment = time_of(place, self._client.clock.wall_ms())
        if moment is not None:
            return moment
        require_place(place, name)
        return cast(Place, place)

    def _start(self, start: Place | timedelta) -> Place:
        place = self._place("start", start)
        require_no_time(place, "start")
        return place

    def _moment(self, at: object) -> datetime:
        moment = time_of(at, self._client.clock.wall_ms())
        if moment is None:
            raise ConfigError(f"at={at!r}: expected a datetime, or an age as '2h'{time_hint(at)}")
        return moment

    def topic(self, name: str) -> TopicState:
        """Return the offsets of a topic's queues, and the groups that consume it."""
        return self._client.call(self._topics.look(check_topic(name)))

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        brokers: Sequence[str] = (),
        message_type: str | None = None,
        stores_batches: bool = False,
        **unknown: Never,
    ) -> TopicState:
        """Create a topic, and return once producers find all of its queues.

        An ordered topic should be created before its first message: a send that creates it uses
        the producer's number of queues, and more queues later move keys to other queues.

        Args:
            queues: at each broker.
            brokers: names of the brokers that get it; default all of the cluster.
            message_type: what RocketMQ 5's proxy lets into it: NORMAL, which is its default, FIFO,
                DELAY, TRANSACTION or MIXED. Brokers take everything, whatever the type.
            stores_batches: RocketMQ 5 stores what Spark's sink, or Java's producer, sends in one
                request as one record (docs/spark.md#batch-topics): for topics that are written
                and read in bulk.
        Raises:
            ConfigError: an illegal name, a number out of range, a broker that is not known.
            StateError: the topic exists; it was created, and a broker does not store batches.
        """
        if unknown:
            refuse_unknown(Admin.create_topic, unknown)
        brokers = (brokers,) if isinstance(brokers, str) else brokers
        return self._client.call(
            self._topics.create(
                check_topic(name), queues, brokers, message_type, stores_batches=stores_batches
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its messages, at every broker and name server.

        Members that consume it go on asking for it; producers would create it again.
        """
        self._client.call(self._topics.delete(check_topic(name)))

    def peek(
        self,
        topic: str,
        count: int = 10,
        *,
        start: Place | timedelta = "last",
        queues: Sequence[int] = (),
    ) -> list[MessageView]:
        """Return messages of a topic without joining a group; nothing is committed.

        Args:
            count: of all queues together, 1..10000.
            start: "last": the newest ones; "first": the oldest that the brokers have; a datetime,
                or an age as "2h": those stored from then on; a number: those from this offset on,
                of each queue.
            queues: numbers of the queues to read; default all.
        Returns: the oldest first, by the time they were stored.
        Raises: ConfigError: an argument out of its range, a queue that does not exist.
        """
        start = self._start(start)
        _require_count(count, topic=topic)
        return self._client.call(self._topics.peek(check_topic(topic), start, count, queues))

    # Groups.

    def groups(self) -> list[GroupSummary]:
        """Return the groups that the brokers know, sorted by name, without their own ones."""
        return self._client.call(self._groups.summaries())

    def create_group(self, name: str, *, is_orderly: bool = False) -> None:
        """Create a group at every broker, before its first member joins.

        Needed where brokers create none themselves (`autoCreateSubscriptionGroup=false`), and for
        ordered groups of RocketMQ 5's gRPC clients.

        Args:
            is_orderly: RocketMQ's `consumeMessageOrderly`: the proxy gives gRPC clients of the
                group the messages of each queue in order. Other clients, and brokers before 5.0,
                ignore it: there a consumer chooses by its listener.
        Raises:
            ConfigError: an illegal name.
            StateError: the group exists.
        """
        self._client.call(self._groups.create(check_group(name), is_orderly))

    def delete_group(
        self, name: str, *, force: bool = False, with_dead_letters: bool = False
    ) -> bool:
        """Delete a group at every broker: its settings, its offsets, what waits for a retry.

        A later group of this name is a new one: it begins where `consume_from_where` says, which
        is the end by default. An offset store of your own (`SqlOffsetStore`) keeps its rows.

        Args:
            force: also while members are online. They go on, and make the group again: with their
                next commits where they are, without offsets of the queues that they do not hold.
            with_dead_letters: also delete its dead-letter topic; otherwise dead letters stay, and
                `peek` and `redrive` find them.
        Returns: whether its offsets are gone. Brokers before RocketMQ 5 keep them: there a group
            of this name goes on where this one was, unless `reset` moves it.
        Raises:
            ConfigError: an illegal name.
            StateError: members are online, or no broker knows the group. Nothing was deleted.
        """
        return self._client.call(
            self._groups.delete(
                check_group(name), is_forced=force, with_dead_letters=with_dead_letters
            )
        )

    def group(
        self, name: str, topics: Sequence[str] = (), *, ask_members: bool = True
    ) -> GroupState:
        """Return the state of a group: progress, members, holders of queues, locks.

        Args:
            name: the group, or its retry or dead-letter topic.
            topics: default all that its members subscribe to or that it has offsets for.
            ask_members: also ask each member for its queues, through its broker.
        """
        return self._client.call(self._groups.look(group_named(name), topics, ask_members))

    def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        offset: int | None = None,
        at: datetime | timedelta | str | None = None,
        queues: Sequence[int] = (),
        count: int = 32,
        parking_topic: str | None = None,
    ) -> list[FoundMessage]:
        """Find messages of a topic, and where each is in each group: waiting, done or dead.

        What a group with `ParkKey("a-topic")` has parked is "done" in its queue, whose commits go
        on; with `parking_topic` it is told as "parked".

        Args:
            key: one of a message's `keys`.
            message_id: of the producer, as receipts have it, or of the broker.
            offset: of each queue, or of `queues`.
            at: the first messages that were stored then or later; a datetime, or an age as "2h".
            count: at most so many, the newest by a key; 1..10000.
            parking_topic: that of `ParkKey`, which no broker names; it is read whole.
        Returns: the oldest first; [] if there is none.
        Raises: ConfigError: not exactly one of key, message_id, offset and at, or of another type.
        """
        require_one(key=key, message_id=message_id, offset=offset, at=at)
        require_no_time(offset, "offset")
        topic = check_topic(topic)
        moment = None if at is None else self._moment(at)
        _require_count(count, topic=topic)
        search = self._search
        if parking_topic is not None:
            parking_topic = check_topic(parking_topic)

        async def work() -> list[FoundMessage]:
            if key is not None:
                found = await search.by_key(topic, key, count)
            elif message_id is not None:
                found = await search.by_id(topic, message_id, count)
            elif moment is not None:
                found = await search.at_time(topic, moment, count)
            else:
                assert offset is not None
                found = await search.at_offset(topic, offset, queues)
            parked = set() if parking_topic is None else await self._parked.places(parking_topic)
            return await search.with_groups(topic, found, parked)

        return self._client.call(work())

    def reset(
        self,
        group: str,
        topic: str,
        to: Place | timedelta,
        *,
        queues: Sequence[int] = (),
        wait_s: float = 30.0,
    ) -> list[QueueReset]:
        """Move a group to other offsets of a topic, forward or back.

        Live members are asked through their brokers, and each moves as soon as its running batch
        has ended: nothing runs twice at the same time. The call waits until all have heard of it,
        and repeats what a queue's member has not. While no member is online the offsets are stored
        under the queues' locks.

        Args:
            to: "first", "last", a datetime or an age as "2h" (the first message stored then or
                later), or an offset
                within the messages, or at the end, of each queue. Live members that a broker moves
                by time may begin some messages earlier: `after` of a queue tells.
            queues: numbers of the queues; default all.
            wait_s: the longest time to wait for members, which hear of it with a pull.
                `is_confirmed` of a queue tells whether its member has.
        Raises:
            ConfigError: an argument out of its range, as an offset that a queue does not have, or a
                time to come; a queue that does not exist. Nothing was moved.
            StateError: members are online, and brokers before RocketMQ 5.2 cannot move them so: an
                offset, single queues, or queues without a committed offset.
            LockRefused: a member that is not online still holds a lock.
        """
        to = self._place("to", to)
        is_number = isinstance(wait_s, (int, float)) and not isinstance(wait_s, bool)
        if not is_number or not 0 <= wait_s < math.inf:
            raise ConfigError(f"wait_s={wait_s!r}: expected a number of seconds, 0 or more")
        return self._client.call(
            self._resets.reset(
                check_group(group_named(group)), check_topic(topic), to, queues, int(wait_s * 1000)
            )
        )

    # Dead letters.

    def dead_letters(self) -> list[DeadLetters]:
        """Return the groups that have dead letters, sorted; `peek("%DLQ%billing")` reads them.

        `FailureStory.of(letter)` tells why one is there.
        """
        return self._client.call(self._dead_letters.summaries())

    def redrive_offsets(self, group: str) -> dict[MessageQueue, int]:
        """Return how far the dead letters of a group were sent again.

        Args: group: or its dead-letter topic, `%DLQ%billing`.
        Returns: per queue of the dead-letter topic the offset of the first letter that `redrive`
            sends next; its end if none is left. {} if the group has no dead letters.
        """
        return self._client.call(self._dead_letters.next_offsets(group_named(group)))

    def waiting_letters(
        self, group: str, count: int = 10, *, start: Place | timedelta = "first"
    ) -> list[MessageView]:
        """Return dead letters of a group that were neither sent again nor skipped.

        Args:
            group: or its dead-letter topic, `%DLQ%billing`.
            count, start: as of `peek`.
        Returns: the oldest first; [] if none waits.
        """
        start = self._start(start)
        _require_count(count, group=group)
        group = check_group(group_named(group))
        return self._client.call(self._dead_letters.waiting(group, start, count))

    def redrive(
        self,
        group: str,
        *,
        count: int | None = None,
        to_topic: str | None = None,
        message_id: str | None = None,
        body: bytes | None = None,
    ) -> Redriven:
        """Send a group's dead letters again, each to the topic it came from.

        Letters of one sharding key are sent in the order in which they were given up, and go to
        the key's queue, behind what was sent there since. Letters that were sent again are
        remembered and not sent by a later call; after a crash up to 256 are repeated. The letters
        themselves stay until the broker deletes them for their age.

        Where later messages of a letter's key were consumed meanwhile, its order is broken:
        `overtaken_by` of the result counts those that were stored behind the letters.

        Args:
            group: or its dead-letter topic, `%DLQ%billing`.
            count: at most so many; default all that wait now.
            to_topic: another topic for all of them.
            message_id: only the letter with this id, as `MessageView.message_id` has it.
            body: a corrected body for that letter; default its own.
        Raises:
            ConfigError: a letter does not say which topic it came from; give `to_topic`.
            DecodeError: a letter's body cannot be read, or is empty: it is not sent, nor are those
                behind it.
            StateError: no letter has this id, or it was sent again or skipped before.
            OrderingError: older letters of its key wait, which it would overtake.
            LockRefused: another call does the same at this moment.
            Others as `Producer.send`: what was sent before is remembered, and a note of the error
                names the letter, behind which none was sent.
        """
        if count is not None and (type(count) is not int or count < 1):
            raise ConfigError(f"count={count!r}: expected a whole number, 1 or more")
        if to_topic is not None:
            to_topic = check_sendable_topic(to_topic)
        group = check_group(group_named(group))
        if message_id is None:
            if body is not None:
                raise ConfigError("body= is of one letter: give its message_id=, too")
            return self._dead_letters.redrive(group, count, to_topic)
        if count is not None:
            raise ConfigError("count= and message_id= exclude each other: an id names one letter")
        if body is not None and not isinstance(body, bytes):
            raise ConfigError(f"body: expected bytes, got {type(body).__name__}")
        return self._dead_letters.redrive_one(group, message_id, to_topic, body)

    def skip_letter(self, group: str, message_id: str) -> MessageView:
        """Have a dead letter count as handled: `redrive` leaves it out from now on.

        The letter itself stays until the broker deletes it for its age.

        Args: group: or its dead-letter topic, `%DLQ%billing`.
        Returns: the letter.
        Raises:
            StateError: no letter has this id, or it was sent again or skipped before.
            LockRefused: another call sends this group's letters again at this moment.
        """
        return self._dead_letters.skip(check_group(group_named(group)), message_id)

    # Parked keys.

    def parked(self, topic: str, *, group: str | None = None) -> list[ParkedKey]:
        """Return the keys that groups with `ParkKey(topic)` hold back in this topic, sorted.

        The whole topic is read.

        Args:
            group: only this group's.
        """
        return self._client.call(self._parked.summaries(check_topic(topic), group))

    def parked_messages(self, topic: str, group: str, key: str) -> list[MessageView]:
        """Return the parked messages of a key, in order, as they were in their own queue."""
        return self._client.call(self._parked.messages(check_topic(topic), group, key))

    def redrive_parked(self, topic: str, group: str, keys: Collection[str] = ()) -> list[ParkedKey]:
        """Ask to go on with parked keys, as `consumer.unpark` does in the program itself.

        The member that holds a key's queue looks every 2 s. It calls its listener with the key's
        parked messages in their order, before newer ones of the key. If the listener fails again,
        the rest stays parked. While no member holds the queue, the request waits.

        Args:
            keys: default all that the group has parked there.
        Returns: the keys that were asked for; `parked` shows those that are left.
        Raises: StateError: one of the keys is not parked.
        """
        keys = (keys,) if isinstance(keys, str) else keys
        return self._client.call(self._parked.redrive(check_topic(topic), check_group(group), keys))


def _require_count(count: object, **where: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_PEEKED:
        raise ConfigError(f"count={count!r}: expected 1..{_MOST_PEEKED}", **where)
