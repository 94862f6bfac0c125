"""Subscription of a consumer group to a topic, by tags or SQL (docs/internals/protocol.md#tags)."""

from __future__ import annotations

import re

from ordermq.errors import ConfigError
from ordermq.model.hashing import string_hash
from ordermq.model.names import check_topic
from ordermq.value import Value

EVERYTHING = "*"
TAG = "TAG"
SQL92 = "SQL92"
_OTHER_SEPARATORS = re.compile(r"[,|&]+")
# What a condition has and a tag has not: a text in quotes, a comparison, a word between others.
_CONDITION = re.compile(
    r"""['"]|\w\s*[<>]=?\s*\w|\s(?:=|<>)\s|\s(?:and|or|not|in|is|between|like)\s""",
    re.IGNORECASE,
)


def split_tags(topic: str, expression: str | None) -> tuple[str, ...]:
    """Return the tags of an expression, each once; () for every message.

    As brokers read it: whatever is not `||` belongs to a tag.

    Raises: ConfigError: no tag in it.
    """
    text = (expression or "").strip() or EVERYTHING
    tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise ConfigError(
            f"tag expression {expression!r} of topic {topic!r} contains no tag: "
            "write '*' or tags joined by '||'"
        )
    return () if EVERYTHING in tags else tags


class Subscription(Value):
    """Topic and filter expression; `version` grows whenever the subscription changes.

    The broker filters by `tag_hashes`, which may collide, and the client again by `tags`. An SQL
    condition is evaluated by the broker only.
    """

    topic: str
    expression: str
    tags: tuple[str, ...]
    version: int
    expression_type: str = TAG

    @classmethod
    def parse(cls, topic: str, expression: str | None, version: int) -> Subscription:
        """Parse a tag expression: `*`, or tags as `a || b`.

        Raises: ConfigError: not a str, no tag in it, tags joined otherwise, or a condition.
        """
        if not isinstance(expression, str | None):
            remedy = "; decorate a listener with @consumer.orderly" if callable(expression) else ""
            raise ConfigError(
                f"tag expression {expression!r} of topic {topic!r}: expected a str, '*' or tags "
                f"joined by '||', not a {type(expression).__name__}{remedy}"
            )
        tags = split_tags(topic, expression)
        # A broker would look for one tag of this very name, and find no message, for ever.
        if any(_CONDITION.search(tag) for tag in tags):
            raise ConfigError(
                f"tag expression {expression!r} of topic {topic!r} looks like a condition: write "
                f"sql={expression!r}; tags are joined by '||', which is their only operator"
            )
        if any(_OTHER_SEPARATORS.search(tag) for tag in tags):
            parts = (part.strip() for tag in tags for part in _OTHER_SEPARATORS.split(tag))
            meant = " || ".join(dict.fromkeys(part for part in parts if part))
            raise ConfigError(
                f"tag expression {expression!r} of topic {topic!r}: write {meant!r}; a message "
                "has one tag, and '||' is the only operator"
            )
        text = (expression or "").strip() if tags else EVERYTHING
        return cls(topic, text, tags, version)

    @classmethod
    def sql(cls, topic: str, condition: str, version: int) -> Subscription:
        """Create a subscription by a condition on properties: `a > 5 AND region = 'x'`.

        Raises: ConfigError: the condition is empty.
        """
        if not isinstance(condition, str):
            raise ConfigError(
                f"the SQL condition on topic {topic!r} is a {type(condition).__name__}: expected "
                "a str"
            )
        if not condition.strip():
            raise ConfigError(f"the SQL condition on topic {topic!r} is empty")
        return cls(topic, condition, (), version, SQL92)

    @classmethod
    def of(cls, topic: str, expression: str, sql: str | None, version: int) -> Subscription:
        """Create a subscription by tags or, if given, by an SQL condition.

        Raises: ConfigError: an illegal topic or expression, or both tags and a condition.
        """
        if sql is None:
            return cls.parse(check_topic(topic), expression, version)
        if expression != EVERYTHING:
            raise ConfigError(f"topic {topic!r}: give tags or `sql`, not both")
        return cls.sql(check_topic(topic), sql, version)

    @property
    def is_sql(self) -> bool:
        """True for an SQL condition, False for tags."""
        return self.expression_type == SQL92

    @property
    def tag_hashes(self) -> tuple[int, ...]:
        """Hash codes of the tags, which the broker compares; empty for all messages."""
        return tuple(string_hash(tag) for tag in self.tags)
