"""What `ordermq lag`, `locks` and `top` are made of, on RocketMQ's brokers and Java's members."""

from __future__ import annotations

from ordermq.client.group_inspector import GroupInspector
from tests.interop.cluster import eventually
from tests.interop.java_process import JavaProcess, to_boot_time_ns
from tests.interop.run import Run

QUEUES = {"broker-a": 2, "broker-b": 2}


def test_a_group_of_java_and_ours_tells_who_holds_what_and_how_far_it_is(run: Run) -> None:
    run.cluster.put_topic(run.topic, QUEUES)
    run.send(40)
    run.member("ours")
    java = JavaProcess(
        run.cluster.version,
        "Member",
        run.folder,
        on_line=lambda line: run.deliver("java", line),
        mode="orderly",
        group=run.group,
        topic=run.topic,
        name_servers=run.cluster.name_servers,
        history=run.folder / "java.jsonl",
        to_boot_time_ns=to_boot_time_ns(),
    )
    try:
        run.wait_for_all()
        with GroupInspector(run.cluster.name_servers) as inspector:
            ours = run.members["ours"].client_id

            def is_shared() -> bool:
                state = inspector.look(run.group, [run.topic])
                held = [name for name, said in state.holdings.values() if said.is_locked]
                return held.count(ours) == 2 and len(held) == 4 and not state.lag

            eventually(is_shared, "two queues locked by each member, all committed")
            state = inspector.look(run.group, [run.topic])
    finally:
        java.kill()
    assert {member.language for member in state.members} == {"JAVA", "PYTHON"}
    assert sum(row.committed or 0 for row in state.progress.values()) == 40
    assert state.locks is None  # RocketMQ has no request for them
    assert not state.silent
