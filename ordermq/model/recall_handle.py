"""What a broker gives back for a timed message, to take it back by (protocol: RECALL_MESSAGE)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, Self

from ordermq.errors import ConfigError

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """`v1 topic broker time id`, joined by blanks, in URL-safe base64."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    message_id: str

    def to_text(self) -> str:
        """As it travels."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_at_ms), self.message_id)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read a handle.

        Raises: ConfigError: it is none.
        """
        try:
            # Decoders of the standard library drop what is no base64; a handle has no such thing.
            words = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
            version, topic, broker_name, deliver_at_ms, message_id = words[:5]
            if version != _VERSION:
                raise ValueError(version)
            return cls(topic, broker_name, int(deliver_at_ms), message_id)
        except (ValueError, binascii.Error) as error:
            raise ConfigError(
                f"recall handle {text!r} is none: give the one of the receipt ({error})"
            ) from None
