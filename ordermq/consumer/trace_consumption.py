"""TraceConsumption: the hook of consumers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.consumer.hooks import ConsumeCall, ConsumeReturn
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import MessageView
from ordermq.remoting.trace import DEFAULT_REGION, ConsumeBegun, ConsumeEnded, encoded

# Ordinals of Java's ConsumeReturnType.
_CODES = {
    ConsumeReturn.SUCCESS: 0,
    ConsumeReturn.TIME_OUT: 1,
    ConsumeReturn.EXCEPTION: 2,
    ConsumeReturn.RETURN_NULL: 3,
    ConsumeReturn.FAILED: 4,
}
_NOTE = "ordermq.trace"


class TraceConsumption:
    """Hook that writes two trace records per message: its call began, its call ended."""

    def __init__(self, dispatcher: TraceDispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def before(self, call: ConsumeCall) -> None:
        begun = self._begun(call)
        call.notes[_NOTE] = begun
        if begun:
            self._dispatcher.append([encoded(record) for record in begun])

    def after(self, call: ConsumeCall) -> None:
        begun: list[ConsumeBegun] = call.notes.get(_NOTE, [])
        if not begun:
            return
        assert call.outcome is not None
        cost_ms, now_ms = call.spent_ms // len(call.messages), self._clock.wall_ms()
        code = _CODES[call.outcome]
        self._dispatcher.append(
            [
                encoded(
                    ConsumeEnded(
                        each.request_id, each.message_id, cost_ms, call.is_success, each.keys, code,
                        now_ms, call.group,
                    )
                )
                for each in begun
            ]
        )  # fmt: skip

    def _begun(self, call: ConsumeCall) -> list[ConsumeBegun]:
        # One request id per call joins the begin records of its messages to their end records.
        request_id, now_ms = unique_message_id(), self._clock.wall_ms()
        return [
            ConsumeBegun(
                now_ms,
                message.get_property(props.REGION) or DEFAULT_REGION,
                call.group,
                request_id,
                message.message_id,
                message.reconsume_times,
                " ".join(message.keys) or None,
            )
            for message in call.messages
            if _is_on(message)
        ]


def _is_on(message: MessageView) -> bool:
    # Set by the broker that stored the message; one whose region traces nothing sets "false".
    return message.get_property(props.TRACE_ON) != "false"
