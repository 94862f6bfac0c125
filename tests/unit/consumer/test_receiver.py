"""Flow control of the pull loop (docs/internals/semantics.md#pull-loop)."""

from __future__ import annotations

import pytest

from ordermq.config import PullConfig
from ordermq.consumer.queue.receiver import Flow, flow_by_fill, flow_by_fill_and_span

CONFIG = PullConfig(pull_threshold_for_queue=1_000, pull_threshold_size_for_queue_mib=2)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("messages", "pending", "size_bytes", "flow"),
    [
        (0, 0, 0, Flow.PULL),
        (1_000, 1, 0, Flow.PULL),
        (1_001, 1, 0, Flow.WAIT_FOR_COUNT),
        (1, 1, 2 * MIB, Flow.PULL),
        (1, 1, 2 * MIB + 1, Flow.WAIT),
    ],
)
def test_pulling_waits_strictly_above_a_threshold(
    messages: int, pending: int, size_bytes: int, flow: Flow
) -> None:
    assert flow_by_fill(CONFIG, messages, pending, size_bytes) is flow


def test_a_buffer_with_nothing_pending_never_stops_pulling() -> None:
    # Manual mode: only another listener call can commit what is held; waiting for room
    # here would wait for ever (docs/internals/semantics.md#listener-results).
    assert flow_by_fill(CONFIG, 5_000, 0, 500 * MIB) is Flow.PULL


@pytest.mark.parametrize(
    ("messages", "size_bytes", "span", "flow"),
    [
        (1_000, 2 * MIB, 2_000, Flow.PULL),
        (1_001, 0, 0, Flow.WAIT_FOR_COUNT),
        (1, 2 * MIB + 1, 0, Flow.WAIT),
        (1, 0, 2_001, Flow.WAIT),
        (0, 0, 0, Flow.PULL),
    ],
)
def test_a_concurrent_group_also_waits_for_its_oldest_unfinished_message(
    messages: int, size_bytes: int, span: int, flow: Flow
) -> None:
    assert flow_by_fill_and_span(CONFIG, messages, size_bytes, span) is flow
