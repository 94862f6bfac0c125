"""`ordermq config check`: each step from the environment to a group."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker
from ordermq.cli.main import main
from ordermq.config import BrokerConfig


def check(*arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
    """Run it; return its exit code, the failure or success of each step, and the error."""
    got = CliRunner().invoke(main, ["config", "check", *arguments, "--json"], env=env)
    steps = json.loads(got.stdout)["steps"] if got.stdout else []
    return got.exit_code, {step["name"]: step["is_ok"] for step in steps}, got.stderr


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Producer("p", name_servers=running.name_servers) as producer:
            producer.send(Message("orders", b"0"))
        yield running


@pytest.fixture
def nowhere() -> str:
    """Address nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_everything_that_works_is_named(broker: EmbeddedBroker) -> None:
    at = broker.name_servers
    code, steps, error = check("--name-servers", at, "--topic", "orders", "--group", "billing")
    assert code == 0, error
    assert steps == {
        "environment": True,
        f"name server {at}": True,
        "brokers": True,
        f"broker embedded at {at}": True,
        "topic orders": True,
        "group billing": True,
    }
    shown = CliRunner().invoke(main, ["config", "check", "--name-servers", at]).stdout
    assert "ok     brokers: embedded" in shown


def test_one_of_two_name_servers_is_enough_and_the_other_is_named(
    broker: EmbeddedBroker, nowhere: str
) -> None:
    code, steps, error = check("--name-servers", f"{nowhere};{broker.name_servers}")
    assert (code, steps[f"name server {nowhere}"], steps["brokers"]) == (3, False, True)
    assert nowhere in error


def test_the_first_step_that_fails_decides_the_exit_code(
    broker: EmbeddedBroker, nowhere: str
) -> None:
    code, steps, _ = check("--name-servers", nowhere)
    assert code == 3
    assert steps == {"environment": True, f"name server {nowhere}": False}
    code, steps, error = check("--name-servers", broker.name_servers, "--topic", "nosuch")
    assert (code, steps["topic nosuch"]) == (3, False)
    assert "topic not found" in error


def test_wrong_settings_are_said_before_anything_is_connected() -> None:
    code, steps, error = check(ORDERMQ_RETRY_TIME="5")
    assert (code, steps) == (2, {"environment": False})
    assert "ORDERMQ_RETRY_TIMES" in error or "retry_times" in error
    code, _, error = check("--url", "rocketmq://me:secret@host?retry_time=3")
    assert code == 2
    assert "did you mean 'retry_times'?" in error
    assert "secret" not in error
    code, _, error = check("--name-servers", "http://host:9876")
    assert code == 2
    assert "host:port" in error


def test_an_account_that_is_refused_is_no_outage() -> None:
    with EmbeddedBroker(config=BrokerConfig(accounts={"shop": "open sesame"})) as broker:
        at = broker.name_servers
        code, steps, error = check("--name-servers", at)
        assert (code, steps[f"name server {at}"]) == (1, False)
        assert "was not signed" in error
        code, steps, _ = check("--url", f"rocketmq://shop:open%20sesame@{at}")
        assert code == 0
        assert steps["URL"]
