"""`ordermq broker`: the embedded broker as a process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ordermq.broker import EmbeddedBroker
from ordermq.broker.store.backup import back_up
from ordermq.broker.store.backup import restore as restore_back_up
from ordermq.broker.store.database_check import check_database
from ordermq.broker.store.store import restored_path
from ordermq.cli.output import (
    EXIT_CODES,
    ExitCode,
    fail,
    json_option,
    note,
    print_json,
    progress_bar,
)
from ordermq.cli.signals import StopRequest, stop_at
from ordermq.config import AccessPolicy, BrokerConfig, Durability
from ordermq.errors import ConfigError, ConnectFailed, StoreError
from ordermq.events import History, NoHistory


@click.group(invoke_without_command=True, epilog=EXIT_CODES)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder of the database; without it, messages are kept in memory only.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address to listen on.")
@click.option(
    "--port", default=9876, show_default=True, help="Port to listen on; 0 = any free port."
)
@click.option(
    "--lease-ms",
    default=BrokerConfig.lock_max_live_ms,
    show_default=True,
    help="Expire a queue lock that is not renewed for this long.",
)
@click.option(
    "--queues",
    default=BrokerConfig.default_queue_count,
    show_default=True,
    help="Maximum number of queues of a topic created by its first send.",
)
@click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    default=Durability.FSYNC.value,
    show_default=True,
    help="Acknowledge after fsync, or after the write to the operating system.",
)
@click.option(
    "--retention-ms", type=int, help="Delete messages older than this; default: keep them."
)
@click.option(
    "--retention-bytes",
    type=int,
    help="Delete the oldest messages while the store is larger; default: keep them.",
)
@click.option(
    "--new-groups-start-at-zero/--new-groups-start-by-setting",
    "new_groups_start_at_zero",
    default=True,
    help="Start new groups at offset 0 of queues that still have their first message,"
    " as RocketMQ's broker does (the default), or where their consume_from_where says.",
)
@click.option(
    "--accounts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of access keys and secret keys, or of secret keys and policies; requests must"
    " then be signed.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(exists=True),
    help="Server certificate (PEM). Enables TLS, and refuses connections without it.",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True),
    help="Private key (PEM), if it is not in the certificate file.",
)
@click.option(
    "--tls-client-ca-file",
    type=click.Path(exists=True),
    help="CA bundle (PEM). Require client certificates signed by it.",
)
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    help="Record events to this file, for `ordermq audit`.",
)
@json_option
@click.pass_context
def broker(
    context: click.Context,
    data: Path | None,
    host: str,
    port: int,
    lease_ms: int,
    queues: int,
    durability: str,
    retention_ms: int | None,
    retention_bytes: int | None,
    new_groups_start_at_zero: bool,
    accounts: Path | None,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_client_ca_file: str | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Run a name server and broker on one port.

    It runs until SIGINT or SIGTERM; a second one ends it at once, and nothing that was acknowledged
    is lost. Every RocketMQ client that speaks the remoting protocol can
    connect, including Java's. With --json, one line on stdout has the address as soon as clients
    can connect.

    \b
    Example:
      ordermq broker --data ./data --port 9876
      ordermq broker --data ./data --retention-ms 259200000
      ordermq broker --accounts accounts.json --tls-certificate server.pem
      ordermq broker backup ./data /backups/monday.db
      ordermq broker check ./data
    """
    if context.invoked_subcommand is not None:
        return
    # The configuration checks the ranges, in one place for the command and for programs.
    config = _config(
        durability=Durability(durability),
        lock_max_live_ms=lease_ms,
        default_queue_count=queues,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        new_groups_start_at_zero=new_groups_start_at_zero,
        **_accounts(accounts),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        tls_client_ca_file=tls_client_ca_file,
    )
    # From before its start, which may be slow: a signal must not be lost.
    with stop_at(signal.SIGINT, signal.SIGTERM) as stop:
        _serve(data, host, port, config, history, stop, as_json)


@broker.command(epilog=EXIT_CODES)
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def backup(data: Path, file: Path) -> None:
    """Copy the database in folder DATA to a new FILE.

    The copy has messages, offsets, locks and epochs as they are at one moment. The broker may serve
    meanwhile; its write-ahead log grows until the copy is done.

    \b
    Example:
      ordermq broker backup ./data /backups/monday.db
    """
    with _copying("backing up") as progress:
        back_up(data, file, progress)
    note(f"backed up: {file} ({file.stat().st_size:,} bytes)")


