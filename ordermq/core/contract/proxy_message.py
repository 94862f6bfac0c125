"""Messages as RocketMQ's proxy sends them over gRPC."""

from __future__ import annotations

from typing import Protocol, TypeAlias

# Queue id, queue offset, message id and receipt handle (empty: it has none), stored record.
ProxyMessage: TypeAlias = "tuple[int, int, str, str, bytes]"


class ReadProxyMessage(Protocol):
    """Type of `ordermq.core.read_proxy_message`."""

    def __call__(self, data: bytes, topic: str) -> ProxyMessage:
        """Read a message in the encoding of protocol buffers, and write it as the stored record
        that brokers would send (docs/internals/protocol.md#grpc).

        Pure, any thread. O(size). Its hosts are zeros: the proxy tells addresses as texts.

        Args:
            data: a `Message` of the definition.
            topic: its name, as this client uses it, at most 32767 bytes of UTF-8.
        Raises: ProtocolError: it is malformed, has no offset, or no record can hold it.
        """
