"""Names of topics and groups: rules, prefixes, reserved names, namespaces
(docs/internals/protocol.md#names-and-permissions).
"""

from __future__ import annotations

import functools
from string import ascii_letters, digits

from ordermq.errors import ConfigError

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # half messages of transactions
UNDECIDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # half messages after the last inconclusive check
_REPLY_SUFFIX = "_REPLY_TOPIC"
MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 120  # with %RETRY% before it, a longer one is no legal topic
# The topic of what a group popped without an acknowledgement: %RETRY%group_topic.
_MAX_RETRY_TOPIC_LENGTH = len(RETRY_PREFIX) + MAX_GROUP_LENGTH + 1 + MAX_TOPIC_LENGTH

# Sets, because compiling patterns for the same was part of the time to import a consumer.
_ALLOWED = frozenset(f"%|_-{ascii_letters}{digits}")
_NOT_IN_INSTANCE = frozenset(" @/\\")
_MAX_INSTANCE_LENGTH = 120
_SEND_FORBIDDEN = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        UNDECIDED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_SYSTEM_TOPICS = _SEND_FORBIDDEN | {
    AUTO_CREATE_TOPIC,
    "BenchmarkTest",
    "RMQ_SYS_TRACE_TOPIC",
    "CHECKPOINT_TOPIC",
}
_SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
# Written by ordermq's tools: dead letters that were sent again or skipped before older ones.
HANDLED_LETTERS_TOPIC = "ordermq_handled_letters"
TOOLS_GROUP = "TOOLS_CONSUMER"  # every broker has it, and none has it with a namespace
_RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})


def exact_text(text: str) -> str:
    """Return the characters of a text of any class as a `str`.

    Of a member of an `Enum` of texts that is its value, which it is equal to; formatted it is its
    name. Native code takes no subclass of `str`, as `numpy.str_` is one, either.
    """
    return str.__str__(text)


def check_topic(name: str) -> str:
    """Return `name`, as a `str`, if it is a legal topic.

    Raises: ConfigError: empty, longer than 127 (one of retries may have two names in it), or a
        character other than `%|a-zA-Z0-9_-`.
    """
    is_retry = isinstance(name, str) and name.startswith(RETRY_PREFIX)
    return _check(name, "topic", _MAX_RETRY_TOPIC_LENGTH if is_retry else MAX_TOPIC_LENGTH)


@functools.lru_cache(1024)  # called for each message, and a producer sends to few topics
def check_sendable_topic(name: str) -> str:
    """Return `name`, as a `str`, if clients may send to this topic.

    Raises: ConfigError: a system topic of the broker, or as `check_topic`.
    """
    if name in _SEND_FORBIDDEN:
        raise ConfigError(f"topic {name!r} is a system topic of the broker: send to another topic")
    return check_topic(name)


def check_group(name: str) -> str:
    """Return `name`, as a `str`, if it is a legal group.

    Raises: ConfigError: as `check_topic` with at most 120 characters, or reserved.
    """
    if name in _RESERVED_GROUPS:
        raise ConfigError(f"group {name!r} is reserved: choose another name")
    return _check(name, "group", MAX_GROUP_LENGTH)


def check_instance(name: str) -> str:
    """Return `name` if it may be a part of a client id.

    Raises: ConfigError: empty, longer than 120, or with a blank, `@`, `/`, a backslash or a
        character that does not print.
    """
    # A client id is joined with `@`, and names the folder of a broadcasting member's offsets: a
    # name with `/` would be a path out of it.
    is_legal = (
        isinstance(name, str)
        and 0 < len(name) <= _MAX_INSTANCE_LENGTH
        and name.isprintable()
        and _NOT_IN_INSTANCE.isdisjoint(name)
    )
    if not is_legal:
        raise ConfigError(
            f"instance_name={name!r}: expected 1..{_MAX_INSTANCE_LENGTH} characters that print, "
            "without blanks, @, / and \\"
        )
    return exact_text(name)


def retry_topic(group: str) -> str:
    """Return the topic in which messages of `group` wait for a retry."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of messages that `group` failed to process."""
    return DEAD_LETTER_PREFIX + group


def group_named(name: str) -> str:
    """Return the group of a name, which may be that of its retry or dead-letter topic, too."""
    return name.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)


def reply_topic(cluster: str) -> str:
    """Return the topic of replies to requests, which each broker of the cluster has."""
    return cluster + _REPLY_SUFFIX


def is_system_name(name: str) -> bool:
    """Return True for a topic or group of the broker, which no namespace changes."""
    return (
        name in _SYSTEM_TOPICS
        or name in (INNER_PRODUCER_GROUP, TOOLS_GROUP)
        or name.startswith(_SYSTEM_PREFIXES)
    )


def wrapped(namespace: str, name: str) -> str:
    """Add the namespace to a topic or group: `ns%orders`, `%RETRY%ns%group`
    (docs/internals/protocol.md#names-and-permissions).

    A name that has the namespace already is returned unchanged.
    """
    prefix, own = _without_prefix(name)
    # Joined, not formatted: of a str that is a member of an Enum that is another text.
    if not namespace or not own or is_system_name(name) or own.startswith(namespace + "%"):
        return name
    return prefix + namespace + "%" + own


def unwrapped(namespace: str, name: str) -> str:
    """Remove the namespace from a topic or group; other names are returned unchanged."""
    prefix, own = _without_prefix(name)
    if not namespace or not own.startswith(namespace + "%"):
        return name
    return prefix + own[len(namespace) + 1 :]


def _without_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _check(name: str, kind: str, longest: int) -> str:
    if not isinstance(name, str):
        raise ConfigError(
            f"{kind} name {name!r}: expected one {kind} as a str, not a {type(name).__name__}"
        )
    if not name:
        raise ConfigError(f"{kind} name {name!r}: expected 1..{longest} characters")
    if len(name) > longest:
        raise ConfigError(f"{kind} name of {len(name)} characters: expected 1..{longest}")
    if not _ALLOWED.issuperset(name):
        raise ConfigError(f"{kind} name {name!r}: expected letters, digits and any of % | _ -")
    return exact_text(name)
