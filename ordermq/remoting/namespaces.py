"""Names of a tenant's own: `orders` here, `namespace%orders` on the wire
(docs/internals/protocol.md#names-and-permissions).

Everything above the wire knows plain names only. What leaves is wrapped and what comes is
unwrapped here, as RocketMQ's NamespaceUtil does, in headers and in JSON bodies; message records
stay as they are stored (`MessageView.topic` unwraps). The namespaces of RocketMQ 5 ("v2") travel
as two fields beside plain names, which a broker that knows them reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.model.names import MAX_TOPIC_LENGTH, is_system_name, unwrapped, wrapped
from ordermq.remoting.codes import RequestCode
from ordermq.remoting.command import Command

_FIELDS = ("topic", "originTopic", "consumerGroup", "producerGroup", "group", "groupName")
_SEND_FIELDS = ("a", "b")  # producer group and topic of the short send header
_REPLY_FIELDS = ("a",)  # the topic of replies is the cluster's, whatever the tenant
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
    }
)
_PRODUCER_GROUP = re.compile(r"((?:^|\x02)PGROUP\x01)([^\x02]+)")
# A name holds no quotes and no backslashes, and a text that looks like this has its own escaped.
_NAME_IN_JSON = re.compile(
    rb'("(?:topic|consumerGroup|producerGroup|group|groupName)"\s*:\s*")([^"\\]+)(?=")'
)


@dataclass(frozen=True, slots=True)
class Namespaces:
    """What a client's commands go through; both kinds may be given.

    Args:
        name: of `name%topic`; empty for none.
        second: the namespace of RocketMQ 5; empty for none.
    """

    name: str
    second: str

    @classmethod
    def of(cls, config: RemotingConfig) -> Namespaces | None:
        """What the settings say; None if names go as they are."""
        if not config.namespace and not config.namespace_v2:
            return None
        return cls(config.namespace, config.namespace_v2)

    def wrap_request(self, command: Command) -> None:
        """Before it is signed and sent.

        Raises: ConfigError: a name is too long with the namespace before it.
        """
        ext = dict(command.ext)
        if self.second:
            ext["nsd"], ext["ns"] = "true", self.second
        if self.name:
            self._rename(command, ext, self._wrap)
            if command.code in _SENDS:
                ext[_PROPERTIES] = self._with_instance(ext.get(_PROPERTIES, ""))
        command.ext = ext

    def wrap_answer(self, request_code: int, answer: Command) -> None:
        """Our answer to a request of the broker's, as an admin tool's question passed on."""
        if self.name and request_code in _JSON_BODIES:
            answer.body = _renamed(answer.body, self._wrap)

    def unwrap_answer(self, request_code: int, answer: Command) -> None:
        """The broker's answer to a request of ours."""
        if self.name and request_code in _JSON_BODIES:
            answer.body = _renamed(answer.body, self._unwrap)

    def unwrap_request(self, command: Command) -> None:
        """A request of the broker's."""
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
                f"{whole!r} has {len(whole)} characters with its namespace: expected at most "
                f"{MAX_TOPIC_LENGTH}; shorten the name or RemotingConfig.namespace"
            )
        return whole

    def _unwrap(self, name: str) -> str:
        return unwrapped(self.name, name)

    def _with_instance(self, properties: str) -> str:
        # A transaction is asked about at a member of the group this property names.
        properties = _PRODUCER_GROUP.sub(lambda m: m[1] + self._wrap(m[2]), properties)
        gap = "\x02" if properties and not properties.endswith("\x02") else ""
        return f"{properties}{gap}{_INSTANCE_ID}\x01{self.name}\x02"


def _fields(code: int) -> tuple[str, ...]:
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        return _REPLY_FIELDS
    return _SEND_FIELDS if code in _SENDS else _FIELDS


def _renamed(body: bytes, change: Callable[[str], str]) -> bytes:
    return _NAME_IN_JSON.sub(lambda m: m[1] + change(m[2].decode()).encode(), body)
