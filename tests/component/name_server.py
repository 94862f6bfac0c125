"""A name server whose routes a test decides, in front of several embedded brokers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping

from ordermq.broker import EmbeddedBroker
from ordermq.remoting.bodies import PERM_READ, BrokerData, QueueData, TopicRoute
from ordermq.remoting.codes import RequestCode, ResponseCode
from ordermq.remoting.command import Command, Framer, encode
from tests.component.broker.wire_client import WireClient


class NameServer:
    """Knows the brokers that are registered with it, each by its address or as a running broker.

    RocketMQ's forgets a broker as soon as its connection closes; here the test says so.
    """

    def __init__(self, port: int = 0) -> None:
        self._routes: dict[str, dict[str, tuple[str, QueueData]]] = {}
        self._listening = socket.create_server(("127.0.0.1", port))
        self._lines: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def register(
        self, name: str, broker: EmbeddedBroker, topic: str, queues: int, *, writable: bool = True
    ) -> None:
        """Create a topic at a broker and list it; one that is not writable is only listed so."""
        self.register_address(name, broker.address, topic, queues, writable=writable)

    def register_address(
        self,
        name: str,
        address: str,
        topic: str,
        queues: int,
        *,
        writable: bool = True,
        told: str | None = None,
    ) -> None:
        """Do the same with a broker of another process.

        Args: told: the address that clients are told, as of a broker behind NAT.
        """
        with WireClient(int(address.rpartition(":")[2])) as client:
            client.create_topic(topic, queues)
        self.tell(name, told or address, topic, queues, writable=writable)

    def tell(
        self, name: str, address: str, topic: str, queues: int, *, writable: bool = True
    ) -> None:
        """List a topic at a broker, which need not run."""
        data = QueueData(name, queues, queues, 6 if writable else PERM_READ)
        self._routes.setdefault(topic, {})[name] = address, data

    def forget(self, name: str) -> None:
        """Drop a broker from all routes."""
        for brokers in self._routes.values():
            brokers.pop(name, None)

    def close(self) -> None:
        """Stop listening and cut every connection."""
        # Shut down, too: a thread that waits in `accept` or `recv` would keep the socket.
        for open_socket in (self._listening, *self._lines):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            self._lines.append(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        framer = Framer()
        with line, contextlib.suppress(OSError):  # cut
            while data := line.recv(65_536):
                for command in framer.feed(data):
                    self.asked += 1
                    line.sendall(encode(self._answer(command)))

    def _answer(self, command: Command) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(0, body=json.dumps(self._cluster()).encode())
        brokers: Mapping[str, tuple[str, QueueData]] = self._routes.get(
            command.ext.get("topic", ""), {}
        )
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or not brokers:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        route = TopicRoute(
            tuple(BrokerData(name, {0: address}, "c") for name, (address, _) in brokers.items()),
            tuple(data for _, data in brokers.values()),
        )
        return command.reply(0, body=route.to_body())

    def _cluster(self) -> dict[str, object]:
        known = {
            name: address
            for brokers in self._routes.values()
            for name, (address, _) in brokers.items()
        }
        return {
            "brokerAddrTable": {name: {"brokerAddrs": {"0": known[name]}} for name in known},
            "clusterAddrTable": {"c": sorted(known)},
        }
