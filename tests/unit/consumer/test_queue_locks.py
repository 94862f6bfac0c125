"""How long a grant is trusted (docs/internals/semantics.md#leases-and-renewal)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordermq.config import LeaseConfig
from ordermq.consumer.group.queue_locks import LeaseTimes
from ordermq.consumer.queue.assigned_queue import Lease


@pytest.mark.parametrize(
    ("broker_lease_ms", "times"),
    [
        (None, LeaseTimes(30_000, 2_000, 20_000)),
        (60_000, LeaseTimes(30_000, 2_000, 20_000)),
        (600_000, LeaseTimes(30_000, 2_000, 20_000)),
        (6_000, LeaseTimes(3_000, 600, 2_000)),
        (1_000, LeaseTimes(500, 100, 333)),
    ],
)
def test_times_are_javas_ratios_of_the_brokers_own(
    broker_lease_ms: int | None, times: LeaseTimes
) -> None:
    assert LeaseTimes.of(LeaseConfig(), broker_lease_ms) == times


@given(
    st.integers(100, 100_000),
    st.integers(10, 99),
    st.integers(0, 100_000),
    st.none() | st.integers(100, 200_000),
)
def test_a_client_renews_before_its_lease_ends_and_stops_before_another_may_start(
    live_ms: int, renew_percent: int, margin_ms: int, broker_lease_ms: int | None
) -> None:
    config = LeaseConfig(
        lock_max_live_ms=live_ms,
        lock_interval_ms=max(10, live_ms * renew_percent // 100),
        lease_margin_ms=margin_ms,
    )
    times = LeaseTimes.of(config, broker_lease_ms)
    lease = times.lease(epoch=3, sent_ms=1_000, is_fenced=True)
    assert lease.epoch == 3
    assert lease.deadline_ms > 1_000
    assert times.renew_ms >= 1
    if broker_lease_ms is not None:
        assert lease.deadline_ms - 1_000 <= broker_lease_ms // 2
        assert times.renew_ms <= broker_lease_ms // 3


def test_a_lease_counts_from_the_send_of_its_request() -> None:
    lease = LeaseTimes(30_000, 2_000, 20_000).lease(7, sent_ms=5_000, is_fenced=False)
    assert lease == Lease(7, 33_000, False)
    assert lease.is_valid(32_999)
    assert not lease.is_valid(33_000)
