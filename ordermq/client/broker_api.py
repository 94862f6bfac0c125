"""Requests to brokers: one typed method each; an answer other than success raises."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ordermq import json_text
from ordermq.client.connections import Connections, is_denied
from ordermq.config import RemotingConfig
from ordermq.core import status
from ordermq.errors import BrokerError, Fenced, ProtocolError, RequestTooLarge
from ordermq.model.message import MessageBatch
from ordermq.model.message_queue import MessageQueue
from ordermq.model.subscription import Subscription
from ordermq.remoting.bodies import (
    PULL_NOW,
    Heartbeat,
    LockBatch,
    MemberSubscriptions,
    assignment_to_body,
    client_ids_from_body,
    locked_queues_from_body,
    member_subscriptions_from_body,
    request_mode_from_body,
    subscription_to_json,
)
from ordermq.remoting.codes import OFFSET_RESET, RequestCode, ResponseCode
from ordermq.remoting.command import Command, next_opaque
from ordermq.remoting.connection import Connection
from ordermq.remoting.framing import Framing, PullFrames, SendFrames, send_code
from ordermq.remoting.headers import (
    GroupHeader,
    Header,
    LockExtHeader,
    OffsetReplyHeader,
    PullHeader,
    PullReplyHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    SendBackHeader,
    SendHeader,
    SendReplyHeader,
    TopicHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
)
from ordermq.remoting.response_futures import ResponseFuture
from ordermq.value import Value

if TYPE_CHECKING:
    from ordermq.remoting.rare_headers import (
        EndTransactionHeader,
        RecallHeader,
    )

# The broker gives the member it asks 10 s; less here would report a slow member as a lost one.
_RELAY_TIMEOUT_MS = 10_000
# All of them mean stored; the last three only less durable than the broker's settings ask for.
# "msg body length limit 4194304B" of RocketMQ, "message body of 9 bytes" of the embedded broker.
_BODY_SIZE = r"body (?:length limit (\d+)B|of \d+ bytes)"
# RocketMQ, of a request with several messages: the exception of its encoder, by code 1.
_NO_BATCH_SO_LARGE = "message body size exceeded"
_PROXY_MARK = "TRACE_ON"  # a field of every answer of RocketMQ's proxy
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
# Not failures: no message yet (19), ask again at once (20), offset outside the queue (21).
_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


# Java's broker reads the end of a queue before it reads messages, and those that arrive meanwhile
# are in its answer; where a file of its index is missing it goes on at the next one, of 300,000.
MAX_PAST_END = 1 << 20
_QUEUE_ID_AT, _QUEUE_OFFSET_AT, _PHYSICAL_OFFSET_AT = 12, 20, 28  # in a record


class LockGrant(Value):
    """Answer to a lock request.

    Args:
        granted: the locked queues with their epochs; 0 from a broker without epochs.
        lease_ms: time the broker keeps a lock without renewal; None if it did not say.
        broker_id: identity of the broker's store; None from a broker without durable locks.
    """

    granted: dict[MessageQueue, int]
    lease_ms: int | None
    broker_id: str | None


class BrokerApi:
    """Requests of one client; `address` is the broker's. Coroutines run on the I/O thread."""

    def __init__(self, connections: Connections, config: RemotingConfig, client_id: str) -> None:
        self._connections = connections
        self._config = config
        self._framing = Framing(config)
        self._client_id = client_id

    async def send(
        self, address: str, header: SendHeader, body: bytes, timeout_ms: int
    ) -> tuple[int, SendReplyHeader]:
        """Store a message or a batch (docs/internals/protocol.md#sending).

        Returns: the response code, which says how durable it is, and the reply.
        Raises:
            BrokerError, ConnectFailed: it is not stored.
            RequestTimeout, ConnectionLost: unknown whether it is stored.
        """
        command = self._send_command(header, body)
        answer = await self._connections.request(address, command, timeout_ms)
        return self._stored(address, header, len(body), answer)

    # Sends and pulls of the hot path come in two halves: `begin_send` and `stored`, `begin_pulls`
    # and `pulled`. Their callers wait for many responses at once, without a coroutine per request.

    def pull_frames(self, header: PullHeader) -> PullFrames:
        """Return the frames of pulls with this header.

        Raises: ConfigError: a name with its namespace is too long.
        """
        return PullFrames(header, self._framing)

    def send_frames(self, header: SendHeader) -> SendFrames:
        """Return the frames of sends with this header, for `begin_send`."""
        self._set_unit_mode(header)
        return SendFrames(header, self._framing)

    def begin_send(
        self,
        address: str,
        header: SendHeader,
        frames: SendFrames,
        body: bytes,
        timeout_ms: int,
        waiting: ResponseFuture | None,
    ) -> bool:
        """Send without waiting; `waiting` gets the answer, which `stored` reads. Any thread.

        Args:
            frames: of the header, by `send_frames`.
            waiting: None sends one-way, without an answer; only on the I/O thread.
        Returns: False if nothing was sent: the connection is not open, or accepts no bytes now
            (await `writable`), or none from this thread.
        """
        connection = self._connections.writable_now(address)
        if connection is None:
            return False
        # Encoded before the write, outside of any lock: only the write itself is serialized.
        if waiting is None:
            connection.send_oneway(self._send_command(header, body))
            return True
        opaque = next_opaque()
        frame = frames.frame(header, opaque, body)
        waiting.code = send_code(header)
        return connection.ask(opaque, frame, waiting, timeout_ms)

    def begin_reply(
        self,
        address: str,
        header: SendHeader,
        body: bytes,
        timeout_ms: int,
        waiting: ResponseFuture,
    ) -> bool:
        """Send a reply as `begin_send` does; the broker pushes it to the requester."""
        connection = self._connections.writable_now(address)
        if connection is None:
            return False
        command = Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_ext(), body)
        waiting.code = command.code
        return connection.ask(command.opaque, connection.frame(command), waiting, timeout_ms)

    async def writable(self, address: str) -> None:
        """Return once the connection to a broker is open and accepts bytes.

        Raises: ConnectFailed: it cannot be opened. StateError: the client is closed.
        """
        await self._connections.writable(address)

    def _send_command(self, header: SendHeader, body: bytes) -> Command:
        self._set_unit_mode(header)
        return Command.request(send_code(header), header.to_ext(), body)

    def _set_unit_mode(self, header: SendHeader) -> None:
        # Absent rather than "false", which means the same in more bytes per message.
        header.unit_mode = self._config.unit_mode or None

    def stored(
        self, address: str, header: SendHeader, body_bytes: int, answer: Command
    ) -> tuple[int, SendReplyHeader]:
        """Read the answer to a `begin_send` of `body_bytes` bytes.

        Raises: BrokerError: nothing was stored. ProtocolError: the answer is malformed.
        """
        return self._stored(address, header, body_bytes, self._connections.explained(answer))

    def _stored(
        self, address: str, header: SendHeader, body_bytes: int, answer: Command
    ) -> tuple[int, SendReplyHeader]:
        if answer.code not in _STORED:
            # Java's remarks name the check that failed, but not what a sender can change.
            why = answer.remark or "broker refused the message"
            kind = BrokerError
            if is_about_size(why, body_bytes):
                kind, why = RequestTooLarge, with_remedy(why, body_bytes)
            elif answer.code == ResponseCode.MESSAGE_ILLEGAL and "TopicMessageType" in why:
                why += (
                    "; RocketMQ's proxy checks the topic's attribute message.type: make it MIXED "
                    "for messages with and without keys, or set the proxy's "
                    "enableTopicMessageTypeCheck=false"
                )
            elif answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                why += (
                    "; nothing was stored: free space on the broker's disk, or see its store.log, "
                    "then send again"
                )
            raise kind(
                why,
                response_code=answer.code,
                topic=header.topic,
                broker=header.broker_name,
                queue_id=header.queue_id,
                address=address,
            )
        return answer.code, SendReplyHeader.from_ext(answer.ext)

    async def send_back(self, address: str, header: SendBackHeader) -> None:
        """Send a consumed message back for a later retry (docs/internals/protocol.md#sending).

        Raises: BrokerError: it does not have the message, or does not know the group.
        """
        # The broker creates the retry topic with this request if needed, and marks it accordingly.
        header.unit_mode = self._config.unit_mode
        command = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
        timeout_ms = self._config.offset_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(
            answer, "broker did not take the message back for a retry", address, group=header.group
        )

    def pushed(self, address: str, answer: Command) -> SendReplyHeader:
        """Read the answer to `begin_reply`, which comes when the requester has the reply.

        Raises: BrokerError: the broker could not push it. ProtocolError: the answer is malformed.
        """
        failure = (
            "broker could not push the reply: the requester no longer waits, lost its "
            "connection to this broker, or was never connected"
        )
        self._check(self._connections.explained(answer), failure, address)
        return SendReplyHeader.from_ext(answer.ext)

    async def recall(self, address: str, header: RecallHeader, timeout_ms: int) -> str:
        """Cancel a timed message; return its id.

        Raises: BrokerError: too late, no such message, or the broker does not support it.
        """
        from ordermq.remoting.rare_headers import RecallReplyHeader  # of few, as `header`

        command = Command.request(RequestCode.RECALL_MESSAGE, header.to_ext())
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker did not recall the message", address)
        return RecallReplyHeader.from_ext(answer.ext).message_id

    async def end_transaction(
        self,
        address: str,
        header: EndTransactionHeader,
        timeout_ms: int | None = None,
        remark: str | None = None,
    ) -> None:
        """Commit or roll back a half message, or report its state as unknown
        (docs/internals/protocol.md#sending).

        Args:
            timeout_ms: time to wait for the answer; None sends one-way, as all of Java's clients
                do. Brokers never answer the state "unknown".
            remark: the reason, for the broker's log.
        Raises: BrokerError: it was refused, or a proxy answered instead of the broker.
            RequestTimeout, ConnectionLost: unknown.
        """
        command = Command.request(RequestCode.END_TRANSACTION, header.to_ext())
        command.remark = remark
        if timeout_ms is None:
            # The broker asks later if this is lost, so one-way is safe, only slower then.
            connection = await self._connections.get(address)
            connection.send_oneway(command)
            return
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(
            answer, "broker did not end the transaction", address, group=header.producer_group
        )
        # RocketMQ's proxy answers before it has asked a broker, and asks none unless it relayed a
        # check of this transaction (its TransactionProcessor): any other commit is stored after the
        # broker's next check, perhaps behind later ones. It marks its answers; brokers do so with
        # those to sends and pulls only.
        if _PROXY_MARK in answer.ext and not header.is_from_check:
            raise BrokerError(
                "RocketMQ's proxy confirms no transaction: it is committed once the broker asks, "
                "and may then follow later messages of its key",
                response_code=answer.code,
                group=header.producer_group,
                address=address,
            )

    async def pull(
        self, address: str, header: PullHeader, timeout_ms: int
    ) -> tuple[int, PullReplyHeader, bytes]:
        """Pull messages of one queue (docs/internals/protocol.md#pulling).

        Returns: code 0, 19, 20 or 21, the offsets, and the stored records, which `batch` reads.
        Raises: BrokerError: any other code. ProtocolError: the offsets cannot be true.
        """
        command = Command.request(RequestCode.PULL_MESSAGE, header.to_ext())
        answer = await self._connections.request(address, command, timeout_ms)
        return self._pulled(address, header, answer)

    async def begin_pulls(self, address: str) -> Connection:
        """Return the connection for pulls sent by the caller; `pulled` reads their answers.

        Raises: ConnectFailed: it cannot be opened.
        """
        return await self._connections.writable(address)

    def pulled(
        self, address: str, header: PullHeader, answer: Command
    ) -> tuple[int, PullReplyHeader, bytes]:
        """Read the answer to a pull; returns and raises as `pull`."""
        return self._pulled(address, header, self._connections.explained(answer))

    def _pulled(
        self, address: str, header: PullHeader, answer: Command
    ) -> tuple[int, PullReplyHeader, bytes]:
        if answer.code not in _PULLED:
            why = answer.remark or "broker refused the pull"
            if "SQL92" in why:
                why += (
                    "; RocketMQ's brokers filter by SQL with enablePropertyFilter=true in their "
                    "broker.conf, others by tags only"
                )
            raise BrokerError(
                why,
                response_code=answer.code,
                topic=header.topic,
                broker=header.broker_name,
                queue_id=header.queue_id,
                group=header.group,
                offset=header.queue_offset,
                address=address,
            )
        reply, body = PullReplyHeader.from_ext(answer.ext), answer.body
        _check_offsets(header, answer, reply)
        if reply.offset_delta is not None:
            body = _as_logical(body, header.queue_id, reply.offset_delta)
        return answer.code, reply, body

    def batch(
        self,
        queue: MessageQueue,
        body: bytes,
        tags: tuple[bytes, ...],
        offset: int,
        next_offset: int,
    ) -> MessageBatch:
        """Index the records that answered a pull at `offset`, and check that they do.

        Raises: ProtocolError: they are damaged, or not of that queue from `offset` on and below
            `next_offset`; then none of them may be used.
        """
        config = self._config
        return MessageBatch(
            queue,
            body,
            tags,
            config.namespace,
            config.check_crcs,
            (queue.queue_id, offset, next_offset),
            config.max_decompressed_bytes,
        )

    async def query_offset(
        self, address: str, group: str, queue: MessageQueue, *, stored_only: bool = True
    ) -> int | None:
        """Return the group's committed offset of a queue, None if it has none
        (docs/internals/protocol.md#offsets).

        Args:
            stored_only: False: where there is none, a broker may answer 0 instead, which is where
                it lets new groups start. RocketMQ 4.9 does so in any case.
        """
        header = QueryOffsetHeader(
            group,
            queue.topic,
            queue.queue_id,
            set_zero_if_not_found=False if stored_only else None,
            broker_name=queue.broker_name,
        )
        command = Command.request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        timeout_ms = self._config.offset_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        # RocketMQ's broker answers 0 instead for a queue that still has its first message in memory
        # (rmq#9083): such a group starts at 0, whatever its `consume_from_where`.
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        self._check(answer, "broker did not return the committed offset", address, queue, group)
        return OffsetReplyHeader.from_ext(answer.ext).offset

    async def update_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        epoch: int = 0,
        reset: bool = False,
    ) -> None:
        """Commit an offset and await the acknowledgement.

        Args:
            epoch: lock epoch that must still be the current one
                (docs/internals/semantics.md#fencing); 0 commits unconditionally.
            reset: move the offset even backwards.
        Raises: Fenced: the epoch is not the current one. BrokerError: refused otherwise.
        """
        header = UpdateOffsetHeader(
            group, queue.topic, queue.queue_id, offset, broker_name=queue.broker_name
        )
        # RocketMQ's broker ignores these fields and commits unconditionally.
        if epoch:
            header.epoch, header.client_id = epoch, self._client_id
        if reset:
            header.reset = True
        command = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
        timeout_ms = self._config.offset_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        if answer.code == ResponseCode.OMQ_FENCED:
            raise Fenced(
                f"commit refused by the broker, {answer.remark}: the queue has a newer owner, "
                "which continues from the last committed offset",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
                group=group,
                offset=offset,
                epoch=epoch,
            )
        self._check(answer, "broker did not take the committed offset", address, queue, group)

    async def lock(
        self,
        address: str,
        group: str,
        queues: Sequence[MessageQueue],
        most_ms: int | None = None,
    ) -> LockGrant:
        """Acquire or renew locks of queues of one broker
        (docs/internals/semantics.md#broker-lock-table).

        Args:
            most_ms: wait no longer than this, if `lock_timeout_ms` is longer.
        """
        # The answer lists the queues that this client holds now, not the refused ones. A lock
        # survives the connection it was requested over: only unlock or its expiry end it.
        ext = LockExtHeader(epochs="1").to_ext()
        body = LockBatch(group, self._client_id, tuple(queues)).to_body()
        command = Command.request(RequestCode.LOCK_BATCH_MQ, ext, body)
        timeout_ms = self._config.lock_timeout_ms
        if most_ms is not None:
            timeout_ms = min(timeout_ms, most_ms)
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker refused the lock request", address, group=group)
        granted = locked_queues_from_body(answer.body)
        reply = LockExtHeader.from_ext(answer.ext)
        epochs = reply.epoch_list()
        # An answer with some epochs cannot be matched with its queues: take none of them.
        if len(epochs) != len(granted):  # RocketMQ's broker returns no epochs
            epochs = [0] * len(granted)
        asked = set(queues)
        held = {
            queue: epoch for queue, epoch in zip(granted, epochs, strict=True) if queue in asked
        }
        return LockGrant(held, reply.lease_ms, reply.broker_id)

    async def unlock(
        self, address: str, group: str, queues: Sequence[MessageQueue], epochs: Sequence[int]
    ) -> None:
        """Release locks and await the acknowledgement.

        Args:
            epochs: one per queue; 0 where the broker gave none.
        """
        # With epochs the embedded broker ignores an unlock that comes late, when the client has
        # locked the queue again meanwhile.
        ext = LockExtHeader(epochs=",".join(map(str, epochs))).to_ext() if all(epochs) else None
        body = LockBatch(group, self._client_id, tuple(queues)).to_body()
        command = Command.request(RequestCode.UNLOCK_BATCH_MQ, ext, body)
        timeout_ms = self._config.lock_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker refused the unlock request", address, group=group)

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the offset that the next message of the queue will get."""
        return await self._queue_offset(address, queue, RequestCode.GET_MAX_OFFSET)

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """Return the oldest offset that the broker still has."""
        return await self._queue_offset(address, queue, RequestCode.GET_MIN_OFFSET)

    async def search_offset(self, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time, ms since 1970."""
        header = SearchOffsetHeader(
            queue.topic, queue.queue_id, timestamp_ms, broker_name=queue.broker_name
        )
        return await self._offset(address, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return a broker's version, load, clock and use of its disk, by RocketMQ's names."""
        from ordermq.remoting.admin_bodies import runtime_info_from_body  # few ask

        command = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, "broker did not describe itself", address)
        return runtime_info_from_body(answer.body)

    async def heartbeat(self, address: str, heartbeat: Heartbeat) -> int:
        """Register at the broker; return the broker's version. Registered once this returns."""
        # Requests of one connection are handled in order: a pull sent after this one meets the
        # subscription that it needs.
        heartbeat = replace(heartbeat, unit_mode=self._config.unit_mode)
        command = Command.request(RequestCode.HEART_BEAT, body=heartbeat.to_body())
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker refused the heartbeat", address)
        return answer.version

    async def check_subscription(
        self, address: str, group: str, subscription: Subscription
    ) -> None:
        """Let the broker check a subscription's expression.

        Raises: BrokerError: it does not support or understand it.
        """
        body = json_text.dumps(
            {
                "clientId": self._client_id,
                "group": group,
                "subscriptionData": subscription_to_json(subscription),
            }
        )
        # Without this check, a broker that cannot filter by SQL would say so with each pull only.
        command = Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker refused the subscription", address)

    async def unregister(
        self,
        address: str,
        *,
        consumer_group: str | None = None,
        producer_group: str | None = None,
    ) -> None:
        """Unregister this client from a group."""
        header = UnregisterHeader(self._client_id, producer_group, consumer_group)
        command = Command.request(RequestCode.UNREGISTER_CLIENT, header.to_ext())
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker refused the unregistration", address)

    async def stores_batches(self, address: str, topic: str) -> bool:
        """Return True if this broker stores a batch of a topic as one record
        (docs/internals/protocol.md#batch-topics).

        Raises: RemotingError: it does not answer. BrokerError: it does not have the topic, does
            not know the request (4.9, the proxy), or does not allow it.
        """
        from ordermq.remoting.admin_bodies import stores_batches_from_body

        command = Command.request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic).to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker did not tell the settings of topic {topic!r}", address)
        return stores_batches_from_body(answer.body)

    async def addresses_of(self, address: str, group: str, client_id: str) -> list[str]:
        """Return the addresses from which a broker knows members of a group by a client id.

        Raises: RemotingError: it does not answer, or does not list them.
        """
        from ordermq.remoting.admin_bodies import connections_from_body

        command = Command.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupHeader(group).to_ext()
        )
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return []
        self._check(answer, "broker did not list the group's connections", address, group=group)
        return [
            member.address
            for member in connections_from_body(answer.body).members
            if member.client_id == client_id
        ]

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """Return the client ids of a group's live members, sorted; [] if there is none."""
        command = Command.request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group).to_ext()
        )
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        # Brokers answer SYSTEM_ERROR for a group without members
        # (docs/internals/protocol.md#membership).
        # An account without permission gets that code, too, and must not look like an empty group.
        is_none = answer.code == ResponseCode.SYSTEM_ERROR
        if is_none and not is_denied(answer.code, answer.remark):
            return []
        self._check(answer, "broker did not list the members", address, group=group)
        return client_ids_from_body(answer.body)

    async def check_group(self, address: str, group: str) -> None:
        """Check that a broker has the settings of a group.

        Raises: BrokerError: SUBSCRIPTION_GROUP_NOT_EXIST if it does not know the group; others
            from brokers before RocketMQ 5 and from proxies, which do not serve the request.
        """
        command = Command.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker has no settings of the group", address, group=group)

    async def request_mode(self, address: str, group: str, topic: str) -> str | None:
        """Return the request mode of a group's topic, PULL or POP; None without a queue.

        Raises: BrokerError: also from brokers before RocketMQ 5, which do not know the request.
        """
        # Only to learn the mode. The allocation in the answer is not used: members compute theirs
        # from the list of members, also with brokers that have no such request.
        body = assignment_to_body(self._client_id, group, topic)
        command = Command.request(RequestCode.QUERY_ASSIGNMENT, body=body)
        timeout_ms = self._config.request_timeout_ms
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, "broker did not return its assignment", address, group=group)
        return request_mode_from_body(answer.body)

    async def topic_statistics(self, address: str, topic: str) -> bytes:
        """Return what a broker says of a topic's queues; `queue_ends_from_body` reads it.

        Raises: BrokerError: it refuses the request.
        """
        # The bytes and not what they say: of an idle topic they are the same again, and comparing
        # them costs nothing beside reading the lines of a thousand queues.
        command = Command.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic).to_ext())
        answer = await self._connections.request(address, command, self._config.request_timeout_ms)
        self._check(answer, f"broker did not describe topic {topic!r}", address)
        return answer.body

    async def member_subscriptions(
        self, address: str, group: str, client_id: str
    ) -> MemberSubscriptions:
        """Return a member's subscriptions; the broker forwards the request to it."""
        return member_subscriptions_from_body(await self._running_info(address, group, client_id))

    async def _running_info(
        self, address: str, group: str, client_id: str, pull_now: str | None = None
    ) -> bytes:
        # Without the stacks of all threads, which are large and not needed here.
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        if pull_now is not None:
            ext[PULL_NOW] = pull_now  # brokers forward fields that they do not know
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        answer = await self._connections.request(address, command, _RELAY_TIMEOUT_MS)
        self._check(answer, f"member {client_id} did not answer", address, group=group)
        return answer.body

    async def _queue_offset(self, address: str, queue: MessageQueue, code: RequestCode) -> int:
        # committed: only messages that consumers may read already, on brokers with replicas.
        header = QueueHeader(
            queue.topic, queue.queue_id, committed=True, broker_name=queue.broker_name
        )
        return await self._offset(address, queue, code, header)

    async def _offset(
        self, address: str, queue: MessageQueue, code: RequestCode, header: Header
    ) -> int:
        timeout_ms = self._config.offset_timeout_ms
        command = Command.request(code, header.to_ext())
        answer = await self._connections.request(address, command, timeout_ms)
        self._check(answer, f"broker did not answer {code.name}", address, queue)
        return OffsetReplyHeader.from_ext(answer.ext).offset

    @staticmethod
    def _check(
        answer: Command,
        failure: str,
        address: str,
        queue: MessageQueue | None = None,
        group: str | None = None,
    ) -> None:
        if answer.code == ResponseCode.SUCCESS:
            return
        raise BrokerError(
            f"{failure}: {answer.remark}" if answer.remark else failure,
            response_code=answer.code,
            topic=queue.topic if queue else None,
            broker=queue.broker_name if queue else None,
            queue_id=queue.queue_id if queue else None,
            group=group,
            address=address,
        )


