"""examples/orders_service.py under uvicorn: two processes, restarted gracefully under load."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from pathlib import Path

from ordermq import Admin, Message, Producer
from ordermq.broker import EmbeddedBroker
from tests.component.conftest import DEADLINE_S, eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ORDERS = 16
STARTED_S = 60.0  # FastAPI is imported by processes that share two busy cores


class Service:
    """One process of the service, on a port of its own."""

    def __init__(self, folder: Path, name_servers: str) -> None:
        self._log = folder / f"service-{uuid.uuid4().hex}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "orders_service:app", "--port", "0"],
                cwd=EXAMPLES,
                env={
                    **os.environ,
                    "ORDERMQ_NAME_SERVERS": name_servers,
                    "DATABASE_URL": f"sqlite+aiosqlite:///{folder}/orders.db",
                },
                stdout=log,
                stderr=log,
            )
        self.port = 0

    def wait_until_ready(self) -> None:
        eventually(self._is_listening, "uvicorn listens", STARTED_S)
        eventually(lambda: self.request("GET", "/health")[1]["queues"] > 0, "a share", STARTED_S)

    def _is_listening(self) -> bool:
        text = self._log.read_text()
        assert self._process.poll() is None, text
        found = re.search(r"running on http://127\.0\.0\.1:(\d+)", text)
        self.port = int(found[1]) if found else 0
        return found is not None

    def request(self, method: str, path: str) -> tuple[int, object]:
        """Make one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> str:
        """Wait for a good end; return what it has logged."""
        code = self._process.wait(STARTED_S)
        text = self._log.read_text()
        # uvicorn raises the signal again once it has ended.
        assert code in (0, -signal.SIGTERM), text
        return text

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Load:
    """A thread that posts order steps, to another process where one takes no connection."""

    def __init__(self, services: list[Service]) -> None:
        self._services = services
        self._is_over = threading.Event()
        self.sent: dict[tuple[int, int], str] = {}  # place -> order and step
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            order = f"o-{number % ORDERS}"
            service = self._services[number % len(self._services)]
            try:
                status, found = service.request("POST", f"/orders/{order}?step={number}")
            except (OSError, http.client.HTTPException):
                # It is being restarted. The step is not sent again, as one that arrived after all
                # would be there twice by right.
                number += 1
                continue
            if status == 200:
                assert isinstance(found, dict)
                self.sent[found["queue_id"], found["offset"]] = f"{order} {number}"
            else:
                self.errors.append(f"{status} {found}")
            number += 1


def rows(database: Path) -> list[tuple[int, int, str, int]]:
    """Return what was written, in that order: queue, offset, order and step, deliveries."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            'SELECT queue, "offset", order_id, step, deliveries FROM steps ORDER BY rowid'
        ).fetchall()
    connection.close()
    return [(int(queue.rpartition("/")[2]), at, f"{o} {s}", n) for queue, at, o, s, n in found]


def test_two_processes_restarted_under_load_lose_and_repeat_nothing(
    producer: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    producer.send(Message("orders", b"placed"), sharding_key="o-0")  # so the topic has queues
    services = [Service(tmp_path, broker.name_servers) for _ in range(2)]
    ended: list[Service] = []
    try:
        for service in services:
            service.wait_until_ready()
        load = Load(services)
        try:
            eventually(lambda: len(load.sent) > 100, "the first orders", STARTED_S)
            for place in range(2):
                services[place].ask_to_end()
                ended.append(services[place])
                assert "ERROR" not in services[place].wait()
                started = Service(tmp_path, broker.name_servers)
                started.wait_until_ready()
                services[place] = started
                count = len(load.sent)
                eventually(lambda n=count: len(load.sent) > n + 100, "more", STARTED_S)
        finally:
            load.end()
        written = tmp_path / "orders.db"
        eventually(
            lambda: load.sent.keys() <= {(queue, at) for queue, at, *_ in rows(written)}, "0 lost"
        )
        assert services[0].request("GET", "/orders/o-0")[0] == 200
        assert services[1].request("GET", "/orders/nobody")[0] == 404
        for service in services:
            service.ask_to_end()
        assert "ERROR" not in "".join(service.wait() for service in services)
    finally:
        for service in {*services, *ended}:
            service.kill()
    assert load.errors == []
    found = rows(written)
    assert [row for row in found if row[3] != 1] == [], "0 repeated"
    places = defaultdict(list)
    for queue, offset, text, _ in found:
        places[queue].append(offset)
        assert load.sent.get((queue, offset), text) == text
    for offsets in places.values():
        assert offsets == list(range(len(offsets))), "in order, from the first on, no gap"


def test_a_message_that_cannot_be_written_and_a_topic_made_anew_lose_no_other_message(
    producer: Producer, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with Admin(broker.name_servers) as admin:
        admin.create_topic("orders", 2)
        queues = sorted(admin.topic("orders").queues)
        service = Service(tmp_path, broker.name_servers)
        written = tmp_path / "orders.db"
        try:
            service.wait_until_ready()
            producer.send(Message("orders", b"no order"), queue=queues[0])
            for number in range(3):
                producer.send(Message("orders", b"%d" % number), sharding_key="o", queue=queues[1])
            eventually(lambda: len(rows(written)) == 3, "the other queue goes on", STARTED_S)
            admin.delete_topic("orders")
            admin.create_topic("orders", 2)
            for queue in queues:
                producer.send(Message("orders", b"new"), sharding_key="o", queue=queue)
            eventually(lambda: len(rows(written)) == 5, "none is taken for an old one", STARTED_S)
        finally:
            service.kill()
    assert {deliveries for *_, deliveries in rows(written)} == {1}
