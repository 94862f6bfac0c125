"""The error tree."""

from __future__ import annotations

import logging
import pickle

import pytest

from ordermq import errors
from ordermq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    Fenced,
    NoThread,
    OrderingError,
    OrderMQError,
    ProtocolError,
    RemotingError,
    RequestTimeout,
    StateError,
    error_text,
    exc_info_of,
    parts_of,
)

TREE = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OrderMQError)
]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(TREE) > 10


def test_a_new_error_without_a_code_of_its_own_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="needs a unique error code"):

        class Nameless(OrderMQError):
            pass

    with pytest.raises(TypeError, match="'state'"):

        class Twin(OrderMQError):
            code = "state"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ConfigError, ValueError),
        (StateError, RuntimeError),
        (ConnectFailed, ConnectionError),
        (ConnectionLost, ConnectionError),
        (RequestTimeout, TimeoutError),
        (NoThread, RuntimeError),
    ],
)
def test_an_error_is_also_the_builtin_people_catch(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)


def test_only_what_may_succeed_later_is_retriable() -> None:
    retriable = {kind.__name__ for kind in TREE if kind.retriable}
    assert retriable == {
        "RemotingError",
        "ConnectFailed",
        "ConnectionLost",
        "NoThread",
        "RequestTimeout",
        "RouteError",
    }


def test_the_text_ends_with_where_it_happened() -> None:
    error = Fenced(
        "commit refused", topic="T", broker="b", queue_id=0, group="G", offset=5, epoch=7
    )
    assert str(error) == (
        "commit refused [topic='T', broker='b', queue_id=0, group='G', offset=5, epoch=7]"
    )
    assert (error.topic, error.queue_id, error.epoch, error.address) == ("T", 0, 7, None)
    assert isinstance(error, OrderingError)
    assert str(ProtocolError("torn")) == "torn"


def test_a_brokers_refusal_carries_its_response_code() -> None:
    error = BrokerError("no such topic", response_code=17, topic="T")
    assert str(error) == "no such topic (response code 17) [topic='T']"
    assert (error.response_code, isinstance(error, RemotingError)) == (17, True)


@pytest.mark.parametrize(
    "error",
    [
        Fenced("late", topic="T", epoch=7),
        BrokerError("no", response_code=17, topic="T", address="127.0.0.1:1"),
        *(kind("gone", topic="T") for kind in TREE if issubclass(kind, OSError)),
    ],
)
def test_an_error_travels_between_processes(error: OrderMQError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


class Unspeakable(Exception):
    """Has no text: its `__str__` reads what it lacks, or is interrupted."""

    def __str__(self) -> str:
        raise self.args[0]


@pytest.mark.parametrize("kind", [AttributeError, KeyboardInterrupt])
def test_an_exception_without_a_text_is_told_by_its_type(kind: type[BaseException]) -> None:
    told = error_text(Unspeakable(kind("no such field")))
    assert told == f"Unspeakable: <no text: its __str__ raised {kind.__name__}>"
    assert error_text(ValueError("no price")) == "ValueError: no price"


def test_the_stack_of_an_exception_that_counts_as_false_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoProblems(Exception):
        def __len__(self) -> int:
            return 0

    try:
        raise NoProblems("a test's own")
    except NoProblems as error:
        logging.getLogger("ordermq.consumer").error("failed", exc_info=exc_info_of(error))
    assert "Traceback" in caplog.text


def test_the_parts_of_a_group_are_those_of_its_groups() -> None:
    inner = ExceptionGroup("inner", [ValueError(1), KeyError(2)])
    outer = BaseExceptionGroup("outer", [inner, SystemExit(3)])
    assert {type(each).__name__ for each in parts_of(outer)} == {
        "BaseExceptionGroup", "ExceptionGroup", "ValueError", "KeyError", "SystemExit",
    }  # fmt: skip
    assert list(parts_of(inner.exceptions[0])) == [inner.exceptions[0]]
