"""MetricsPort: one port for the metrics and the health of all processes of `ordermq run`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Ask = Callable[[str], Coroutine[Any, Any, dict[int, Any]]]
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_ANSWER_S = 10.0


class MetricsPort:
    """An HTTP server: /metrics; /live and /ready for probes.

    Args:
        ask: asks every process, on `loop`.
        counts: the supervisor's own numbers.
    Raises: OSError: the port is taken.
    """

    def __init__(
        self,
        host: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        ask: Ask,
        counts: Callable[[], Mapping[str, int]],
    ) -> None:
        def answers(question: str) -> dict[int, Any]:
            return asyncio.run_coroutine_threadsafe(ask(question), loop).result(_ANSWER_S)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, text = _answer(self.path, answers, counts)
                self.send_response(code)
                self.send_header("Content-Type", _TEXT)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                return None  # a line per scrape would bury the others

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def _answer(
    path: str, answers: Callable[[str], dict[int, Any]], counts: Callable[[], Mapping[str, int]]
) -> tuple[int, bytes]:
    if path == "/metrics":
        return 200, merged(answers("metrics"), counts())
    if path == "/live":
        return 200, b"alive\n"  # processes that crash are started again: no reason to end them all
    if path == "/ready":
        states = answers("state")
        waiting = [n for n, state in states.items() if state is None or not state["is_ready"]]
        if not waiting:
            return 200, b"ready\n"
        return 503, f"not ready: process {', '.join(map(str, waiting))}\n".encode()
    return 404, b"/metrics, /live and /ready are here\n"


def merged(texts: Mapping[int, str | None], counts: Mapping[str, int]) -> bytes:
    """Return the metrics of all processes as one text, each sample with its `process`.

    Args:
        texts: those of each process; None of one that did not answer.
        counts: further metrics, by the end of their names.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector

    class Merged(Collector):
        def collect(self) -> Iterator[Metric]:
            by_name: dict[str, Metric] = {}
            for number, text in texts.items():
                for family in text_string_to_metric_families(text or ""):
                    joined = by_name.setdefault(
                        family.name, Metric(family.name, family.documentation, family.type)
                    )
                    for sample in family.samples:
                        labels = {**sample.labels, "process": str(number)}
                        joined.samples.append(sample._replace(labels=labels))
            yield from by_name.values()
            answered = GaugeMetricFamily(
                "ordermq_run_process_up", "1 if the process answered.", labels=["process"]
            )
            for number, text in texts.items():
                answered.add_metric([str(number)], text is not None)
            yield answered
            for name, count in counts.items():
                yield GaugeMetricFamily(f"ordermq_run_{name}", f"Number of {name}.", count)

    registry = CollectorRegistry()
    registry.register(Merged())
    return generate_latest(registry)
