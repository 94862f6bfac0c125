"""The command line without a broker: help, exit codes, the audit's answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ordermq.cli import mqadmin
from ordermq.cli.main import _COMMANDS, main
from ordermq.cli.produce import _Reading
from ordermq.events import EventType, History

QUEUE = {"group": "billing", "topic": "orders", "broker": "b", "queue": 0, "epoch": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the history of one consumer that did everything right."""
    with History(tmp_path / "consumer.jsonl", "c") as history:
        sent = json.loads((tmp_path / "consumer.jsonl").read_text())["t"]
        history.record(EventType.LOCK_OK, **QUEUE, sent=sent, lease_ms=60_000)
        history.record(EventType.START, **QUEUE, offs=[0, 1], keys=["k", "k"], attempt=0)
        history.record(EventType.END, **QUEUE, offs=[0, 1], done=2)
        history.record(EventType.COMMIT_SENT, **QUEUE, off=2)
        history.record(EventType.COMMIT_ACK, **QUEUE, off=2)
    return tmp_path


@pytest.fixture
def bad_run(run: Path) -> Path:
    """The same, and then a batch it had committed once more."""
    with History(run / "later.jsonl", "c") as history:
        history.record(EventType.START, **QUEUE, offs=[1], keys=["k"], attempt=1)
        history.record(EventType.END, **QUEUE, offs=[1], done=1)
    return run


def test_the_main_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"\n  {command} " in result.output for command in _COMMANDS)


def test_an_unknown_command_is_a_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["consum"]).exit_code == 2


def test_a_run_that_passes_ends_with_0_and_says_so(run: Path) -> None:
    result = CliRunner().invoke(main, ["audit", str(run)])
    assert result.exit_code == 0, result.output
    assert "OK: all 10 checks passed" in result.output


def test_a_violation_ends_with_1_and_is_named_with_its_events(bad_run: Path) -> None:
    result = CliRunner().invoke(main, ["audit", str(bad_run)])
    assert result.exit_code == 1
    assert "I5 bounded duplicates" in result.output
    assert "offset 1 started again after it was done" in result.output
    assert "later.jsonl:2: START by c" in result.output


def test_a_run_that_goes_on_is_told_from_a_crash(run: Path) -> None:
    result = CliRunner().invoke(main, ["audit", str(run)])
    assert "1 process run, 0 crashed\n" in result.output
    with History(run / "new.jsonl", "new"):
        result = CliRunner().invoke(main, ["audit", str(run)])
    assert result.exit_code == 0, result.output
    assert "2 process runs, 0 crashed, 1 still running" in result.stdout
    assert "not counted as lost" in result.stderr


def test_json_is_one_document_with_the_verdict(bad_run: Path) -> None:
    result = CliRunner().invoke(main, ["audit", "--json", str(bad_run)])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert not answer["ok"]
    assert answer["violations"][0]["invariant"] == "I5"
    assert answer["messages"]["deliveries"] == 3


def test_a_file_that_is_no_history_ends_with_2_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("hello\nworld\n")
    result = CliRunner().invoke(main, ["audit", str(path)])
    assert result.exit_code == 2
    assert "notes.jsonl:1: not a JSON line" in result.stderr


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_missing_file_or_an_empty_folder_ends_with_2(tmp_path: Path, name: str) -> None:
    assert CliRunner().invoke(main, ["audit", str(tmp_path / name)]).exit_code == 2


def test_a_key_column_without_csv_is_a_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["produce", "orders", "--key-column", "id"], input="a\n")
    assert result.exit_code == 2
    assert "need --csv" in result.output


def test_without_click_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; import ordermq.cli.main"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr == (
        "ordermq: the command line needs click and rich: pip install 'ordermq[cli]'\n"
    )


def test_without_click_the_help_still_lists_every_command() -> None:
    def plain(*arguments: str) -> str:
        code = f"import sys; sys.modules['click'] = None; sys.argv[1:] = {arguments!r}; "
        code += "import ordermq.cli.main"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return done.stdout

    text = plain("--help")
    assert all(f"\n  {name} " in text for name in _COMMANDS)
    assert "pip install 'ordermq[cli]'" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "Show how many messages GROUP is behind" in plain("lag", "-h")


def test_the_summary_of_each_command_is_that_of_its_own_help() -> None:
    context = click.Context(main)
    for name, (_, _, summary) in _COMMANDS.items():
        command = main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(200) == summary


