"""Message traces: the admin tool reads those of ordermq, ordermq reads those of Java."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.remoting.trace import Published, TraceRecord, read
from tests.component.broker.wire_client import records
from tests.interop.cluster import Cluster, eventually
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACED = {"enable_msg_trace": True, "trace_interval_ms": 50}


@pytest.fixture
def admin(cluster: Cluster, tmp_path: Path) -> Iterator[JavaProcess]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "logback_tools.xml").write_text("<configuration/>")  # 4.9 asks for it
    home = [f"-Drocketmq.home.dir={tmp_path}"]
    process = JavaProcess(cluster.version, "Admin", tmp_path, options=home)
    yield process
    process.kill()


def test_the_admin_tool_shows_traces_of_sends_and_consumption(run: Run, admin: JavaProcess) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    run.producer_settings = dict(TRACED)
    with Producer("silent", name_servers=run.cluster.name_servers) as silent:
        untraced = silent.send(Message(run.topic, b"0"))
    receipt = run.producer.send(Message(run.topic, b"1", tags="t", keys=["o-1"]))
    run.member("m", **TRACED)
    run.wait_for(lambda seen: len(seen) == 2, "both messages")
    line = f"queryMsgTraceById -n {run.cluster.name_servers} -i {receipt.message_id}"
    told = ""

    def is_shown() -> bool:
        nonlocal told
        told = admin.ask(line)["told"]
        return bool(re.search(r"^Pub ", told, re.M) and re.search(r"^Sub ", told, re.M))

    eventually(is_shown, "the trace is shown")
    group = f"producer-{run.group}"
    assert re.search(rf"^Pub +{group} .* success", told, re.M), told
    assert re.search(rf"^Sub +{run.group} .* success", told, re.M), told
    # Its trace would have been there before the other's: it is off unless it is asked for.
    assert not any(isinstance(r, Published) for r in traced(run.cluster, untraced.message_id))


def test_ordermq_reads_the_traces_of_javas_client(
    run: Run, cluster: Cluster, tmp_path: Path
) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 2, "broker-b": 2})
    java = JavaProcess(
        cluster.version, "Sender", tmp_path, name_servers=cluster.name_servers, trace="true"
    )
    try:
        (sent,) = java.ask(f"sync {run.topic} 0 1 8 paid")["sent"]
        eventually(lambda: traced(cluster, sent["id"]) != [], "Java's trace arrives")
    finally:
        java.kill()
    (record,) = traced(cluster, sent["id"])
    assert isinstance(record, Published)
    assert (record.group, record.topic, record.tags) == ("java-sender", run.topic, "paid")
    assert (record.keys, record.is_success) == ("word-0 all", True)
    assert record.offset_message_id == sent["stored_id"]


def traced(cluster: Cluster, message_id: str) -> list[TraceRecord]:
    """Return the trace records of a message at all brokers."""
    ext = {
        "topic": TRACE_TOPIC, "key": message_id, "maxNum": "64", "beginTimestamp": "0",
        "endTimestamp": str(1 << 60), "_UNIQUE_KEY_QUERY": "false",
    }  # fmt: skip
    found: list[TraceRecord] = []
    for broker in ("broker-a", "broker-b"):
        answer = cluster.ask(broker, 12, ext)
        if answer.code == 0:
            found += [r for m in records(answer.body) for r in read(m.body.decode())]
    return [record for record in found if record.message_id == message_id]
