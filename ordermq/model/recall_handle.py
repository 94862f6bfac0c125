"""Handles of timed messages, by which they are recalled (docs/internals/protocol.md#sending)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, Self

from ordermq.errors import ConfigError

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Contents of a handle: `v1 topic broker time id`, joined by blanks, in URL-safe base64."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    message_id: str

    def to_text(self) -> str:
        """Encode the handle."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_at_ms), self.message_id)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Decode a handle.

        Raises: ConfigError: the text is not a handle.
        """
        if not isinstance(text, str):
            raise ConfigError(
                f"recall_handle={text!r}: expected a str, SendReceipt.recall_handle, which is None "
                "for a message that is not timed"
            )
        try:
            # Without `validate` the decoder skips foreign characters, and a damaged handle would
            # recall another message.
            words = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
            version, topic, broker_name, deliver_at_ms, message_id = words[:5]
            if version != _VERSION:
                raise ValueError(version)
            return cls(topic, broker_name, int(deliver_at_ms), message_id)
        except (ValueError, binascii.Error) as error:
            raise ConfigError(
                f"invalid recall handle {text!r}: pass SendReceipt.recall_handle ({error})"
            ) from None
