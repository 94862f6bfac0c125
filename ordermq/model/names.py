"""Which topic and group names a broker takes (docs/internals/protocol.md#names-and-permissions)."""

from __future__ import annotations

import functools
import re

from ordermq.errors import ConfigError

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # halves of transactions
UNDECIDED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # halves whose producers never said how they ended
_REPLY_SUFFIX = "_REPLY_TOPIC"
MAX_TOPIC_LENGTH = 127
MAX_GROUP_LENGTH = 120  # longer ones make a retry topic nobody may send to

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
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
_RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})


def check_topic(name: str) -> str:
    """Return `name` if a broker takes it as a topic.

    Raises: ConfigError: empty, longer than 127, or a character out of `%|a-zA-Z0-9_-`.
    """
    return _check(name, "topic", MAX_TOPIC_LENGTH)


@functools.lru_cache(1024)  # one producer sends to few topics, and asks for each message
def check_sendable_topic(name: str) -> str:
    """Return `name` if a client may send to it: a topic that is not the broker's own."""
    if name in _SEND_FORBIDDEN:
        raise ConfigError(f"topic {name!r} belongs to the broker: send to a topic of your own")
    return check_topic(name)


def check_group(name: str) -> str:
    """Return `name` if a client may use it as its group.

    Raises: ConfigError: as `check_topic`, at most 120 long, or reserved.
    """
    if name in _RESERVED_GROUPS:
        raise ConfigError(f"group {name!r} is reserved: choose a name of your own")
    return _check(name, "group", MAX_GROUP_LENGTH)


def retry_topic(group: str) -> str:
    """Where messages of `group` wait for another try."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where messages go that `group` gave up."""
    return DEAD_LETTER_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Where replies to requests are sent; each broker of the cluster has it."""
    return cluster + _REPLY_SUFFIX


def is_system_name(name: str) -> bool:
    """Whether a topic or group is the broker's own, the same in every namespace."""
    return (
        name in _SYSTEM_TOPICS or name == INNER_PRODUCER_GROUP or name.startswith(_SYSTEM_PREFIXES)
    )


def wrapped(namespace: str, name: str) -> str:
    """A topic or group as brokers know it: `ns%orders`, `%RETRY%ns%group`
    (docs/internals/protocol.md#names-and-permissions).

    What is wrapped already stays as it is.
    """
    prefix, own = _without_prefix(name)
    if not namespace or not own or is_system_name(name) or own.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{own}"


def unwrapped(namespace: str, name: str) -> str:
    """The reverse of `wrapped`; names of other namespaces stay as they are."""
    prefix, own = _without_prefix(name)
    if not namespace or not own.startswith(f"{namespace}%"):
        return name
    return prefix + own[len(namespace) + 1 :]


def _without_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _check(name: str, kind: str, longest: int) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{kind} name {name!r}: expected 1..{longest} characters")
    if len(name) > longest:
        raise ConfigError(f"{kind} name of {len(name)} characters: expected 1..{longest}")
    if not _ALLOWED.fullmatch(name):
        raise ConfigError(f"{kind} name {name!r}: expected letters, digits and any of % | _ -")
    return name
