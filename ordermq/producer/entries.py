"""How messages become entries: checked, numbered, and cut to what a request may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ordermq.config import SendConfig
from ordermq.errors import ConfigError
from ordermq.model.identifiers import unique_message_id, unique_message_ids
from ordermq.model.message import Message, marked, plain_texts
from ordermq.producer.hooks import SendCheck, SendHooks
from ordermq.producer.pending_message import Entry
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
        named = None if key is None else str(key)
        with_own = marked(messages)
        if with_own:
            texts = [
                message.wire_properties(named, unique_id)
                for message, unique_id in zip(messages, ids, strict=True)
            ]
        else:
            texts = plain_texts(messages[0].topic, named, ids)
        flags = [message.flag for message in messages]
        entries = []
        for part, size in self._parts(bodies, texts, _alone(messages, with_own)):
            first = messages[part.start]
            entry = Entry(
                bodies[part],
                texts[part],
                ids[part],
                flags[part],
                size,
                key,
                first.is_delayed,
                on_done,
                is_timed=first.is_timed,
            )
            entries.append(entry)
            if self._hooks.hooks:
                self._hooks.around(messages[part], entry)
        return entries

    def _parts(
        self, bodies: Sequence[bytes], texts: Sequence[str], alone: Sequence[int]
    ) -> Iterator[tuple[slice, int]]:
        """Where to cut: the messages and bytes of each part, in order.

        Args: alone: which messages no request may hold with others, ascending.
        """
        whole = sum(map(len, bodies)) + sum(map(len, texts))
        if whole <= self._max_batch_bytes and not alone:
            yield slice(0, len(bodies)), whole
            return
        sizes = [len(body) + len(text) for body, text in zip(bodies, texts, strict=True)]
        borders = {at + side for at in alone for side in (0, 1)}
        begin, size = 0, sizes[0]
        for at in range(1, len(sizes)):
            if at in borders or size + sizes[at] > self._max_batch_bytes:
                yield slice(begin, at), size
                begin, size = at, 0
            size += sizes[at]
        yield slice(begin, len(sizes)), size

    def _too_long(self, message: Message) -> ConfigError:
        return ConfigError(
            f"message body of {len(message.body)} bytes: expected at most "
            f"{self._max_message_bytes}; max_message_bytes is the setting, and the "
            "broker has one of its own",
            topic=message.topic,
        )


def _alone(messages: Sequence[Message], with_own: Sequence[Message]) -> list[int]:
    """Which of the messages are delayed; those can only be among the ones with properties."""
    if not any(message.is_delayed for message in with_own):
        return []
    return [at for at, message in enumerate(messages) if message.is_delayed]
