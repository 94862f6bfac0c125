"""The admin commands on RocketMQ's brokers and name server (docs/operations.md)."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordermq import DeadLetter, ParkKey, PushConsumer
from ordermq.cli.main import main
from tests.interop.cluster import eventually
from tests.interop.run import MEMBER_SETTINGS, Run

SENT, KEYS = 48, 4
OF_KEY = SENT // KEYS


class Commands:
    """Runs commands against the cluster of a run."""

    def __init__(self, run: Run) -> None:
        self._servers = ["--name-servers", run.cluster.name_servers]

    def run(self, line: str) -> Result:
        return CliRunner().invoke(main, [*line.split(), *self._servers])

    def shown(self, line: str) -> str:
        got = self.run(line)
        assert got.exit_code == 0, f"{line}: {got.output}"
        return got.stdout + got.stderr

    def json(self, line: str) -> Any:
        got = self.run(f"{line} --json")
        assert got.exit_code == 0, f"{line}: {got.output}"
        return json.loads(got.stdout)


@pytest.fixture
def commands(run: Run) -> Commands:
    return Commands(run)


def consumer_of(run: Run, **settings: Any) -> PushConsumer:
    made = PushConsumer(
        run.group,
        name_servers=run.cluster.name_servers,
        suspend_current_queue_time_ms=10,
        **MEMBER_SETTINGS | {"consume_message_batch_max_size": 1} | settings,
    )
    made.subscribe(run.topic)
    return made


def test_topics_and_groups_are_shown_and_changed(run: Run, commands: Commands) -> None:
    made = commands.json(f"topics create {run.topic} --queues 2")
    assert len(made["queues"]) == 4
    run.send(SENT, KEYS)
    eventually(
        lambda: commands.json(f"topics describe {run.topic}")["messages"] == SENT, "all is stored"
    )
    assert run.topic in {row["name"] for row in commands.json("topics list")}
    assert "FAILED" not in commands.shown(f"config check --topic {run.topic}")
    assert sorted(
        int(row["body"]) for row in commands.json(f"peek {run.topic} --from first --count 100")
    ) == list(range(SENT))
    moved = commands.json(f"reset {run.group} {run.topic} --to last --yes")
    assert sum(row["after"] for row in moved) == SENT
    assert commands.json(f"lag {run.group} {run.topic}")["lag"] == 0
    commands.json(f"reset {run.group} {run.topic} --to first --yes")
    assert commands.run(f"lag {run.group} {run.topic} --at-most {SENT - 1}").exit_code == 1
    member = run.member("one")
    run.wait_for_all()
    eventually(
        lambda: (
            [
                (row["client_id"], len(row["queues"]) >= 4)
                for row in commands.json(f"groups describe {run.group}")["members"]
            ]
            == [(member.client_id, True)]
        ),
        "the member tells its queues",
    )
    eventually(lambda: commands.json(f"lag {run.group}")["lag"] == 0, "all is consumed")
    assert run.group in {row["group"] for row in commands.json("groups list")}
    assert "deleted" in commands.shown(f"topics delete {run.topic} --yes")
    assert commands.run(f"topics describe {run.topic}").exit_code == 3


def test_dead_letters_are_listed_shown_and_sent_again(run: Run, commands: Commands) -> None:
    commands.json(f"topics create {run.topic} --queues 2")
    consumer = consumer_of(run, on_failure=DeadLetter(max_attempts=1), pause_after_dead_letters=0)
    is_healed = threading.Event()

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        if messages[0].sharding_key == "k1" and not is_healed.is_set():
            raise ValueError("a test's own failure")

    def waiting() -> int:
        return sum(row["waiting"] for row in commands.json("dlq list") if row["group"] == run.group)

    with consumer:
        run.send(SENT, KEYS)
        eventually(lambda: waiting() == OF_KEY, "a key's messages are dead letters")
        letters = commands.json(f"dlq show {run.group} --count 100")
        assert [int(row["body"]) for row in letters] == list(range(1, SENT, KEYS))
        assert {row["sent_to"] for row in letters} == {run.topic}
        is_healed.set()
        done = commands.json(f"dlq redrive {run.group} --count 5 --yes")
        assert done.pop("overtaken_by") > 0  # later ones of its queue were consumed meanwhile
        assert done == {
            "group": run.group, "sent": 5, "keys": 1, "left": OF_KEY - 5,
        }  # fmt: skip
        left = [row["message_id"] for row in commands.json(f"dlq show {run.group} --waiting")]
        assert commands.json(f"dlq skip {run.group} {left[1]} --yes")["left"] == OF_KEY - 6
        assert commands.run(f"dlq redrive {run.group} --id {left[2]} --yes").exit_code == 1
        assert commands.json(f"dlq redrive {run.group} --id {left[0]} --yes")["left"] == OF_KEY - 7
        assert ", 0 left" in commands.shown(f"dlq redrive {run.group} --yes")
        eventually(lambda: waiting() == 0, "none waits")


def test_parked_keys_are_listed_shown_and_consumed_once_they_may(
    run: Run, commands: Commands
) -> None:
    parking = f"{run.topic}-held"
    commands.json(f"topics create {run.topic} --queues 2")
    consumer = consumer_of(run, on_failure=ParkKey(parking, max_attempts=1), order_by_key=True)
    is_healed = threading.Event()

    @consumer.orderly
    def listen(messages: Any, context: Any) -> None:
        if messages[0].sharding_key == "k1" and not is_healed.is_set():
            raise ValueError("a test's own failure")

    with consumer:
        run.send(SENT, KEYS)
        eventually(lambda: consumer.statistics["diverted"] == OF_KEY, "all of the key is parked")
        # A broker counts what it stored a moment later.
        eventually(
            lambda: (
                [
                    (row["group"], row["key"], row["messages"])
                    for row in commands.json(f"parked list {parking}")
                ]
                == [(run.group, "k1", OF_KEY)]
            ),
            "the key is listed",
        )
        parked = commands.json(f"parked show {parking} {run.group} k1")
        assert [int(message["body"]) for message in parked] == list(range(1, SENT, KEYS))
        is_healed.set()
        assert commands.json(f"parked redrive {parking} {run.group} k1 --yes --wait 60") == []
    assert commands.json(f"parked list {parking}") == []
