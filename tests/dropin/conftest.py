"""Programs for old clients: ci/dropin.sh fetches and runs them, plain pytest leaves them out.

ORDERMQ_DROPIN is the folder they were fetched to; with ORDERMQ_ROCKETMQ, an instance of
ci/rocketmq.sh, they run on that instead of on the embedded broker.
"""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordermq.broker import EmbeddedBroker
from ordermq.config import BrokerConfig
from ordermq.remoting.codes import RequestCode
from tests.dropin.old_programs import PORT
from tests.forwarding import Forwarder
from tests.interop.cluster import Cluster

FETCHED = os.environ.get("ORDERMQ_DROPIN", "")
INSTANCE = os.environ.get("ORDERMQ_ROCKETMQ", "")

if not FETCHED:
    collect_ignore_glob = ["test_*.py"]
elif not INSTANCE:
    collect_ignore_glob = ["test_old_client.py", "test_v5_examples.py"]


def pytest_report_header() -> str:
    return f"old programs: {FETCHED or 'none, tests/dropin is left out; ci/dropin.sh runs it'}"


@pytest.fixture(scope="session")
def fetched() -> Path:
    return Path(FETCHED)


@pytest.fixture
def name_server() -> Iterator[None]:
    """A broker on 127.0.0.1:9876, where the old programs look for it; empty for each."""
    if INSTANCE:
        cluster = Cluster(Path(INSTANCE))
        with Forwarder(PORT, cluster.name_servers):
            yield
        forget_topics(cluster)
        return
    config = BrokerConfig(
        durability="os",
        new_groups_start_at_zero=True,
        transaction_timeout_ms=1_000,
        transaction_check_interval_ms=2_000,
    )
    with EmbeddedBroker(port=PORT, config=config):
        yield


def forget_topics(cluster: Cluster) -> None:
    # The suites use one topic, and each is surprised by what another left there.
    brokers = [part for part in cluster.addresses if part.startswith("broker")]
    for topic in ("test", "TopicTest", "YOUR-TOPIC"):
        for broker in brokers:
            cluster.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        cluster.ask("name-server", RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
    for group in ("push_consumer_group", "testGroup", "consumer_group", "CID_XXX"):
        ext = {"groupName": group, "cleanOffset": "true"}
        for broker in brokers:
            cluster.ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)


@pytest.fixture
def domain() -> Iterator[str]:
    """A web page that lists the name server, for samples that leave theirs open."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"127.0.0.1:{PORT}\n".encode())

        def log_message(self, *ignored: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr4client-internet"
        server.shutdown()
        thread.join()
