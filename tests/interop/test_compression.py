"""Bodies that Java's client compressed, by each of its ways, arrive as they were.

The other direction is in test_mixed_groups.py.
"""

from __future__ import annotations

from ordermq.core.compression import COMPRESSED
from ordermq.model.message_queue import MessageQueue
from tests.interop.java_process import JavaProcess
from tests.interop.run import Run

BODY = b"x" * (1 << 20)


def test_ordermq_reads_bodies_compressed_by_java(run: Run) -> None:
    run.cluster.put_topic(run.topic, {"broker-a": 1, "broker-b": 1})
    kinds = ["ZLIB", "LZ4", "ZSTD"] if run.cluster.version >= "5" else ["ZLIB"]
    for kind in kinds:
        sender = JavaProcess(
            run.cluster.version,
            "Sender",
            run.folder,
            name_servers=run.cluster.name_servers,
            options=[f"-Drocketmq.message.compressType={kind}"],
        )
        try:
            sent = sender.ask(f"large {run.topic} 0 2 2 {kind}")["sent"]
            assert len(sent) == 2
        finally:
            sender.kill()
        for receipt in sent:
            queue = MessageQueue(run.topic, receipt["broker"], receipt["queue"])
            stored = run.cluster.stored(queue, receipt["stored_id"])
            assert stored.sys_flag & COMPRESSED, "Java did compress it"
            assert len(stored.body) < len(BODY) / 10
    run.member("one")
    run.wait_for(lambda seen: len(seen) == 2 * len(kinds), "everything")
    assert {delivery.body for delivery in run.deliveries} == {BODY}
