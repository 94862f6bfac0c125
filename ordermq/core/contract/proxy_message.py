"""Requests to RocketMQ's proxy over gRPC, and its answers, that have a part per message."""

from __future__ import annotations

from typing import Protocol, TypeAlias

# Queue id, queue offset, message id and receipt handle (empty: it has none), stored record.
ProxyMessage: TypeAlias = "tuple[int, int, str, str, bytes]"
# Message ids, joined with commas, and of the first message queue offset, transaction id and recall
# handle; texts are empty where there is none.
StoredByProxy: TypeAlias = "tuple[str, int, str, str]"


class ReadProxyMessage(Protocol):
    """Type of `ordermq.core.read_proxy_message`."""

    def __call__(self, data: bytes, topic: str) -> ProxyMessage | None:
        """Read a part of the answer to a receive, and write its message as the stored record that
        brokers would send (docs/internals/protocol.md#grpc).

        Pure, any thread. O(size). Its hosts are zeros: the proxy tells addresses as texts.

        Args:
            data: a `ReceiveMessageResponse` of the definition.
            topic: its name, as this client uses it, at most 32767 bytes of UTF-8.
        Returns: None if the part has no message.
        Raises: ProtocolError: it is malformed, has no offset, or no record can hold it.
        """


class AllAcknowledged(Protocol):
    """Type of `ordermq.core.all_acknowledged`."""

    def __call__(self, data: bytes) -> bool:
        """Return whether an acknowledgement was taken as a whole: the status of all, which must be
        there, and that of each entry are OK.

        Pure, any thread. O(size).

        Args: data: an `AckMessageResponse` of the definition; False for a malformed one.
        """


class ReadStoredByProxy(Protocol):
    """Type of `ordermq.core.stored_by_proxy`."""

    def __call__(self, data: bytes) -> StoredByProxy | None:
        """Read the answer to a send whose messages are stored: it has an entry for each, and the
        statuses of all and of each entry, which must be there, are OK.

        Pure, any thread. O(size).

        Args: data: a `SendMessageResponse` of the definition.
        Returns: None if it says anything else, or is malformed.
        """


class EncodeProxySend(Protocol):
    """Type of `ordermq.core.encode_proxy_send`."""

    def __call__(
        self,
        topic: bytes,
        body: bytes,
        properties: str | None,
        *,
        flag: int,
        is_zipped: bool,
        born_ms: int,
        now_ms: int,
    ) -> tuple[bytes, bool] | None:
        """Write the request that sends a proxy what a request to a broker holds
        (docs/internals/protocol.md#grpc).

        Pure, any thread. O(size). What RocketMQ gives a meaning to, and no field of a message says,
        is left out.

        Args:
            topic: a `Resource` of the definition.
            properties: in text form; None: the body is a batch body, and its messages have theirs.
            flag: of the message; those of a batch have theirs.
            is_zipped: the body is.
            born_ms, now_ms: ms since 1970, at most 2**53; delays count from `now_ms`.
        Returns: a `SendMessageRequest`, and whether it is one message with a message group, for
            the proxy puts that into the group's queue. None: the protocol has no way to say it: a
            message has a flag or a delay level, or a time that is no number of at most 2**53; or a
            batch body is malformed or has a half message.
        Raises: ValueError: `born_ms` or `now_ms` is out of its range.
        """
