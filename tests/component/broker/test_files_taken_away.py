"""Files of a running broker that somebody deletes or replaces: nothing more is acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.errors import BrokerError
from tests.component.conftest import eventually


@pytest.mark.parametrize("suffix", ["", "-wal", ".lock"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_would_be_lost_is_refused_until_the_file_is_back(
    tmp_path: Path, suffix: str, is_replaced: bool
) -> None:
    path = tmp_path / "broker.db"
    file, aside = Path(f"{path}{suffix}"), tmp_path / "aside"
    with (
        EmbeddedBroker(path) as broker,
        Producer("pg", name_servers=broker.name_servers, retry_times=0) as producer,
    ):
        producer.send(Message("orders", b"before"), sharding_key="k")
        file.rename(aside)
        if is_replaced:
            file.touch()
        with pytest.raises(BrokerError, match="was replaced" if is_replaced else "was removed"):
            producer.send(Message("orders", b"lost"), sharding_key="k")
        assert not broker.health().is_ready
        aside.rename(file)
        receipt = producer.send(Message("orders", b"after"), sharding_key="k")
        assert receipt.queue_offset == 1
        eventually(lambda: broker.health().is_ready, "it writes again")


def test_a_second_broker_behind_another_lock_file_leaves_one_that_writes(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with EmbeddedBroker(path) as first:
        Path(f"{path}.lock").unlink()
        with EmbeddedBroker(path) as second:
            for broker in (first, second):
                with Producer("pg", name_servers=broker.name_servers, retry_times=0) as producer:
                    if broker is first:
                        with pytest.raises(BrokerError, match=r"\.lock was replaced"):
                            producer.send(Message("orders", b"1"), sharding_key="k")
                    else:
                        producer.send(Message("orders", b"1"), sharding_key="k")
