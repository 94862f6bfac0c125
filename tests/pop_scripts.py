"""Scripts of ordered POP, a model that says what each step answers, and who runs them on a broker;
and the rules of POP without order, as steps.

The model is the specification of docs/internals/semantics.md#pop in code; it shares nothing with
the embedded broker. Property tests compare it with the embedded broker on a clock that they move,
tests/interop with RocketMQ in real time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ordermq.model import properties as props
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.pop import (
    NORMAL,
    ORDERED,
    AckHeader,
    BatchAck,
    ChangeInvisibleHeader,
    ChangeInvisibleReplyHeader,
    PopHandle,
    PopHeader,
    PopReplyHeader,
    acks_to_body,
    offsets_of_reply,
    real_topic,
)
from tests.component.broker.wire_client import WireClient, records

Step = tuple[Any, ...]
INVISIBLE_MS = 1_500
_LONG_MS = 3_600_000  # no step waits so long
# Between two steps on RocketMQ: its handles are the same for two pops of one millisecond.
STEP_MS = 5


@dataclass
class Batch:
    """A popped batch, by the number of its pop."""

    number: int
    offsets: list[int]
    done: set[int]
    visible_ms: dict[int, int]
    attempt: str | None
    deliveries: dict[int, int]


@dataclass
class PopModel:
    """One queue of one group."""

    now_ms: int = 0
    end: int = 0
    committed: int = 0
    batch: Batch | None = None
    pops: int = 0
    handed_out: dict[int, list[int]] = field(default_factory=dict)  # offsets by number of the pop

    def run(self, step: Step) -> Any:
        """Do a step; return what a broker answers."""
        found = getattr(self, f"do_{step[0]}")(*step[1:])
        self.now_ms += STEP_MS
        return found

    def do_send(self, count: int) -> None:
        self.end += count

    def do_wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms

    def do_committed(self) -> int:
        return self.committed

    def do_pop(self, count: int, invisible_ms: int, attempt: str | None) -> dict[int, int] | None:
        """Return the deliveries before this one of each popped offset; None: nothing came."""
        if self._is_blocked(attempt) or self.committed == self.end:
            self.pops += 1
            return None
        offsets = list(range(self.committed, min(self.committed + count, self.end)))
        deliveries = {}
        if self.batch is not None and attempt is not None and attempt == self.batch.attempt:
            deliveries = {at: self.batch.deliveries.get(at, 0) for at in offsets}
        elif self.batch is not None:
            before = self.batch
            deliveries = {at: before.deliveries.get(at, 0) + 1
                          for at in offsets if at in before.offsets}  # fmt: skip
        visible_ms = dict.fromkeys(offsets, self.now_ms + invisible_ms)
        self.batch = Batch(self.pops, offsets, set(), visible_ms, attempt, deliveries)
        self.handed_out[self.pops] = offsets
        self.pops += 1
        return {at: deliveries.get(at, 0) for at in offsets}

    def do_ack(self, pop: int, places: list[int]) -> int:
        batch = self.batch
        if batch is None or batch.number != pop:
            return ResponseCode.SUCCESS  # and ignored
        asked = [batch.offsets[place] for place in places if place < len(batch.offsets)]
        batch.done |= {at for at in asked if at >= self.committed}
        left = [at for at in batch.offsets if at not in batch.done]
        self.committed = max(self.committed, left[0] if left else batch.offsets[-1] + 1)
        return ResponseCode.SUCCESS

    def do_change(self, pop: int, place: int, invisible_ms: int) -> int:
        batch = self.batch
        if batch is not None and batch.number == pop and place < len(batch.offsets):
            batch.visible_ms[batch.offsets[place]] = self.now_ms + invisible_ms
        return ResponseCode.SUCCESS

    def _is_blocked(self, attempt: str | None) -> bool:
        if self.batch is None or (attempt is not None and attempt == self.batch.attempt):
            return False
        left = [at for at in self.batch.offsets if at not in self.batch.done]
        return any(self.now_ms < self.batch.visible_ms[at] for at in left)


class PopClient:
    """Runs the steps of a script on a broker.

    Args:
        wall_ms: the time that requests are stamped with, ms since 1970.
        wait: passes time.
    """

    def __init__(
        self,
        client: WireClient,
        broker_name: str,
        topic: str,
        group: str,
        wall_ms: Callable[[], int],
        wait: Callable[[int], None],
    ) -> None:
        self.client = client
        self._broker_name = broker_name
        self._topic = topic
        self._group = group
        self._wall_ms = wall_ms
        self._wait = wait
        self.handles: list[tuple[PopHandle, tuple[int, ...]] | None] = []

    def run(self, step: Step) -> Any:
        found = getattr(self, f"do_{step[0]}")(*step[1:])
        self._wait(STEP_MS)
        return found

    def do_send(self, count: int) -> None:
        for _ in range(count):
            assert self.client.send(self._topic).code == ResponseCode.SUCCESS

    def do_wait(self, duration_ms: int) -> None:
        self._wait(duration_ms)

    def do_committed(self) -> int | None:
        return self.client.committed(self._group, self._topic)

    def do_pop(self, count: int, invisible_ms: int, attempt: str | None) -> dict[int, int] | None:
        header = PopHeader(
            self._group, self._topic, 0, count, invisible_ms, 0, self._wall_ms(), 0,
            order=True, attempt_id=attempt,
        )  # fmt: skip
        answer = self.client.call(RequestCode.POP_MESSAGE, header.to_ext())
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
            self.handles.append(None)
            return None
        reply = PopReplyHeader.from_ext(answer.ext)
        (part,) = offsets_of_reply(reply)
        assert [record.queue_offset for record in records(answer.body)] == list(part.offsets)
        self.handles.append((
            PopHandle(part.start, reply.pop_ms, reply.invisible_ms, reply.revive_queue, "0",
                      self._broker_name, part.queue_id),
            part.offsets,
        ))  # fmt: skip
        return dict(part.deliveries)

    def do_ack(self, pop: int, places: list[int]) -> int:
        found = self.handles[pop]
        if found is None:
            return ResponseCode.SUCCESS
        handle, offsets = found
        asked = [offsets[place] for place in places if place < len(offsets)]
        if len(asked) == 1:
            header = AckHeader(
                self._group, self._topic, 0, handle.text(asked[0]), asked[0], self._broker_name
            )
            return self.client.call(RequestCode.ACK_MESSAGE, header.to_ext()).code
        if not asked:
            return ResponseCode.SUCCESS
        body = acks_to_body(self._broker_name, [BatchAck(self._group, self._topic, handle, asked)])
        return self.client.call(RequestCode.BATCH_ACK_MESSAGE, {}, body).code

    def do_change(self, pop: int, place: int, invisible_ms: int) -> int:
        found = self.handles[pop]
        if found is None or place >= len(found[1]):
            return ResponseCode.SUCCESS
        handle, offsets = found
        header = ChangeInvisibleHeader(
            self._group, self._topic, 0, handle.text(offsets[place]), offsets[place],
            invisible_ms, self._broker_name,
        )  # fmt: skip
        return self.client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext()).code


def script_of(seed: int, length: int = 40) -> list[Step]:
    """Return the script of a seed; waits keep away from the moments at which leases end."""
    dice = random.Random(seed)
    steps: list[Step] = [("send", 6)]
    pops = 0
    for _ in range(length):
        kind = dice.choice(["pop", "pop", "pop", "ack", "ack", "ack", "change", "send", "wait"])
        if kind == "pop" or not pops:
            attempt = dice.choice([None, None, "one", "two"])
            steps.append(("pop", dice.randint(1, 5), dice.choice([INVISIBLE_MS, 60_000]), attempt))
            pops += 1
        elif kind == "ack":
            places = sorted(dice.sample(range(5), dice.randint(1, 5)))
            steps.append(("ack", max(pops - dice.choice([1, 1, 1, 2]), 0), places))
        elif kind == "change":
            invisible_ms = dice.choice([0, INVISIBLE_MS, 60_000])
            steps.append(("change", max(pops - dice.choice([1, 1, 2]), 0), dice.randrange(5),
                          invisible_ms))  # fmt: skip
        elif kind == "send":
            steps.append(("send", dice.randint(1, 4)))
        else:
            steps.append(("wait", 2 * INVISIBLE_MS))
        steps.append(("committed",))
    return steps


@dataclass(frozen=True)
class Popped:
    """One message that was popped without order, and its handle."""

    body: bytes
    topic: str
    reconsume_times: int
    handle: PopHandle
    offset: int


class UnorderedPops:
    """Pops of one queue without order.

    Args:
        topic: of one queue.
        wall_ms: the time that requests are stamped with, ms since 1970.
    """

    def __init__(
        self, client: WireClient, topic: str, group: str, wall_ms: Callable[[], int]
    ) -> None:
        self.client = client
        self.topic = topic
        self._group = group
        self._wall_ms = wall_ms

    def pop(self, broker_name: str, count: int, invisible_ms: int) -> list[Popped]:
        header = PopHeader(
            self._group, self.topic, 0, count, invisible_ms, 0, self._wall_ms(), 0, order=False
        )
        answer = self.client.call(RequestCode.POP_MESSAGE, header.to_ext())
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code == ResponseCode.POLLING_TIMEOUT, answer
            return []
        reply = PopReplyHeader.from_ext(answer.ext)
        assert reply.revive_queue != ORDERED
        places = {(part.kind, part.queue_id): part for part in offsets_of_reply(reply)}
        found = []
        for record in records(answer.body):
            text = props.decode_bytes(record.properties).get(props.POP_HANDLE)
            kind = NORMAL if text is None else PopHandle.of_text(text).topic_kind
            part = places[kind, record.queue_id]
            assert record.queue_offset in part.offsets
            handle = PopHandle(
                part.start, reply.pop_ms, reply.invisible_ms, reply.revive_queue, kind,
                broker_name, record.queue_id,
            )  # fmt: skip
            found.append(
                Popped(record.body, record.topic, record.reconsume_times, handle,
                       record.queue_offset)
            )  # fmt: skip
        return found

    def acknowledge(self, *popped: Popped) -> None:
        """Acknowledge one message by 200051, several by 200151."""
        if len(popped) == 1:
            (one,) = popped
            header = AckHeader(
                self._group, self._real_topic(one), one.handle.queue_id,
                one.handle.text(one.offset), one.offset, one.handle.broker_name,
            )  # fmt: skip
            assert self.client.call(RequestCode.ACK_MESSAGE, header.to_ext()).code == 0
            return
        acks = [BatchAck(self._group, self.topic, one.handle, [one.offset]) for one in popped]
        body = acks_to_body(popped[0].handle.broker_name, acks)
        assert self.client.call(RequestCode.BATCH_ACK_MESSAGE, {}, body).code == 0

    def change(self, popped: Popped, invisible_ms: int) -> Popped:
        """Change the lease of a message; return it with its next handle."""
        header = ChangeInvisibleHeader(
            self._group, self._real_topic(popped), popped.handle.queue_id,
            popped.handle.text(popped.offset), popped.offset, invisible_ms,
            popped.handle.broker_name,
        )  # fmt: skip
        answer = self.client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        assert answer.code == 0, answer
        reply = ChangeInvisibleReplyHeader.from_ext(answer.ext)
        handle = replace(
            popped.handle, start=popped.offset, pop_ms=reply.pop_ms,
            invisible_ms=reply.invisible_ms, revive_queue=reply.revive_queue,
        )  # fmt: skip
        return replace(popped, handle=handle)

    def _real_topic(self, popped: Popped) -> str:
        return real_topic(self.topic, self._group, popped.handle.topic_kind)


def check_pops_without_order(
    pops: UnorderedPops,
    broker_name: str,
    wait: Callable[[int], None],
    eventually: Callable[[Callable[[], bool], str], object],
) -> None:
    """Check the rules of docs/internals/semantics.md#pop-without-order on any broker.

    Args:
        wait: passes time, in ms.
        eventually: waits for a condition; what it is.
    """
    for number in range(6):
        assert pops.client.send(pops.topic, str(number).encode()).code == 0
    first = pops.pop(broker_name, 2, INVISIBLE_MS)
    second = pops.pop(broker_name, 2, INVISIBLE_MS)
    assert [one.body for one in first + second] == [b"0", b"1", b"2", b"3"], "nothing is blocked"
    pops.acknowledge(second[1])  # in any order
    pops.acknowledge(first[0], second[0])
    third = pops.pop(broker_name, 2, _LONG_MS)
    pops.acknowledge(third[0])
    again: list[Popped] = []

    def comes(body: bytes) -> Callable[[], bool]:
        def look() -> bool:
            again.extend(pops.pop(broker_name, 32, _LONG_MS))
            return any(one.body == body for one in again)

        return look

    wait(2 * INVISIBLE_MS)
    eventually(comes(b"1"), "what was not acknowledged comes again")
    given_back = pops.change(third[1], 0)
    wait(STEP_MS)
    eventually(comes(b"5"), "what was given back comes again")
    assert [(one.body, one.topic, one.reconsume_times) for one in again] == [
        (b"1", pops.topic, 1), (b"5", pops.topic, 1),
    ]  # fmt: skip
    assert {one.handle.is_ordered for one in [*again, given_back]} == {False}
    pops.acknowledge(again[0])
    # Renewed once, it is known by its new handle only, and comes a third time after that lease.
    renewed = pops.change(pops.change(again[1], _LONG_MS), INVISIBLE_MS)
    assert renewed.offset == again[1].offset
    again.clear()
    wait(2 * INVISIBLE_MS)
    eventually(comes(b"5"), "its renewed lease is over, too")
    assert [(one.body, one.reconsume_times) for one in again] == [(b"5", 2)]
    pops.acknowledge(again[0])
