"""SIGINT and SIGTERM at commands: they end in order, with a line, and a second one ends at once."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from ordermq.broker import EmbeddedBroker

pytestmark = pytest.mark.usefixtures("ctrl_c")  # programs that are started inherit it
BOTH = [signal.SIGINT, signal.SIGTERM]
ENDS_S = 20.0  # far below any time-out that a command would wait for


def command(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-m", "ordermq", *arguments], stdin=pipe, stdout=pipe, stderr=pipe,
        text=True,
    )  # fmt: skip


def program(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Listen as a name server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("lag g", signal.SIGINT),
        ("lag g --watch", signal.SIGTERM),
        ("top g", signal.SIGINT),
        ("reset g t --to first --yes", signal.SIGTERM),
        ("topics create t", signal.SIGINT),
        ("dlq redrive g --yes", signal.SIGTERM),
    ],
)
def test_a_command_that_waits_for_a_server_ends_at_a_signal(
    line: str, number: signal.Signals, silent: socket.socket
) -> None:
    port = silent.getsockname()[1]
    process = command(*line.split(), "--name-servers", f"127.0.0.1:{port}")
    connection, _ = silent.accept()
    with connection:
        process.send_signal(number)
        _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == -number, errors
    assert errors.splitlines()[-1] == f"error: stopped by {number.name} before its end"
    assert "Traceback" not in errors


def test_an_interrupted_producer_says_where_to_resume() -> None:
    number = signal.SIGTERM
    with EmbeddedBroker() as broker:
        process = command("produce", "t", "--name-servers", broker.name_servers, "--rate", "0.1")
        assert process.stdin is not None
        process.stdin.write("first\nsecond\n")
        process.stdin.flush()
        while not broker.statistics.messages_stored:
            assert process.poll() is None
        process.send_signal(number)
        _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == -number, errors
    assert "interrupted\nThe first " in errors
    assert " Resume with --skip " in errors


@pytest.mark.parametrize("number", BOTH)
def test_a_second_signal_does_not_wait_for_what_the_first_one_ends(number: signal.Signals) -> None:
    process = program("""
        import os
        from ordermq.cli.signals import ended_by_signals
        with ended_by_signals():
            try:
                print("begun", flush=True)
                os.read(os.pipe()[0], 1)
            finally:
                print("ending", flush=True)
                while True:
                    try:
                        os.read(os.pipe()[0], 1)
                    except KeyboardInterrupt:
                        print("swallowed", flush=True)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(number)
    rest, _ = process.communicate(timeout=ENDS_S)
    assert (process.returncode, rest) == (-number, "")


@pytest.mark.parametrize("number", BOTH)
def test_a_server_that_does_not_end_is_ended_by_the_second_signal(number: signal.Signals) -> None:
    process = program("""
        import os, signal
        from ordermq.cli.signals import ended_by_signals, stop_at
        with ended_by_signals(), stop_at(signal.SIGINT, signal.SIGTERM) as stop:
            print("begun", flush=True)
            stop.wait()
            print("ending", flush=True)
            os.read(os.pipe()[0], 1)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == -number
    assert errors == f"error: stopped by {number.name} before its end\n"


@pytest.mark.parametrize("number", BOTH)
def test_a_server_ends_at_a_signal_that_another_thread_gets(number: signal.Signals) -> None:
    """So does one that comes in the instant before the wait, which it does not interrupt either."""
    process = program("""
        import signal, threading
        from ordermq.cli.signals import ended_by_signals, stop_at
        both = {signal.SIGINT, signal.SIGTERM}
        begun = threading.Event()
        def take_signals():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
            begun.set()
            threading.Event().wait()
        with ended_by_signals(), stop_at(*both) as stop:
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            threading.Thread(target=take_signals, daemon=True).start()
            begun.wait()
            print("begun", flush=True)
            stop.wait()
            print("ending", flush=True)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert process.communicate(timeout=ENDS_S) == ("ending\n", "")


def test_a_signal_while_modules_are_imported_raises_nothing_into_them() -> None:
    """The import of orjson crashes when a signal handler raises in it."""
    process = program("""
        import signal
        from ordermq.cli.signals import ended_by_signals, importing
        with ended_by_signals(), importing():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                print("an exception passed here", flush=True)
    """)
    output, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == -signal.SIGINT
    assert output == ""
    assert errors == "error: stopped by SIGINT before its end\n"


def test_a_signal_that_the_starter_ignores_stays_ignored() -> None:
    process = program("""
        import signal
        from ordermq.cli.signals import ended_by_signals
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with ended_by_signals():
            signal.raise_signal(signal.SIGINT)
            print("goes on", flush=True)
    """)
    output, errors = process.communicate(timeout=ENDS_S)
    assert (process.returncode, output, errors) == (0, "goes on\n", "")


def test_a_question_that_is_answered_by_ctrl_c_ends_as_all_commands_do() -> None:
    process = program("""
        import signal
        import click
        from ordermq.cli.main import main

        @click.command()
        def ask():
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise click.Abort from None  # as click.confirm

        main.get_command = lambda context, name: ask
        main(["topics"])
    """)
    _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == -signal.SIGINT
    assert errors == "error: stopped by SIGINT before its end\n"