def test_a_list_of_commands_shows_whole_summaries_on_80_columns() -> None:
    for group in ([], ["broker"], ["dlq"], ["parked"], ["topics"], ["groups"], ["config"]):
        shown = CliRunner().invoke(main, [*group, "--help"], terminal_width=80).output
        _, _, commands = shown.partition("Commands:\n")
        assert commands
        assert "..." not in commands, group


def test_a_file_is_counted_in_bytes_and_a_pipe_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "orders.txt"
    file.write_text("made\n" * 1000)
    with file.open(encoding="utf-8") as lines:
        reading = _Reading(lines)
        assert (reading.size, reading.done()) == (5000, 0)
        assert len(list(lines)) == 1000
        assert reading.done() == 5000
    assert _Reading(io.StringIO("made\n")).size is None
    read_end, write_end = os.pipe()
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        assert _Reading(pipe).size is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lagg", "; did you mean 'lag'?"), ("group", "; did you mean 'groups'?"), ("q", "'q'\n")],
)
def test_a_misspelt_command_is_told_the_nearest(typed: str, meant: str) -> None:
    ran = CliRunner().invoke(main, [typed, "billing"])
    assert ran.exit_code == 2
    assert "Error: No such command " in ran.stderr
    assert meant in ran.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("consumerProgress", "ordermq lag GROUP"),
        ("updateTopic", "ordermq topics create TOPIC"),
        ("resetOffsetByTime", "ordermq reset GROUP TOPIC --to-time TIME"),
        ("queryMsgByKey", "ordermq messages find TOPIC --key KEY"),
        ("brokerStatus", "ordermq doctor"),
    ],
)
def test_a_command_of_mqadmin_is_told_the_one_here(typed: str, meant: str) -> None:
    ran = CliRunner().invoke(main, [typed, "-n", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert f"No such command '{typed}': that is a command of mqadmin; here {meant}" in ran.stderr


def test_every_command_that_stands_for_one_of_mqadmin_is_there() -> None:
    context = click.Context(main)
    assert isinstance(main, click.Group)
    for written in ", or ".join(mqadmin.COMMANDS.values()).split(", or "):
        words = [word.lstrip("-") for word in written.split()]
        command: click.Command | None = main.get_command(context, words.pop(0))
        if isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None, written
        for word in words:  # its arguments and options, in any order
            if not word.isupper():
                options = {each.lstrip("-") for one in command.params for each in one.opts}
                assert word in {*options, "last"}, written


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("consume billing orders --tags paid", "TAGS is an argument"),
        ("peek orders --tags paid", "peek shows every tag"),
        ("lag -g billing", "'-g': the group is an argument"),
        ("topics describe -t orders", "'-t': the topic is an argument"),
    ],
)
def test_an_option_that_is_an_argument_here_is_told_so(typed: str, meant: str) -> None:
    ran = CliRunner().invoke(main, typed.split())
    assert ran.exit_code == 2
    assert "No such option " in ran.stderr
    assert meant in " ".join(ran.stderr.split())


def test_another_option_that_is_none_is_told_as_click_does() -> None:
    ran = CliRunner().invoke(main, ["lag", "billing", "--jsn"])
    assert ran.exit_code == 2
    assert "--json" in ran.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--to-time now", "'now' is no time: --to last is the end"),
        ("--to-time last", "'last' is no time: --to last is the end"),
        ("--to now", "'now': expected first, last, a time"),
    ],
)
def test_the_end_of_a_queue_is_no_time(typed: str, meant: str) -> None:
    ran = CliRunner().invoke(main, ["reset", "billing", "orders", *typed.split()])
    assert ran.exit_code == 2
    assert meant in " ".join(ran.stderr.split())


def test_every_command_with_name_servers_takes_mqadmins_short_form_of_them() -> None:
    found = 0
    commands = [(name, main.get_command(click.Context(main), name)) for name in _COMMANDS]  # type: ignore[attr-defined]
    for name, command in commands:
        if isinstance(command, click.Group):
            commands += [(f"{name} {sub}", each) for sub, each in command.commands.items()]
        for one in command.params if command is not None else ():
            if "--name-servers" in one.opts:
                assert "-n" in one.opts, name
                found += 1
    assert found > 15
