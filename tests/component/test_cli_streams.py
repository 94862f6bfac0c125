"""Commands and programs whose standard streams are closed, full, or know few letters."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq import Message, Producer
from ordermq.broker import EmbeddedBroker

PYTHON = shlex.quote(sys.executable)
COMMAND = f"{PYTHON} -m ordermq"
CLOSED = "error: the output cannot be written (standard output is closed): send it elsewhere"
FULL = "error: the output cannot be written (No space left on device)"
CONSUME = "consume g t --from first --count 1"
BODY = "Größe 中 \N{GRINNING FACE}"


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        with Producer("p", name_servers=broker.name_servers) as producer:
            producer.send(Message("t", BODY.encode()), sharding_key="k")
        yield broker


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, timeout=60, check=False, env=environment
    )


@pytest.mark.parametrize("line", [CONSUME, "peek t", "topics list --json", "doctor"])
def test_a_command_whose_output_is_closed_ends_with_one_line(
    broker: EmbeddedBroker, line: str
) -> None:
    """`consume` commits what it has printed: it must not print to nobody."""
    command = f"exec {COMMAND} {line} --name-servers {broker.name_servers}"
    ended = shell(f"{command} <&- >&-")
    assert ended.stderr.decode().splitlines()[-1] == CLOSED
    assert ended.returncode == 1
    if line == CONSUME:
        assert BODY in shell(command).stdout.decode()


def test_a_broker_whose_output_is_closed_does_not_begin(tmp_path: Path) -> None:
    ended = shell(f"exec {COMMAND} broker --data {tmp_path} --port 0 >&-")
    assert (ended.returncode, ended.stderr.decode().splitlines()[-1]) == (1, CLOSED)


def test_a_question_without_a_standard_input_is_no_error_of_ours(broker: EmbeddedBroker) -> None:
    ended = shell(f"exec {COMMAND} topics delete t --name-servers {broker.name_servers} <&-")
    assert ended.returncode == 2
    assert b"add --yes" in ended.stderr


@pytest.mark.parametrize("line", ["--help", "--version", "consume --help"])
@pytest.mark.parametrize(("place", "reason"), [("/dev/full", FULL), ("&-", CLOSED)])
def test_help_that_cannot_be_written_ends_with_one_line(line: str, place: str, reason: str) -> None:
    ended = shell(f"exec {COMMAND} {line} >{place}")
    assert ended.returncode == 1
    assert ended.stderr.decode().startswith(reason)
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("line", ["peek t", "peek t --json", CONSUME])
def test_letters_that_the_output_does_not_know_are_escaped(
    broker: EmbeddedBroker, line: str, encoding: str
) -> None:
    """A listener that cannot print a message would be called with it for ever."""
    ended = shell(
        f"exec {COMMAND} {line} --name-servers {broker.name_servers}",
        PYTHONIOENCODING=encoding, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
    if "--json" in line:
        # click's own streams are never ASCII.
        text = ended.stdout.decode("utf-8" if encoding == "ascii" else encoding)
        assert json.loads(text)[0]["body"] == BODY


PROGRAM = """
import os, sys
from ordermq import Message, Producer, PushConsumer
from ordermq.broker import EmbeddedBroker
with EmbeddedBroker(sys.argv[1]) as broker:
    with Producer("p", name_servers=broker.name_servers) as producer:
        producer.send(Message("t", b"x"), sharding_key="k")
    consumer = PushConsumer("g", name_servers=broker.name_servers,
                            consume_from_where="first_offset")
    consumer.subscribe("t")
    consumer.orderly(lambda messages, context: consumer.stop())
    assert consumer.run()
    for number in (0, 1, 2):
        assert os.path.samestat(os.fstat(number), os.stat(os.devnull)), number
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_socket_or_file_takes_the_place_of_a_closed_standard_stream(
    loop: str, tmp_path: Path
) -> None:
    """uvloop ends the process when it closes one; and into one would go what C code reports."""
    program = f"{PYTHON} -c {shlex.quote(PROGRAM)} {tmp_path}/broker.db"
    ended = shell(f"exec {program} <&- >&- 2>&-", ORDERMQ_EVENT_LOOP=loop)
    assert ended.returncode == 0
