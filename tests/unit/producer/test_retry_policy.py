"""Decisions after a failed attempt to send (docs/internals/semantics.md#ordered-sends)."""

from __future__ import annotations

import pytest

from ordermq.config import SendConfig
from ordermq.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    OrderMQError,
    ProtocolError,
    RequestTimeout,
    RouteError,
)
from ordermq.producer.retry_policy import AfterFailure, decide, retry_delay_ms

CONFIG = SendConfig(retry_times=2, retry_delay_ms=100)
AGAIN, REFUSED, UNKNOWN = AfterFailure.SEND_AGAIN, AfterFailure.REFUSED, AfterFailure.UNKNOWN


def broker(code: int, remark: str = "no") -> BrokerError:
    return BrokerError(remark, response_code=code)


@pytest.mark.parametrize(
    ("error", "steps"),
    [
        (RequestTimeout("late"), [AGAIN, AGAIN, UNKNOWN]),
        (ConnectionLost("cut"), [AGAIN, AGAIN, UNKNOWN]),
        (ConnectFailed("refused"), [AGAIN, AGAIN, REFUSED]),
        (ProtocolError("garbled answer"), [UNKNOWN, UNKNOWN, UNKNOWN]),
        (broker(2), [AGAIN, AGAIN, REFUSED]),
        (broker(14), [AGAIN, AGAIN, REFUSED]),
        (broker(215), [AGAIN, AGAIN, REFUSED]),
        (broker(1500), [AGAIN, AGAIN, REFUSED]),
        (broker(1), [REFUSED, REFUSED, REFUSED]),
        (broker(1, "in-sync replicas not enough"), [AGAIN, AGAIN, REFUSED]),
        (
            broker(1, "create mapped file failed, server is busy or broken."),
            [AGAIN, AGAIN, REFUSED],
        ),
        (broker(13), [REFUSED, REFUSED, REFUSED]),
        (broker(16), [REFUSED, REFUSED, REFUSED]),
        (broker(17), [REFUSED, REFUSED, REFUSED]),
        (RouteError("nobody"), [REFUSED, REFUSED, REFUSED]),
    ],
)
def test_the_step_after_each_attempt(error: OrderMQError, steps: list[AfterFailure]) -> None:
    assert [decide(error, attempts, False, CONFIG) for attempts in (1, 2, 3)] == steps


@pytest.mark.parametrize("error", [broker(2), broker(16), RouteError("nobody")])
def test_once_an_attempt_may_have_been_stored_no_refusal_makes_that_undone(
    error: OrderMQError,
) -> None:
    assert decide(error, 3, True, CONFIG) is UNKNOWN


def test_without_retries_a_time_out_is_unknown_at_once() -> None:
    assert decide(RequestTimeout("late"), 1, False, SendConfig(retry_times=0)) is UNKNOWN


def test_pauses_double_up_to_sixteen_times_the_first() -> None:
    assert [retry_delay_ms(attempts, CONFIG) for attempts in range(1, 8)] == [
        100, 200, 400, 800, 1_600, 1_600, 1_600,
    ]  # fmt: skip
    assert retry_delay_ms(1_000, CONFIG) == 1_600
