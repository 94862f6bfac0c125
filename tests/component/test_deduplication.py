"""`deduplicate=N`: a copy that a producer sent again is not handed to a listener a second time
(docs/internals/semantics.md#de-duplication), on a broker that stores copies, as RocketMQ does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ordermq import (
    ConsumeResult,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ordermq.audit import audit
from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.errors import ConfigError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.command import Command
from tests.component.broker.wire_client import WireClient
from tests.component.conftest import Seen, eventually
from tests.component.damaging_proxy import DamagingProxy
from tests.component.test_orderly_consumer import committed

MakeConsumer = Callable[..., PushConsumer]


@pytest.fixture
def broker_config() -> BrokerConfig:
    # As RocketMQ: every copy is stored.
    return BrokerConfig(
        broker_name="b", durability="os", lock_max_live_ms=6_000, duplicate_window=0
    )


@pytest.fixture
def late(broker: EmbeddedBroker) -> Iterator[Callable[..., None]]:
    """Sends messages with these ids to queue 0, each letter's own body and key; a repeated letter
    is a late copy."""
    with WireClient(broker.port) as client:

        def send(names: str, *, topic: str = "orders", tag: str = "t") -> None:
            for name in names:
                about = {"UNIQ_KEY": name, "TAGS": tag, "__SHARDINGKEY": f"k{name}"}
                assert client.send(topic, name.encode(), properties=about).code == 0

        yield send


def bodies(seen: Seen) -> str:
    return "".join(body.decode() for _, _, _, body in seen.deliveries)


KINDS: dict[str, dict[str, Any]] = {
    "orderly": {},
    "orderly batches": {"consume_message_batch_max_size": 32},
    "by key": {"order_by_key": True},
    "concurrent": {"concurrent": True},
    "broadcasting": {"message_model": "broadcasting"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_sees_each_message_once(
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    late: Callable[..., None],
    tmp_path: Path,
    kind: str,
) -> None:
    late("ABACADBE")
    own = {"local_offset_store_dir": str(tmp_path)} | KINDS[kind]
    with make_consumer(seen.take, deduplicate=100, **own) as consumer:
        seen.wait_for_count(5)
        late("EDCBAF")  # copies at an end that was consumed, and in an answer of their own
        seen.wait_for_count(6)
        assert "".join(sorted(bodies(seen))) == "ABCDEF"
        if kind not in ("by key", "concurrent"):  # these have no order between keys
            assert bodies(seen) == "ABCDEF"
        eventually(lambda: consumer.statistics["copies_dropped"] == 8, "8 copies counted")
        eventually(lambda: consumer.statistics["behind"] == 0, "done past the copies")
    if kind != "broadcasting":
        assert committed(broker) == 14


def test_copies_alone_are_committed_past(
    broker: EmbeddedBroker, make_consumer: MakeConsumer, seen: Seen, late: Callable[..., None]
) -> None:
    late("AB")
    with make_consumer(seen.take, deduplicate=100) as consumer:
        seen.wait_for_count(2)
        late("BA")
        eventually(lambda: consumer.statistics["copies_dropped"] == 2, "both are dropped")
        eventually(lambda: committed(broker) == 4, "and committed past")
    assert bodies(seen) == "AB"


@pytest.mark.parametrize("settings", [{}, {"ordered": True}], ids=["plain", "ordered"])
def test_a_poll_hands_out_each_message_once(
    broker: EmbeddedBroker, late: Callable[..., None], settings: dict[str, Any]
) -> None:
    late("ABACADBE")
    found = ""
    with LitePullConsumer(
        "g",
        name_servers=broker.name_servers,
        deduplicate=100,
        consume_from_where="first_offset",
        **settings,
    ) as consumer:
        consumer.subscribe("orders")
        while len(found) < 6:
            found += "".join(bytes(message.body).decode() for message in consumer.poll())
            if found == "ABCDE":
                late("EDCBAF")
        consumer.commit()
        assert found == "ABCDEF"
        assert consumer.statistics["copies_dropped"] == 8
    assert committed(broker) == 14


def test_the_next_owner_knows_the_messages_before_it(
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    late: Callable[..., None],
    broker_history: Path,
    tmp_path: Path,
) -> None:
    """Through three restarts: what was consumed before is read again from the log."""
    histories = [broker_history]
    found = ""
    late("ABC")
    for new, copies in (("D", "ABC"), ("E", "DA"), ("F", "EDB"), ("G", "FE")):
        histories.append(tmp_path / f"{new}.jsonl")
        late(copies + new)
        seen = Seen()
        with make_consumer(seen.take, deduplicate=100, history=histories[-1]) as consumer:
            seen.wait_for(lambda got, new=new: got[-1:] and got[-1][3] == new.encode(), new)
            eventually(lambda: consumer.statistics["behind"] == 0, "done past the copies")
        assert consumer.statistics["copies_dropped"] == len(copies)
        found += bodies(seen)
    assert found == "ABCDEFG"
    broker.close()
    report = audit(histories)
    assert report.ok, report.violations
    assert (report.stored, report.delivered, report.dropped) == (17, 7, 10)


def test_a_copy_further_behind_than_the_window_is_delivered(
    make_consumer: MakeConsumer, seen: Seen, late: Callable[..., None]
) -> None:
    late("ABCADEFGAB")  # A again after 3 offsets, and after 5; B after 8
    with make_consumer(seen.take, deduplicate=3) as consumer:
        seen.wait_for_count(9)
        assert bodies(seen) == "ABCDEFGAB"
        assert consumer.statistics["copies_dropped"] == 1


def test_by_default_every_copy_is_delivered(
    make_consumer: MakeConsumer, seen: Seen, late: Callable[..., None]
) -> None:
    late("ABA")
    with make_consumer(seen.take) as consumer:
        seen.wait_for_count(3)
        assert consumer.statistics["copies_dropped"] == 0
    assert bodies(seen) == "ABA"


def test_a_message_that_is_retried_is_no_copy(
    make_consumer: MakeConsumer, late: Callable[..., None]
) -> None:
    """It is sent back to the retry topic under the same id, as often as it fails."""
    attempts: list[int] = []
    ended = threading.Event()

    def fail_three_times(messages: Sequence[MessageView], context: Any) -> ConsumeResult:
        if bytes(messages[0].body) == b"A":
            attempts.append(messages[0].reconsume_times)
            if len(attempts) < 4:
                context.delay_level = 1
                return ConsumeResult.LATER
            ended.set()
        return ConsumeResult.SUCCESS

    late("ABA")
    with make_consumer(fail_three_times, concurrent=True, deduplicate=100) as consumer:
        assert ended.wait(40)
        assert consumer.statistics["copies_dropped"] == 1
    assert attempts == [0, 1, 2, 3]


def test_only_messages_of_the_subscription_count(
    make_consumer: MakeConsumer, seen: Seen, late: Callable[..., None]
) -> None:
    late("AB")
    late("AC", tag="other")
    late("BAD")
    with make_consumer(seen.take, tags="t", deduplicate=100) as consumer:
        seen.wait_for_count(3)
        assert (bodies(seen), consumer.statistics["copies_dropped"]) == ("ABD", 2)


def test_after_a_seek_the_window_is_that_of_the_new_place(
    broker: EmbeddedBroker, late: Callable[..., None]
) -> None:
    late("ABACB")
    with LitePullConsumer("g", name_servers=broker.name_servers, deduplicate=2) as consumer:
        queue = MessageQueue("orders", "b", 0)
        consumer.assign([queue])
        for start, expected in ((0, "ABCB"), (1, "BCB"), (2, "CB"), (4, "B"), (0, "ABCB")):
            consumer.seek(queue, start)
            found = ""
            while len(found) < len(expected):
                found += "".join(bytes(message.body).decode() for message in consumer.poll())
            assert found == expected, start
            assert not len(consumer.poll(0))


class LostAnswers:
    """Takes the answers to sends away, from `is_on` on: the producer sends again and again."""

    def __init__(self) -> None:
        self.is_on = threading.Event()

    def __call__(self, command: Command) -> None:
        if "queueOffset" in command.ext and "msgId" in command.ext and self.is_on.is_set():
            command.opaque = 0  # an answer to nobody


MEMBER = """
import sys
from ordermq import PushConsumer

