"""What a group wants of a topic (protocol 2.4)."""

from __future__ import annotations

from dataclasses import dataclass

from ordermq.errors import ConfigError
from ordermq.model.hashing import string_hash

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and the tags of it; `version` grows whenever it or its queues change.

    The broker filters by `tag_hashes`, which collide; the client again by `tags`.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int

    @classmethod
    def parse(cls, topic: str, expression: str | None, version: int) -> Subscription:
        """Read a tag expression, `*` or `a || b`.

        Raises: ConfigError: nothing but separators.
        """
        text = (expression or EVERYTHING).strip()
        if text in ("", EVERYTHING):
            return cls(topic, EVERYTHING, (), version)
        tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
        if not tags:
            raise ConfigError(
                f"tag expression {expression!r} of topic {topic!r} names no tag: "
                "write '*' or tags joined by '||'"
            )
        if EVERYTHING in tags:
            return cls(topic, EVERYTHING, (), version)
        return cls(topic, text, tags, version)

    @property
    def tag_hashes(self) -> tuple[int, ...]:
        """What the broker compares; empty for everything."""
        return tuple(string_hash(tag) for tag in self.tags)