def is_about_size(remark: str, body_bytes: int) -> bool:
    """Return whether a broker's remark refuses a send because it has so many bytes."""
    if _NO_BATCH_SO_LARGE in remark:
        return True
    # RocketMQ has one code, and one remark, for a body that is too long and for other faults of a
    # message; only the number in it tells them apart.
    found = re.search(_BODY_SIZE, remark)
    return found is not None and body_bytes > int(found[1] or 0)


def with_remedy(remark: str, body_bytes: int) -> str:
    """Return such a remark, with what a sender can do."""
    return (
        f"{remark}; the request has {body_bytes} bytes: send less per request (max_batch_bytes), "
        "compress it, or raise the broker's maxMessageSize"
    )


def _check_offsets(header: PullHeader, answer: Command, reply: PullReplyHeader) -> None:
    """Raise ProtocolError if an answer would move the position of a queue to nowhere."""
    asked, following = header.queue_offset, reply.next_begin_offset
    is_reset = answer.code == ResponseCode.PULL_OFFSET_MOVED and answer.remark == OFFSET_RESET
    end = status.MAX_OFFSET if is_reset else max(reply.max_offset, asked) + MAX_PAST_END
    first = asked + 1 if answer.code == ResponseCode.SUCCESS else 0
    if not first <= following <= end:
        raise ProtocolError(
            f"a pull answered with code {answer.code} continues at {following} in a queue that "
            f"ends at {reply.max_offset}",
            topic=header.topic,
            broker=header.broker_name,
            queue_id=header.queue_id,
            offset=asked,
        )


def _as_logical(body: bytes, queue_id: int, delta: int) -> bytes:
    """Return the records of a static topic with the queue id and offsets that it shows
    (docs/internals/protocol.md#pulling).
    """
    logical = bytearray(body)
    at = 0
    while len(logical) - at >= _PHYSICAL_OFFSET_AT:
        (size,) = struct.unpack_from(">i", logical, at)
        (offset,) = struct.unpack_from(">q", logical, at + _QUEUE_OFFSET_AT)
        # A record that makes no sense is left as it is: `BrokerApi.batch` says what is wrong.
        if size < _PHYSICAL_OFFSET_AT or not 0 <= offset + delta <= status.MAX_OFFSET:
            break
        struct.pack_into(">i", logical, at + _QUEUE_ID_AT, queue_id)
        struct.pack_into(">q", logical, at + _QUEUE_OFFSET_AT, offset + delta)
        at += size
    return bytes(logical)