def listen(messages, context):
    for message in messages:
        print(bytes(message.body).decode(), flush=True)

consumer = PushConsumer(
    "g", name_servers=sys.argv[1], deduplicate=100, consume_from_where="first_offset",
    commit_interval_ms=10,
)
consumer.subscribe("orders")
consumer.orderly(listen)
consumer.run()
"""


class Member:
    """A member in a process of its own; `seen` has what its listener got."""

    def __init__(self, address: str) -> None:
        self.seen: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, address], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self.seen.extend(line.strip() for line in lines)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


def test_a_killed_members_successor_drops_what_a_producer_sends_again() -> None:
    """The producer gets no answer and sends again; the member that consumed the first copy is
    killed before the last one is stored."""
    config = BrokerConfig(
        broker_name="b", durability="os", lock_max_live_ms=1_000, duplicate_window=0
    )
    lost = LostAnswers()
    members: list[Member] = []
    with EmbeddedBroker(config=config) as broker, DamagingProxy(broker.address, lost) as proxy:
        sending = {"retry_times": 100, "send_timeout_ms": 200, "default_topic_queue_nums": 1}
        with Producer("p", name_servers=proxy.address, **sending) as producer:
            try:
                producer.send(Message("orders", b"first"), sharding_key="k")
                lost.is_on.set()
                pending = producer.send_nowait(Message("orders", b"second"), sharding_key="k")
                members.append(Member(broker.address))
                eventually(lambda: committed(broker) >= 2, "the first copy is committed")
                members[0].kill()
                stored = broker.statistics.messages_stored
                eventually(lambda: broker.statistics.messages_stored > stored, "another copy")
                lost.is_on.clear()
                pending.result(20)
                members.append(Member(broker.address))
                producer.send(Message("orders", b"third"), sharding_key="k")
                end = broker.statistics.messages_stored
                eventually(lambda: committed(broker) == end, "everything is committed")
            finally:
                for member in members:
                    member.kill()
    assert end > 4, "copies were stored"
    assert [member.seen for member in members] == [["first", "second"], ["third"]]


@pytest.mark.parametrize("size", [-1, 1_000_001])
def test_a_window_out_of_range_is_refused(size: int) -> None:
    for make in (PushConsumer, LitePullConsumer):
        with pytest.raises(ConfigError, match="deduplicate"):
            make("g", name_servers="127.0.0.1:1", deduplicate=size)


def test_a_consumer_that_pulls_offset_by_offset_cannot_deduplicate() -> None:
    with pytest.raises(ConfigError, match="deduplicate"):
        PullConsumer("g", name_servers="127.0.0.1:1", deduplicate=10)


@pytest.mark.parametrize("kind", KINDS)
def test_other_bodies_under_one_id_are_no_copies(
    broker: EmbeddedBroker,
    make_consumer: MakeConsumer,
    seen: Seen,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """Java keeps the id of a Message object that is sent again with another body."""
    with WireClient(broker.port) as client:
        about = {"UNIQ_KEY": "one", "__SHARDINGKEY": "k"}
        for body in ("A", "B", "C", "A", "B"):
            assert client.send("orders", body.encode(), properties=about).code == 0
    own = {"local_offset_store_dir": str(tmp_path)} | KINDS[kind]
    with make_consumer(seen.take, deduplicate=100, **own) as consumer:
        seen.wait_for_count(3)
        eventually(lambda: consumer.statistics["copies_dropped"] == 2, "true copies are dropped")
    assert "".join(sorted(bodies(seen))) == "ABC"
    told = [record for record in caplog.records if "copies that were sent again" in record.message]
    assert [record.levelname for record in told if record.levelname == "WARNING"] == ["WARNING"]
