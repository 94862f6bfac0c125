"""Namespaces: `orders` in the program is `namespace%orders` on the wire
(docs/internals/protocol.md#names-and-permissions).

The rest of the client uses plain names only. This module adds the namespace to requests and removes
it from responses, in headers and JSON bodies, as RocketMQ's NamespaceUtil does. Message records
stay as they are stored; `MessageView.topic` removes the namespace. The namespaces of RocketMQ 5
("v2") travel as two extra fields next to plain names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ordermq.errors import ConfigError
from ordermq.model.names import MAX_TOPIC_LENGTH, is_system_name, unwrapped, wrapped
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command
from ordermq.value import Value

_FIELDS = ("topic", "originTopic", "consumerGroup", "producerGroup", "group", "groupName")
_SEND_FIELDS = ("a", "b")  # producer group and topic of the short send header
_REPLY_FIELDS = ("a",)  # the reply topic belongs to the cluster, not to a namespace
_SENDS = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
_PROPERTIES = "i"
_INSTANCE_ID = "INSTANCE_ID"
_JSON_BODIES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
)
_PRODUCER_GROUP = re.compile(r"((?:^|\x02)PGROUP\x01)([^\x02]+)")
# Names contain no quotes or backslashes, and in a string value that looks like this the quotes are
# escaped, so the pattern finds members only. Not by parsing: Java's bodies are not always JSON.
_NAME_IN_JSON = re.compile(
    rb'("(?:topic|consumerGroup|producerGroup|group|groupName)"\s*:\s*")([^"\\]+)(?=")'
)


class Namespaces(Value):
    """Namespaces of one client; both kinds may be set.

    Args:
        name: the prefix of `name%topic`; empty for none.
        v2: the namespace of RocketMQ 5; empty for none.
    """

    name: str
    v2: str

    def wrap_request(self, command: Command) -> None:
        """Add the namespace to a request, before it is signed.

        Raises: ConfigError: a name with its namespace is too long.
        """
        ext = dict(command.ext)  # the caller may send the same fields again after a failure
        if self.v2:
            ext["nsd"], ext["ns"] = "true", self.v2
        if self.name:
            self._rename(command, ext, self._wrap)
            # The names inside a message's properties are the program's business, but for one.
            if command.code in _SENDS:
                ext[_PROPERTIES] = self._with_instance(ext.get(_PROPERTIES, ""))
        command.ext = ext

    def wrap_answer(self, request_code: int, answer: Command) -> None:
        """Add the namespace to the response to a broker's request, as one of an admin tool."""
        if self.name and request_code in _JSON_BODIES:
            answer.body = _renamed(answer.body, self._wrap)

    def unwrap_answer(self, request_code: int, answer: Command) -> None:
        """Remove the namespace from the response to a request of this client."""
        if self.name and request_code in _JSON_BODIES:
            answer.body = _renamed(answer.body, self._unwrap)

    def unwrap_request(self, command: Command) -> None:
        """Remove the namespace from a request of the broker."""
        if self.name:
            ext = dict(command.ext)
            self._rename(command, ext, self._unwrap)
            command.ext = ext

    def _rename(self, command: Command, ext: dict[str, str], change: Callable[[str], str]) -> None:
        for field in _fields(command.code):
            if field in ext:
                ext[field] = change(ext[field])
        if command.code in _JSON_BODIES:
            command.body = _renamed(command.body, change)

    def _wrap(self, name: str) -> str:
        whole = wrapped(self.name, name)
        if len(whole) > MAX_TOPIC_LENGTH and not is_system_name(name):
            raise ConfigError(
                f"{whole!r} has {len(whole)} characters including its namespace: expected at most "
                f"{MAX_TOPIC_LENGTH}; shorten the name or RemotingConfig.namespace"
            )
        return whole

    def _unwrap(self, name: str) -> str:
        return unwrapped(self.name, name)

    def _with_instance(self, properties: str) -> str:
        # PGROUP names the producer group that the broker sends transaction checks to, and the
        # broker knows the group with its namespace only.
        properties = _PRODUCER_GROUP.sub(lambda m: m[1] + self._wrap(m[2]), properties)
        gap = "\x02" if properties and not properties.endswith("\x02") else ""
        return f"{properties}{gap}{_INSTANCE_ID}\x01{self.name}\x02"


def _fields(code: int) -> tuple[str, ...]:
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        return _REPLY_FIELDS
    return _SEND_FIELDS if code in _SENDS else _FIELDS


def _renamed(body: bytes, change: Callable[[str], str]) -> bytes:
    # Whatever is no UTF-8 stays as it is: who reads the body says what is wrong with it.
    def renamed(match: re.Match[bytes]) -> bytes:
        name = match[2].decode(errors="surrogateescape")
        return match[1] + change(name).encode(errors="surrogateescape")

    return _NAME_IN_JSON.sub(renamed, body)
