"""A smaller run of ci/chaos.sh: 20,000 messages through every kind of fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.interop.chaos import Chaos
from tests.interop.cluster import Cluster

SEED = 20_261_121

pytestmark = [pytest.mark.restarts, pytest.mark.timeout(600)]


def test_a_mixed_group_loses_nothing_and_keeps_order_while_members_and_a_broker_fail(
    cluster: Cluster, tmp_path: Path
) -> None:
    outcome = Chaos(cluster, tmp_path, messages=20_000, faults=9, seed=SEED).play()
    assert outcome.problems == [], json.dumps(outcome.summary(), indent=1)
    assert outcome.report.delivered >= 20_000
    assert sum(outcome.faults.values()) == 9
    assert outcome.faults["broker"] == 1
