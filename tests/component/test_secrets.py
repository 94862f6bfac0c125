"""Secrets are in no log line, error or repr; tests/secrets_in_logs.py reads those of all tests."""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from ordermq import LitePullConsumer, Message, Producer, PullConsumer, PushConsumer
from ordermq.broker import EmbeddedBroker
from ordermq.client.session import ClientSession
from ordermq.config import BrokerConfig, ConsumerConfig, ProducerConfig, RemotingConfig
from ordermq.errors import BrokerError, ConfigError, OrderMQError
from ordermq.remoting.signing import Credentials
from tests.secrets_in_logs import WATCH

KEY, TOKEN = "k-5f1c0e9b7a", "t-93b1d2aa40"
ACCOUNT = {"access_key": "shop", "secret_key": KEY, "security_token": TOKEN}


@pytest.mark.parametrize(
    "make",
    [
        lambda servers: RemotingConfig(**ACCOUNT),  # type: ignore[arg-type]
        lambda servers: BrokerConfig(accounts={"shop": KEY}),
        lambda servers: Credentials("shop", KEY, TOKEN),
        lambda servers: ProducerConfig.given(None, dict(ACCOUNT)),
        lambda servers: ConsumerConfig.given(None, dict(ACCOUNT)),
        lambda servers: Producer("p", name_servers=servers, **ACCOUNT),
        lambda servers: PushConsumer("g", name_servers=servers, **ACCOUNT),
        lambda servers: LitePullConsumer("g", name_servers=servers, **ACCOUNT),
        lambda servers: PullConsumer("g", name_servers=servers, **ACCOUNT),
    ],
    ids=lambda make: "",
)
def test_no_repr_shows_a_secret(make: Any) -> None:
    made = make("127.0.0.1:9876")
    for text in (repr(made), str(made), f"{made}", repr([made]), repr({"a": (made,)})):
        assert KEY not in text
        assert TOKEN not in text


def test_a_denied_client_logs_and_raises_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = BrokerConfig(accounts={"shop": "another-key-1"})
    with EmbeddedBroker(tmp_path / "b.db", config=config) as broker:
        with Producer("p", name_servers=broker.name_servers, **ACCOUNT) as producer:
            with pytest.raises(OrderMQError) as caught:
                producer.send(Message("orders", b"x"))
            health = str(producer.health().as_dict())
        session = ClientSession(broker.name_servers, RemotingConfig(**ACCOUNT))  # type: ignore[arg-type]
        with contextlib.suppress(OrderMQError), contextlib.closing(session):
            session.call(session.routes.get("orders"))
    for text in (str(caught.value), repr(caught.value.__dict__), caplog.text, health):
        assert KEY not in text
        assert TOKEN not in text
        assert "another-key-1" not in text
    assert "access_key='shop'" in str(caught.value), "the name of the account is no secret"
    pickle.dumps(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secret_key": KEY},
        {"access_key": "shop", "security_token": TOKEN},
        {"access_key": "shop", "secret_key": KEY.encode()},
        {"accounts": {"shop": KEY.encode()}},
        {"accounts": {"": KEY}},
    ],
)
def test_a_setting_that_is_refused_is_not_repeated(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        if "accounts" in wrong:
            BrokerConfig(**wrong)
        else:
            RemotingConfig(**wrong)
    assert KEY not in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_the_watch_of_the_suite_sees_each_way_a_secret_can_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    RemotingConfig(**ACCOUNT)  # type: ignore[arg-type]
    log = logging.getLogger("ordermq.client")
    monkeypatch.setattr(log, "disabled", True)  # pytest shows what is logged: it is watched, too
    known, WATCH.leaks = copy.copy(WATCH.leaks), []
    log.debug("below its level: %s", KEY)
    log.info("as part of a word: %s", f"x{TOKEN}x")
    try:
        raise ValueError(KEY)
    except ValueError:
        log.exception("with its error")
    BrokerError(f"denied: {KEY}", response_code=1)
    found = WATCH.take()
    WATCH.leaks = known
    assert [each.split(":")[0] for each in found] == [
        "debug of ordermq.client",
        "error of ordermq.client",
        "info of ordermq.client",
        "text of a BrokerError",
    ]
    assert KEY not in str(found), "its report is a log, too"
