"""A model of POP without order, which says what a broker may answer, and steps that are done on a
broker and compared with it.

The model is the specification of docs/internals/semantics.md#pop-without-order in code; it shares
nothing with the embedded broker. When a message whose lease is over comes again is the broker's
affair, and so is whether an acknowledgement that comes at that time still counts. Property tests
compare it with the embedded broker, tests/interop with RocketMQ in real time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ordermq.remoting.codes import ResponseCode
from tests.pop_scripts import INVISIBLE_MS, Popped, UnorderedPops
from tests.waiting import eventually

LONG_MS = 60_000
_MOST = 32  # messages of a pop


@dataclass
class UnorderedPopModel:
    """One queue of one group, whose messages are numbered.

    Attributes:
        may_give_less: a pop may leave new messages where they are, as RocketMQ's does that comes
            before the one in front of it has given back the queue.
        next: the first message that nobody was given.
        until_ms: the end of each lease, by message; also of those that are over.
        attempts: deliveries that came to nothing, by message.
        done: acknowledged in time.
        maybe_done: acknowledged when the lease was over.
    """

    may_give_less: bool = False
    sent: int = 0
    next: int = 0
    until_ms: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    maybe_done: set[int] = field(default_factory=set)

    def popped(
        self,
        found: Sequence[tuple[int, int]],
        count: int,
        invisible_ms: int,
        now_ms: int,
        answered_ms: int,
    ) -> None:
        """Take the answer to a pop: messages, each with its attempts before.

        Args:
            now_ms: when the pop was sent. answered_ms: when its answer was there.
        Raises: AssertionError: it must not be this one.
        """  # fmt: skip
        assert len(found) <= count
        fresh = [number for number, _ in found if number >= self.next]
        again = [number for number, _ in found if number < self.next]
        assert len(set(again)) == len(again), "one message twice in an answer"
        wanted = min(count - len(again), self.sent - self.next)
        if self.may_give_less:
            wanted = min(wanted, len(fresh))
        assert fresh == list(range(self.next, self.next + wanted)), "not the next messages"
        for number in again:
            assert number not in self.done, f"{number} was acknowledged, and comes again"
            assert self.until_ms[number] <= answered_ms, f"{number} is leased, and comes again"
            self.attempts[number] += 1
        for number in fresh:
            self.attempts[number] = 0
        for number, attempts in found:
            assert attempts == self.attempts[number], f"{number} comes as attempt {attempts}"
            self.until_ms[number] = now_ms + invisible_ms
            self.maybe_done.discard(number)
        self.next += wanted

    def acknowledged(self, number: int, answered_ms: int) -> None:
        """Take an acknowledgement by the message's last handle."""
        (self.done if answered_ms < self.until_ms[number] else self.maybe_done).add(number)

    def changed(self, number: int, invisible_ms: int, now_ms: int) -> None:
        """Take a change of the lease of a message that has one."""
        self.until_ms[number] = now_ms + invisible_ms

    def has_lease(self, number: int, now_ms: int) -> bool:
        return number not in self.done | self.maybe_done and now_ms < self.until_ms[number]

    @property
    def left(self) -> set[int]:
        """Messages that must be delivered, the first time or again."""
        return set(range(self.sent)) - self.done - self.maybe_done


class UnorderedSteps:
    """Does steps on a broker, and compares what it answers with the model.

    Args:
        now_ms: the time of the broker's clock, as far as this process knows it.
        wait: passes time, in ms.
        may_give_less: of the model.
    """

    def __init__(
        self,
        pops: UnorderedPops,
        broker_name: str,
        now_ms: Callable[[], int],
        wait: Callable[[int], None],
        *,
        may_give_less: bool = False,
    ) -> None:
        self.pops = pops
        self.model = UnorderedPopModel(may_give_less)
        self.wait = wait
        self._broker_name = broker_name
        self._now_ms = now_ms
        self._last: dict[int, Popped] = {}  # with the handle that counts
        self._older: list[Popped] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            answer = self.pops.client.send(self.pops.topic, b"%d" % self.model.sent)
            assert answer.code == ResponseCode.SUCCESS, answer
            self.model.sent += 1
        # RocketMQ answers a send before its index has the message: a pop at once finds nothing.
        eventually(
            lambda: self.pops.client.max_offset(self.pops.topic) >= self.model.sent,
            "the index has what was sent",
        )

    def pop(self, count: int, invisible_ms: int) -> list[int]:
        """Pop; return the numbers of the messages."""
        now_ms = self._now_ms()
        found = self.pops.pop(self._broker_name, count, invisible_ms)
        told = [(int(each.body), each.reconsume_times) for each in found]
        self.model.popped(told, count, invisible_ms, now_ms, self._now_ms())
        self._last.update((int(each.body), each) for each in found)
        return [number for number, _ in told]

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """Acknowledge these messages, as far as they are popped, in one request."""
        those = [number for number in numbers if number in self._last]
        if those:
            self.pops.acknowledge(*map(self._last.__getitem__, those))
            for number in those:
                self.model.acknowledged(number, self._now_ms())

    def acknowledge_by_an_older_handle(self) -> None:
        """Acknowledge what a change has given another handle; that counts for nothing."""
        if self._older:
            self.pops.acknowledge(self._older.pop())

    def change(self, number: int, invisible_ms: int) -> None:
        """Change a lease, unless it may be over before the request arrives."""
        now_ms = self._now_ms()
        if number in self._last and self.model.has_lease(number, now_ms + INVISIBLE_MS // 2):
            self._older.append(self._last[number])
            self._last[number] = self.pops.change(self._last[number], invisible_ms)
            self.model.changed(number, invisible_ms, now_ms)

    def drain(self, eventually: Callable[[Callable[[], bool], str], object]) -> None:
        """Consume all that is left.

        Args: eventually: waits for a condition; what it is.
        """

        def is_empty() -> bool:
            self.acknowledge(self.pop(_MOST, LONG_MS))
            return not self.model.left

        # What is leased for long comes only then.
        self.acknowledge(sorted(self.model.left))
        eventually(is_empty, "everything that is left comes")


def play(steps: UnorderedSteps, seed: int, length: int = 40) -> Iterator[str]:
    """Do the steps of a seed; yield the name of each before it is done."""
    dice = random.Random(seed)
    steps.send(6)
    for _ in range(length):
        kind = dice.choice(["pop", "pop", "pop", "ack", "ack", "older", "change", "send", "wait"])
        yield kind
        if kind == "pop":
            steps.pop(dice.randint(1, 5), dice.choice([INVISIBLE_MS, LONG_MS]))
        elif kind == "ack":
            known = range(max(steps.model.next - 6, 0), max(steps.model.next, 1))
            steps.acknowledge(dice.sample(known, dice.randint(1, min(3, len(known)))))
        elif kind == "older":
            steps.acknowledge_by_an_older_handle()
        elif kind == "change":
            number = dice.randrange(max(steps.model.next - 6, 0), max(steps.model.next, 1))
            steps.change(number, dice.choice([0, INVISIBLE_MS, LONG_MS]))
        elif kind == "send":
            steps.send(dice.randint(1, 4))
        else:
            steps.wait(2 * INVISIBLE_MS)
