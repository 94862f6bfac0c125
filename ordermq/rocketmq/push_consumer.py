"""The push consumer of both old clients."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import ordermq.consumer.push_consumer as engine
from ordermq.callables import require_plain, require_plain_result
from ordermq.config import MessageModel as Model
from ordermq.consumer.listener import ConsumeContext
from ordermq.model.message import MessageView
from ordermq.rocketmq.client_settings import ClientSettings, positive, shut_down_unreferenced
from ordermq.rocketmq.exceptions import (
    ConsumerException,
    PushConsumerStartFailed,
    raised_as,
)
from ordermq.rocketmq.message import ReceivedMessage, Text, text_of
from ordermq.rocketmq.status import ConsumeStatus, MessageModel

_log = logging.getLogger("ordermq.rocketmq")
_MODELS = {MessageModel.CLUSTERING: Model.CLUSTERING, MessageModel.BROADCASTING: Model.BROADCASTING}


class PushConsumer(ClientSettings):
    """A member of a group whose callbacks get one message at a time.

    A callback answers `ConsumeStatus.CONSUME_SUCCESS` or `RECONSUME_LATER`. If it raises, or
    answers neither, that is logged and the message is redelivered. A program that uses the names
    of 0.4.4 (`set_namesrv_addr`) need not answer: there a message is done unless its callback
    raises.

    Args:
        group_id: the consumer group.
        orderly: each queue in order, one message after the other; else many at once.
        message_model: CLUSTERING, or BROADCASTING for every member to get every message.
    """

    def __init__(
        self,
        group_id: Text,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
    ) -> None:
        super().__init__(group_id)
        self._orderly = orderly
        self._callbacks: dict[str, Callable[[ReceivedMessage], object]] = {}
        self._expressions: dict[str, str] = {}
        self._settings: dict[str, Any] = {"consume_thread_count": os.cpu_count() or 1}
        self._engine: engine.PushConsumer | None = None
        self.set_message_model(message_model)

    def __del__(self) -> None:
        if self.__dict__.get("_engine") is not None:
            shut_down_unreferenced(self)

    @property
    def _is_running(self) -> bool:
        return self._engine is not None

    def set_group(self, group_id: Text) -> None:
        """Change the group."""
        self._set_group(group_id)

    def set_message_model(self, model: MessageModel) -> None:
        """Set CLUSTERING or BROADCASTING."""
        self._require_not_running()
        self._model = MessageModel(model)

    def set_thread_count(self, thread_count: int) -> None:
        """Set the maximum number of concurrent callbacks; default: the number of cores."""
        self._require_not_running()
        self._settings["consume_thread_count"] = positive(thread_count, "thread count")

    def set_message_batch_max_size(self, max_size: int) -> None:
        """Set the number of messages per thread and turn; a callback still gets one."""
        self._require_not_running()
        self._settings["consume_message_batch_max_size"] = positive(max_size, "batch size")

    def subscribe(
        self, topic: Text, callback: Callable[[ReceivedMessage], object], expression: Text = "*"
    ) -> None:
        """Call `callback` with the messages of `topic`.

        Args:
            expression: `*`, or tags joined by `||`.
        Raises: ConfigError: the callback is asynchronous: these consumers await nothing.
        """
        self._require_not_running()
        if not callable(callback):
            raise TypeError(f"callback {callback!r} cannot be called")
        require_plain("callback", callback)
        name = text_of(topic, "topic")
        self._expressions[name] = text_of(expression, "expression")
        self._callbacks[name] = callback

    def start(self) -> None:
        """Join the group and begin. Raises: PushConsumerStartFailed: no subscription, no route."""
        self._require_not_running()
        with raised_as(PushConsumerStartFailed):
            made = self._make_engine()
            made.start()
        self._engine = made

    def _make_engine(self) -> engine.PushConsumer:
        made = engine.PushConsumer(
            self._group,
            message_model=_MODELS[self._model],
            **self._settings,
            **self._endpoint(),
        )
        for topic, expression in self._expressions.items():
            made.subscribe(topic, expression)
        if self._orderly:
            made.orderly(self._listen)
        else:
            made.concurrently(self._listen)
        return made

    def shutdown(self) -> None:
        """Hand every queue over, then leave. Before a start, or a second time, it has no effect.

        Raises: ConsumerException: called by a callback of this consumer; another thread may.
        """
        made, self._engine = self._engine, None
        if made is not None:
            try:
                with raised_as(ConsumerException):
                    made.close()
            except ConsumerException:
                self._engine = made
                raise

    def _listen(self, messages: Sequence[MessageView], context: ConsumeContext) -> int:
        # How many are done, from the first: what came before a failure is not repeated.
        for done, message in enumerate(messages):
            if not self._is_done(message):
                return done
        return len(messages)

    def _is_done(self, view: MessageView) -> bool:
        message = ReceivedMessage(view)
        try:
            callback = self._callbacks[message.topic]
            # As any answer would, a coroutine says for 0.4.4 that the message is done.
            answer = require_plain_result("callback", callback, callback(message))
            if self._speaks_044 and not isinstance(answer, ConsumeStatus):
                return True
            if answer not in (ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER):
                raise ValueError(
                    f"the callback answered {answer!r}: expected ConsumeStatus.CONSUME_SUCCESS or "
                    "RECONSUME_LATER"
                )
        except Exception:  # noqa: BLE001 - logged; the message is redelivered
            _log.exception(
                "callback failed, message will be redelivered: group=%s message=%r",
                self._group,
                view,
            )
            return False
        return answer == ConsumeStatus.CONSUME_SUCCESS
