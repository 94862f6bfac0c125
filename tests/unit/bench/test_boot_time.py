"""Java's clock beside that of histories."""

from __future__ import annotations

import time

from bench.boot_time import to_boot_time_ns

DIFFERENCE_NS = 5_000_000_000


def test_a_pause_between_two_readings_shifts_nothing() -> None:
    now_ns, turns = 1_000, 0

    def read_ns(clock: int) -> int:
        nonlocal now_ns, turns
        turns += 1
        # The process is not run for 150 ms, between the readings of one turn and of another.
        now_ns += 150_000_000 if turns in (2, 9) else 100
        return now_ns if clock == time.CLOCK_MONOTONIC else now_ns + DIFFERENCE_NS

    assert abs(to_boot_time_ns(read_ns, 4) - DIFFERENCE_NS) <= 100


def test_the_clocks_of_this_machine_differ_by_the_time_it_has_slept() -> None:
    assert to_boot_time_ns() >= -1_000_000
