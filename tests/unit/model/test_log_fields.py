"""The fields of log records: what a line names, its record has."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest

import ordermq
from ordermq.model.log_fields import log_fields
from ordermq.model.message_queue import MessageQueue

HOUSE = Path(ordermq.__file__).parent
ROOMS = "client", "consumer", "producer"
# Begins with what a field names: a queue or an address, a group, a topic, a broker. Or is the whole
# text of an error, which begins so.
_NAMES_IT = re.compile(r"(group |topic |broker )?%s(: |$)")
# The name of a pool of threads: none of the fields.
_OTHER = {"%s: %d threads run, queues wait for these: %s"}


def test_a_queue_gives_its_topic_and_its_text() -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    fields = log_fields(queue, offset=0, group="billing")
    assert fields == {
        "queue": "orders@broker-a/3", "topic": "orders", "offset": 0, "group": "billing"
    }  # fmt: skip


def test_what_is_not_known_is_no_field() -> None:
    assert log_fields() == {}
    assert log_fields(topic="orders", broker="broker-a") == {
        "topic": "orders",
        "broker": "broker-a",
    }


def test_logging_takes_every_field(caplog: pytest.LogCaptureFixture) -> None:
    # It refuses names that a record has of its own.
    fields = log_fields(
        MessageQueue("orders", "broker-a", 3), offset=7, group="g", member="m", broker="b"
    )
    logging.getLogger("ordermq.consumer").warning("a line", extra=fields)
    (record,) = caplog.records
    assert {name: getattr(record, name) for name in fields} == fields


@pytest.mark.parametrize("room", ROOMS)
def test_a_warning_or_error_that_names_a_place_has_its_fields(room: str) -> None:
    checked, bare = 0, []
    for path in sorted((HOUSE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = _text_of_a_loud_line(node)
            if text is None or not _NAMES_IT.match(text) or text in _OTHER:
                continue
            checked += 1
            assert isinstance(node, ast.Call)
            if "extra" not in {keyword.arg for keyword in node.keywords}:
                bare.append(f"{path.relative_to(HOUSE)}:{node.lineno}: {text}")
    assert checked
    assert bare == [], "give it extra=log_fields(...)"


def _text_of_a_loud_line(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if ast.unparse(node.func.value) != "_log":
        return None
    if node.func.attr not in ("warning", "error", "exception", "log"):
        return None
    return next(
        (
            ast.literal_eval(text) if isinstance(text, ast.Constant) else _start_of(text)
            for text in node.args
            if isinstance(text, ast.JoinedStr)
            or (isinstance(text, ast.Constant) and isinstance(text.value, str))
        ),
        None,
    )


def _start_of(text: ast.expr) -> str:
    assert isinstance(text, ast.JoinedStr)
    first = text.values[0]
    return str(first.value) if isinstance(first, ast.Constant) else ""
