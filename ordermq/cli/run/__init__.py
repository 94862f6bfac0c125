"""`ordermq run`: a consumer in several supervised processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from ordermq.cli.output import EXIT_CODES, ExitCode, fail
from ordermq.cli.run.process_supervisor import ProcessSupervisor, RunPlan


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


@click.command(epilog=EXIT_CODES)
@click.argument("target", metavar="MODULE:CONSUMER")
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    help="How many processes consume; default: one per processor.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    help="Serve /metrics, /live and /ready of all processes here; 0 = any free port.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="IP address of that port."
)
@click.option(
    "--stop-timeout",
    type=click.FloatRange(0.0),
    default=60.0,
    show_default=True,
    help="Seconds that running listeners may take when a process stops.",
)
@click.option(
    "--roll-timeout",
    type=click.FloatRange(0.0),
    default=120.0,
    show_default=True,
    help="Seconds that a new process may take to hold queues; else a rolling restart ends.",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file of this folder changes.")
def run(
    target: str,
    processes: int | None,
    metrics_port: int | None,
    metrics_host: str,
    stop_timeout: float,
    roll_timeout: float,
    reload: bool,
) -> None:
    """Run a consumer in several processes that share its queues.

    CONSUMER is a PushConsumer or AsyncConsumer of MODULE with its listener, not started, or a
    function that makes one. Each process imports MODULE anew.

    A process that crashes is started again, after 1 s, doubled up to 30 s. SIGHUP restarts them
    one after the other; each new one must hold queues before the next one stops. SIGTERM and SIGINT
    let running listeners finish, hand the queues over and exit; a second one does not wait. A line
    of process 2 begins with "[2] "; lines that nobody reads are dropped after 8 MB.

    \b
    Example, with `consumer = PushConsumer(...)` in billing.py:
      ordermq run billing:consumer --processes 4 --metrics-port 9100
      kill -HUP PID      # restart with new code, one process after the other
    """
    if sys.platform == "win32":
        fail("ordermq run needs signals and sockets of Unix", ExitCode.USAGE)
    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        fail(f"{target!r}: expected MODULE:CONSUMER, as billing:consumer", ExitCode.USAGE)
    plan = RunPlan(
        target=target,
        processes=processes or _processors(),
        stop_timeout_s=stop_timeout,
        roll_timeout_s=roll_timeout,
        metrics=None if metrics_port is None else (metrics_host, metrics_port),
        watched=Path.cwd() if reload else None,
    )
    for option, is_given, library in (
        ("--metrics-port", plan.metrics is not None, "prometheus_client"),
        ("--reload", reload, "watchfiles"),
    ):
        if is_given and not _is_installed(library):
            fail(f"{option} needs {library}: pip install 'ordermq[run]'", ExitCode.USAGE)
    supervisor = ProcessSupervisor(plan)
    code = asyncio.run(supervisor.run())
    supervisor.drain()
    sys.exit(code)


def _is_installed(library: str) -> bool:
    try:
        __import__(library)
    except ImportError:
        return False
    return True
