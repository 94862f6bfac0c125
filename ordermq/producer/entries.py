"""How messages become entries: checked, numbered, and cut to what a request may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ordermq.config import SendConfig
from ordermq.errors import ConfigError
from ordermq.model.identifiers import unique_message_id, unique_message_ids
from ordermq.model.message import Message, wire_texts
from ordermq.producer.entry import Entry
from ordermq.producer.hooks import SendCheck, SendHooks
from ordermq.producer.selectors import ShardingKey


class Entries:
    """Makes those of one producer; any thread.

    What may go in no request raises here, before anything is sent.
    """

    def __init__(self, config: SendConfig, hooks: SendHooks) -> None:
        self._max_message_bytes = config.max_message_bytes
        self._max_batch_bytes = config.max_batch_bytes
        self._hooks = hooks
        self.checks: list[SendCheck] = []

    def one(
        self,
        message: Message,
        key: ShardingKey | None,
        on_done: Callable[[Entry], None],
        added: Mapping[str, str] | None = None,
    ) -> Entry:
        """The entry of a message.

        Args: added: properties the protocol wants besides.
        """
        for check in self.checks:
            check(message)
        body = message.body
        if len(body) > self._max_message_bytes:
            raise self._too_long(message)
        unique_id = unique_message_id()
        text = message.wire_properties(None if key is None else str(key), unique_id, added)
        entry = Entry(
            (body if type(body) is bytes else bytes(body),),
            (text,),
            (unique_id,),
            (message.flag,),
            len(body) + len(text),
            key,
            message.is_delayed,
            on_done,
        )
        if entry.is_alone:
            entry.is_timed = message.is_timed
        if self._hooks.hooks:
            self._hooks.around((message,), entry)
        return entry

    def together(
        self,
        messages: Sequence[Message],
        key: ShardingKey | None,
        on_done: Callable[[Entry], None],
    ) -> list[Entry]:
        """Those of messages that shall lie back to back: one, unless a request cannot hold it."""
        if len(messages) == 1:
            return [self.one(messages[0], key, on_done)]
        for check in self.checks:
            for message in messages:
                check(message)
        bodies = [message.body for message in messages]
        if max(map(len, bodies)) > self._max_message_bytes:
            raise self._too_long(max(messages, key=lambda message: len(message.body)))
        bodies = [body if type(body) is bytes else bytes(body) for body in bodies]
        ids = unique_message_ids(len(messages))
        texts = wire_texts(messages, None if key is None else str(key), ids)
        flags = [message.flag for message in messages]
        entries = []
        for part, size, is_alone in self._parts(messages, bodies, texts):
            entry = Entry(
                bodies[part], texts[part], ids[part], flags[part], size, key, is_alone, on_done
            )
            if is_alone:
                entry.is_timed = messages[part.start].is_timed
            entries.append(entry)
            if self._hooks.hooks:
                self._hooks.around(messages[part], entry)
        return entries

    def _parts(
        self, messages: Sequence[Message], bodies: Sequence[bytes], texts: Sequence[str]
    ) -> Iterator[tuple[slice, int, bool]]:
        """Where to cut: the messages, bytes and whether alone of each part, in order."""
        sizes = list(map(int.__add__, map(len, bodies), map(len, texts)))
        delayed = [
            message.delay_level or message.deliver_at_ms or message.delay_ms for message in messages
        ]
        begin = size = 0
        if any(delayed) or sum(sizes) > self._max_batch_bytes:
            for at in range(1, len(sizes)):
                size += sizes[at - 1]
                is_full = size + sizes[at] > self._max_batch_bytes
                if is_full or delayed[at] or delayed[at - 1]:
                    yield slice(begin, at), size, bool(delayed[begin])
                    begin, size = at, 0
        yield slice(begin, len(sizes)), sum(sizes[begin:]), bool(delayed[begin])

    def _too_long(self, message: Message) -> ConfigError:
        return ConfigError(
            f"message body of {len(message.body)} bytes: expected at most "
            f"{self._max_message_bytes}; max_message_bytes is the setting, and the "
            "broker has one of its own",
            topic=message.topic,
        )