@broker.command(epilog=EXIT_CODES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
def restore(file: Path, data: Path) -> None:
    """Put a back-up FILE in the place of the database in DATA.

    The broker must be stopped. What was there is kept under another name. Messages sent after the
    back-up are lost. Fence tokens continue above all that were given out, and no queue is locked
    for one lease after the start.

    \b
    Example:
      ordermq broker restore /backups/monday.db ./data
    """
    _make_folder(data)
    with _copying("restoring") as progress:
        before = restore_back_up(file, data, progress)
    note(f"restored {file} to {data}" + ("" if before is None else f"; before: {before}"))


@broker.command(epilog=EXIT_CODES)
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@json_option
def check(data: Path, as_json: bool) -> None:
    """Check the database in folder DATA, or a back-up of it.

    It reads everything and changes nothing: SQLite's structure, each record (checksum, place and
    time), committed offsets, locks and epochs. The broker may serve meanwhile. The exit code is 1
    if anything is wrong.

    \b
    Example:
      ordermq broker check ./data
      ordermq broker check /backups/monday.db --json
    """
    try:
        report = check_database(data)
    except StoreError as error:
        fail(str(error))
    if as_json:
        print_json(
            {
                "path": str(report.path),
                "closed": report.is_closed,
                "bytes": report.size_bytes,
                "queues": report.queues,
                "messages": report.messages,
                "problems": report.problems,
            }
        )
    else:
        for problem in report.problems:
            click.echo(problem)
    if report.problems:
        note(f"{report.path} is damaged: restore a back-up with `ordermq broker restore`, or move "
             "the file away and start empty")  # fmt: skip
        raise SystemExit(ExitCode.FAILED)
    if not as_json:
        state = "" if report.is_closed else "; it is open, or was not closed"
        note(
            f"{report.path} is whole: {report.messages:,} messages in {report.queues:,} queues, "
            f"{report.size_bytes:,} bytes{state}"
        )


@contextlib.contextmanager
def _copying(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many pages of how many are copied."""
    with progress_bar() as bars:
        bar = bars.add_task(what, total=None, note="")
        try:
            yield lambda done, total: bars.update(bar, completed=done, total=total)
        except StoreError as error:
            fail(str(error))


def _serve(
    data: Path | None,
    host: str,
    port: int,
    config: BrokerConfig,
    history: Path | None,
    stop: StopRequest,
    as_json: bool,
) -> None:
    try:
        if data is not None:
            _make_folder(data)
        # The time makes the name unique: a container restarts the broker under the same pid.
        recorder = (
            NoHistory() if history is None else History(history, f"broker-{os.getpid()}-{_now()}")
        )
        try:
            server = EmbeddedBroker(data, host=host, port=port, config=config, history=recorder)
            server.start()
        except BaseException:
            recorder.close()  # nothing was served: an audit must not take it for a crash
            raise
    except ConnectFailed as error:
        fail(str(error), ExitCode.UNREACHABLE)
    except ConfigError as error:
        fail(str(error), ExitCode.USAGE)
    except StoreError as error:
        fail(str(error))
    _announce(server, data, as_json)
    # The signal handler only sets the event: closing needs the main thread.
    stop.wait()
    server.close()
    recorder.close()
    if not as_json:
        counts = server.statistics
        note(f"stopped: {counts.messages_stored:,} messages stored since the start")


def _is_database(path: Path) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(16) == b"SQLite format 3\0"
    return False


def _make_folder(data: Path) -> None:
    """Make the folder of a database; nothing where a program has named the database's file."""
    # In the last step of a restore the file is away: a folder in its place would be another one.
    if restored_path(data).exists() or _is_database(data):
        return
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(
            f"{data}: cannot create this folder ({error.strerror}): use another one",
            ExitCode.USAGE,
        )


def _config(**given: Any) -> BrokerConfig:
    try:
        # Options that were not given keep the defaults of the configuration.
        return BrokerConfig(**{name: value for name, value in given.items() if value is not None})
    except ConfigError as error:
        fail(str(error), ExitCode.USAGE)


def _accounts(file: Path | None) -> dict[str, Any]:
    """Return the settings `accounts` and `policies`."""
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        fail(f"--accounts {file}: cannot be read as JSON: {error}", ExitCode.USAGE)
    if not isinstance(found, dict) or not found:
        fail(
            f'--accounts {file}: expected an object like {{"access key": "secret key"}}',
            ExitCode.USAGE,
        )
    accounts: dict[str, Any] = {}
    policies: dict[str, Any] = {}
    for access_key, account in found.items():
        if not isinstance(account, dict):
            accounts[access_key] = account
            continue
        try:
            accounts[access_key] = account["secretKey"]
            policies[access_key] = [AccessPolicy(**each) for each in account["policies"]]
        except (KeyError, TypeError, ConfigError) as error:
            example = '{"resource": "Topic:orders", "actions": ["PUB"], "decision": "ALLOW"}'
            fail(
                f"--accounts {file}: account {access_key!r}: {type(error).__name__}: {error}; "
                f'expected {{"secretKey": "...", "policies": [{example}]}}, or only the secret key '
                "as a string for an account that may do everything",
                ExitCode.USAGE,
            )
    return {"accounts": accounts, "policies": policies}


def _now() -> int:
    return time.time_ns() // 1_000_000


def _announce(server: EmbeddedBroker, data: Path | None, as_json: bool) -> None:
    # Printed only now: a script that reads this line connects at once.
    if as_json:
        click.echo(f'{{"name_servers":"{server.name_servers}","pid":{os.getpid()}}}')
        return
    place = f"in {data}" if data else "in memory: they are lost when the broker stops"
    click.echo(f"listening on {server.address}; messages are kept {place}")
    click.echo("Connect from another terminal or program, stop with Ctrl-C:")
    click.echo(f"  shell:   ordermq consume GROUP TOPIC --name-servers {server.name_servers}")
    click.echo(f"  python:  PushConsumer(group, name_servers={server.name_servers!r})")
    click.echo(f'  java:    consumer.setNamesrvAddr("{server.name_servers}")')
