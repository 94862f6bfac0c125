"""`ordermq exporter`: how far groups are behind, for Prometheus."""

from __future__ import annotations

import signal

import click

from ordermq.admin.admin import Admin
from ordermq.cli.client_options import Servers, client_options, exit_on_error
from ordermq.cli.lag import require_known
from ordermq.cli.output import EXIT_CODES, ExitCode, fail, note
from ordermq.cli.signals import stop_at


@click.command(epilog=EXIT_CODES)
@click.argument("groups", nargs=-1, required=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9101,
    show_default=True,
    help="Serve /metrics here; 0 = any free port.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address of that port.")
@client_options
def exporter(groups: tuple[str, ...], port: int, host: str, servers: Servers) -> None:
    """Serve the lag and the members of GROUPS to Prometheus.

    Members tell the lag of the queues that they hold. Here the brokers are asked at each scrape, so
    queues without an owner and groups without members have a lag, too. It joins no group. SIGINT
    and SIGTERM end it.

    \b
    Example:
      ordermq exporter billing shipping --port 9101
      curl 127.0.0.1:9101/metrics
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        fail("it needs prometheus_client: pip install 'ordermq[run]'", ExitCode.USAGE)
    from ordermq.metrics.prometheus import PrometheusMetrics

    with exit_on_error(), Admin(**servers.settings()) as admin:
        registry = CollectorRegistry()
        metrics = PrometheusMetrics(registry)
        for group in groups:
            # A misspelt one would have no lag for ever.
            require_known(admin.group(group, ask_members=False))
            metrics.watch_group(admin, group)
        with stop_at(signal.SIGINT, signal.SIGTERM) as stop:
            try:
                server, thread = start_http_server(port, addr=host, registry=registry)
            except OSError as error:
                fail(f"--host {host} --port {port}: {error}")
            note(f"metrics at http://{host}:{server.server_port}/metrics")
            stop.wait()
            server.shutdown()
            thread.join()
            server.server_close()
