"""The data of `ordermq lag`, `locks` and `top`, from RocketMQ's brokers and Java's members."""

from __future__ import annotations

from ordermq.admin.admin import Admin
from tests.interop.cluster import eventually
from tests.interop.run import Run

QUEUES = {"broker-a": 2, "broker-b": 2}


def test_a_mixed_group_reports_lock_holders_and_lag(run: Run) -> None:
    run.cluster.put_topic(run.topic, QUEUES)
    run.send(40)
    run.member("ours")
    java = run.java_member("java")
    try:
        run.wait_for_all()
        with Admin(run.cluster.name_servers) as admin:
            ours = run.members["ours"].client_id

            def is_shared() -> bool:
                state = admin.group(run.group, [run.topic])
                held = [name for name, said in state.holdings.values() if said.is_locked]
                return held.count(ours) == 2 and len(held) == 4 and not state.lag

            eventually(is_shared, "two queues locked by each member, all committed")
            state = admin.group(run.group, [run.topic])
    finally:
        java.kill()
    assert {member.language for member in state.members} == {"JAVA", "PYTHON"}
    assert sum(row.committed or 0 for row in state.progress.values()) == 40
    assert state.locks is None  # RocketMQ has no request for them
    assert not state.silent
