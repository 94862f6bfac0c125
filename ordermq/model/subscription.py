"""What a group wants of a topic (docs/internals/protocol.md#tags)."""

from __future__ import annotations

from dataclasses import dataclass

from ordermq.errors import ConfigError
from ordermq.model.hashing import string_hash

EVERYTHING = "*"
TAG = "TAG"
SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic and the tags of it; `version` grows whenever it or its queues change.

    The broker filters by `tag_hashes`, which collide; the client again by `tags`. What is
    chosen by a condition on properties, in SQL92, is the broker's business alone.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    expression_type: str = TAG

    @classmethod
    def parse(cls, topic: str, expression: str | None, version: int) -> Subscription:
        """Read a tag expression, `*` or `a || b`.

        Raises: ConfigError: nothing but separators.
        """
        if not isinstance(expression, str | None):
            raise ConfigError(
                f"tag expression {expression!r} of topic {topic!r}: expected a text, '*' or tags "
                "joined by '||'"
            )
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

    @classmethod
    def sql(cls, topic: str, condition: str, version: int) -> Subscription:
        """Those messages whose properties satisfy a condition, as `a > 5 AND region = 'x'`.

        Raises: ConfigError: it is empty.
        """
        if not condition.strip():
            raise ConfigError(f"the SQL condition on topic {topic!r} is empty")
        return cls(topic, condition, (), version, SQL92)

    @property
    def is_sql(self) -> bool:
        return self.expression_type == SQL92

    @property
    def tag_hashes(self) -> tuple[int, ...]:
        """What the broker compares; empty for everything."""
        return tuple(string_hash(tag) for tag in self.tags)
