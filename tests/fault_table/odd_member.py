"""Group members in odd surroundings: python -m tests.fault_table.odd_member, with the arguments of
tests.interop.member and ORDERMQ_ODD=clock, hooks, interrupts or hungry in the environment."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from typing import Any, NoReturn

from ordermq import MessageView, PushConsumer
from ordermq.clock import SystemClock
from tests.component.interruption import InterruptedAt
from tests.interop import member

HOUR_MS = 3_600_000
LINES_OF_CLOSE = 120  # some more than it has
NEEDED_BYTES = 64 << 20


class JumpingClock(SystemClock):
    """A wall clock that jumps to and fro by up to an hour whenever it is read, and a host that
    seems to have slept for 0.5 s every few seconds."""

    def __init__(self) -> None:
        self._draw = random.Random(os.getpid())
        self._slept_ms = 0
        self._next_ms = super().now_ms() + 2_000

    def now_ms(self) -> int:
        now = super().now_ms()
        if now >= self._next_ms:
            self._next_ms = now + 2_000
            self._slept_ms += 500
        return now + self._slept_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._draw.randrange(-HOUR_MS, HOUR_MS)


class BrokenHook:
    """An observer that raises before and after each call."""

    def before(self, call: Any) -> NoReturn:
        raise ValueError("an observer's")

    def after(self, call: Any) -> NoReturn:
        raise OSError(28, "No space left on device")


def interrupt_close(consumer: PushConsumer) -> None:
    """Have Ctrl-C come at a line of its `close`, by chance."""
    close, line = consumer.close, random.Random(os.getpid()).randrange(1, LINES_OF_CLOSE)

    def close_interrupted() -> bool:
        with InterruptedAt(line):
            return close()

    consumer.close = close_interrupted  # type: ignore[assignment, method-assign]


def need_memory(message: MessageView) -> bool:
    """A filter that fails its call if there is none."""
    # Reserved only: to fill it would take longer than the call.
    with mmap.mmap(-1, NEEDED_BYTES):
        return True


def main() -> None:
    odd = os.environ["ORDERMQ_ODD"]
    if odd == "clock":
        member.main(clock=JumpingClock())
    elif odd == "hooks":
        member.main(lambda consumer: consumer.add_hook(BrokenHook()))
    elif odd == "interrupts":
        with contextlib.suppress(KeyboardInterrupt):
            member.main(interrupt_close)
    elif odd == "hungry":
        member.main(lambda consumer: consumer.add_filter(need_memory))
    else:
        raise SystemExit(f"ORDERMQ_ODD={odd}")


if __name__ == "__main__":
    main()
