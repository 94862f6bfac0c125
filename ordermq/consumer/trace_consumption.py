"""TraceConsumption: the hook of consumers with `enable_msg_trace=True`; loaded by those only."""

from __future__ import annotations

from ordermq.client.trace import TraceDispatcher
from ordermq.clock import Clock
from ordermq.consumer.hooks import ConsumeCall, ConsumeReturn
from ordermq.model import properties as props
from ordermq.model.identifiers import unique_message_id
from ordermq.model.message import MessageView
from ordermq.remoting.trace import DEFAULT_REGION, ConsumedCall

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
        # One request id per call joins the begin records of its messages to their end records.
        records = ConsumedCall(call.group, unique_message_id(), self._clock.wall_ms())
        begun = [
            records.begun(
                message.get_property(props.REGION) or DEFAULT_REGION,
                message.message_id,
                message.reconsume_times,
                " ".join(message.keys) or None,
            )
            for message in call.messages
            if _is_on(message)
        ]
        call.notes[_NOTE] = records, begun
        if begun:
            self._dispatcher.append(begun)

    def after(self, call: ConsumeCall) -> None:
        if _NOTE not in call.notes:
            return
        records, begun = call.notes[_NOTE]
        if not begun:
            return
        assert call.outcome is not None
        cost_ms, now_ms = call.spent_ms // len(call.messages), self._clock.wall_ms()
        code = _CODES[call.outcome]
        self._dispatcher.append(records.ended(begun, cost_ms, call.is_success, code, now_ms))


def _is_on(message: MessageView) -> bool:
    # Set by the broker that stored the message; one whose region traces nothing sets "false".
    return message.get_property(props.TRACE_ON) != "false"
