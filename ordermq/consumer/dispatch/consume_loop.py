"""The steps of a queue's turn, and who performs them.

A generator decides the course of a turn; a thread drives it for plain listeners and a task on a
second loop for `async def` ones, so both follow the same rules.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from ordermq.client.runtime import Runtime
from ordermq.consumer.listener import ConsumeContext, Listener
from ordermq.consumer.queue.assigned_queue import AssignedQueue
from ordermq.model.status import ConsumeResult

_SUCCESS = ConsumeResult.SUCCESS


@dataclass(frozen=True, slots=True)
class OnIoThread:
    """A step of a turn: run this on the I/O thread."""

    work: Coroutine[Any, Any, object]


# What came of a step: (value, None) or (None, the error it raised).
Outcome = tuple[object, BaseException | None]


class ListenerCalls:
    """A step of a turn: call the listener with one context after the other.

    Whoever drives the turn answers with the first context whose outcome is not `plain`, or with
    None after the last one. The step may be taken up again from there: to ask for the next
    context is to say that the batch before is done.
    """

    __slots__ = ("batches", "contexts", "is_judged", "messages")

    contexts: Iterator[ConsumeContext]
    is_judged: bool  # no outcome is plain
    messages: int  # done
    batches: int

    def is_plain(self, value: object) -> bool:
        """Whether a call that returned `value` is done without being judged."""
        return (value is _SUCCESS or value is None) and not self.is_judged


Called = tuple[ConsumeContext, Outcome] | None
# A turn yields what is to be done: listener calls, one call alone, or work of the I/O thread.
Turn = Generator[ListenerCalls | ConsumeContext | OnIoThread, Any, None]


class ConsumeLoop:
    """Performs the steps of turns.

    Args:
        turn_of: begins a queue's turn.
        recover: told of a queue whose turn ended with an error, which is being handled.
    """

    def __init__(
        self,
        listener: Listener,
        runtime: Runtime,
        turn_of: Callable[[AssignedQueue], Turn],
        recover: Callable[[AssignedQueue], None],
    ) -> None:
        self._listener = listener
        self._runtime = runtime
        self._turn_of = turn_of
        self._recover = recover

    def drive(self, assigned: AssignedQueue) -> None:
        turn = self._turn_of(assigned)
        try:
            step = next(turn)
            while True:
                step = turn.send(self._perform(step))
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - logged, and the queue restarts
            self._recover(assigned)

    def _perform(self, step: ListenerCalls | ConsumeContext | OnIoThread) -> Called | Outcome:
        if isinstance(step, ListenerCalls):
            return self._call_all(step)
        try:
            if isinstance(step, ConsumeContext):
                return self._listener(step.messages, step), None
            return self._runtime.call(step.work), None
        # BaseException: a listener's sys.exit() must suspend its queue, not end our thread.
        except BaseException as error:  # noqa: BLE001 - handed on as the outcome
            return None, error

    def _call_all(self, calls: ListenerCalls) -> Called:
        listener, is_judged = self._listener, calls.is_judged
        for context in calls.contexts:
            try:
                value = listener(context.messages, context)
            except BaseException as error:  # noqa: BLE001 - handed on as the outcome
                return context, (None, error)
            if (value is not _SUCCESS and value is not None) or is_judged:  # is_plain, spelled out
                return context, (value, None)
        return None

    async def drive_async(self, assigned: AssignedQueue) -> None:
        turn = self._turn_of(assigned)
        try:
            step = next(turn)
            while True:
                step = turn.send(await self._perform_async(step))
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - logged, and the queue restarts
            self._recover(assigned)

    async def _perform_async(
        self, step: ListenerCalls | ConsumeContext | OnIoThread
    ) -> Called | Outcome:
        if isinstance(step, ListenerCalls):
            for context in step.contexts:
                value, raised = outcome = await self._call_async(context)
                if raised is not None or not step.is_plain(value):
                    return context, outcome
            return None
        if isinstance(step, ConsumeContext):
            return await self._call_async(step)
        try:
            return await asyncio.wrap_future(self._runtime.submit(step.work)), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed on as the outcome
            return None, error

    async def _call_async(self, context: ConsumeContext) -> Outcome:
        try:
            answer = self._listener(context.messages, context)
            return (await answer if inspect.isawaitable(answer) else answer), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed on as the outcome
            return None, error
