"""Write histories by hand: what a broker and its consumers would have recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MS = 1_000_000
BROKER_LEASE_MS = 60_000
CLIENT_LEASE_MS = 30_000
QUEUE = {"group": "billing", "topic": "orders", "broker": "b", "queue": 0}


class Run:
    """A history in the making; every event is one millisecond after the one before."""

    def __init__(self, *, broker: str | None = "broker-1") -> None:
        self.events: list[dict[str, Any]] = []
        self.t = 1_000_000 * MS
        self.broker = broker
        self.epochs: dict[str, int] = {}
        self.keys: dict[int, str | None] = {}
        self._running: dict[str, list[int]] = {}
        self._sequence: dict[str, int] = {}
        if broker:
            self.open(broker)

    def open(self, process: str) -> None:
        self._sequence[process] = 0
        self.record(process, "OPEN")

    def close(self, process: str) -> None:
        self.record(process, "CLOSE")

    def wait_ms(self, ms: int) -> None:
        self.t += ms * MS

    def record(self, process: str, kind: str, **members: Any) -> dict[str, Any]:
        self.t += MS
        event = {"p": process, "seq": self._sequence.get(process, 0), "t": self.t, "type": kind}
        self._sequence[process] = event["seq"] + 1
        if kind not in ("OPEN", "CLOSE", "CRASH"):
            event |= QUEUE | {"epoch": self.epochs.get(process, 0)}
        event |= members
        self.events.append(event)
        return event

    # -- the broker ----------------------------------------------------------------------

    def store(self, *offsets: int, keys: Sequence[str | None] = (), **members: Any) -> None:
        assert self.broker
        self.keys |= dict(zip(offsets, keys, strict=False))
        self.record(self.broker, "STORE", group="", offs=list(offsets), keys=list(keys), **members)

    def grant(
        self, client: str, epoch: int, lease_ms: int = BROKER_LEASE_MS, write_ms: int = 0
    ) -> None:
        """Args: write_ms: until the grant is durable."""
        if self.broker:
            decided = self.t + MS
            self.wait_ms(write_ms)
            self.record(
                self.broker, "LOCK_OK", epoch=epoch, client=client, lease_ms=lease_ms,
                decided=decided,
            )  # fmt: skip

    def accept(self, client: str, offset: int) -> None:
        if self.broker:
            epoch = self.epochs[client]
            self.record(self.broker, "COMMIT_ACK", epoch=epoch, client=client, off=offset)

    def release(self, client: str) -> None:
        if self.broker:
            self.record(self.broker, "UNLOCK", epoch=self.epochs[client], client=client)

    def restart_broker(self, name: str) -> None:
        """Kill the broker without a CLOSE and start it again."""
        assert self.broker
        self.record("harness", "CRASH", client=self.broker)
        self.broker = name
        self.open(name)

    # -- consumers -----------------------------------------------------------------------

    def lock(self, client: str, epoch: int) -> None:
        """Ask, be granted, know it. Also a renewal."""
        sent = self.t
        self.epochs[client] = epoch
        self.grant(client, epoch)
        self.record(client, "LOCK_OK", sent=sent, lease_ms=CLIENT_LEASE_MS)

    def begin_at(self, client: str, offset: int) -> None:
        self.record(client, "POSITION", off=offset, detail="")

    def start(self, client: str, *offsets: int, attempt: int = 0, **members: Any) -> None:
        self._running[client] = list(offsets)
        keys = [self.keys.get(offset) for offset in offsets]
        self.record(client, "START", offs=list(offsets), keys=keys, attempt=attempt, **members)

    def end(self, client: str, done: int | None = None, **members: Any) -> None:
        offsets = self._running.pop(client)
        done = len(offsets) if done is None else done
        self.record(client, "END", **({"offs": offsets, "done": done} | members))

    def consume(self, client: str, *offsets: int, attempt: int = 0) -> None:
        self.start(client, *offsets, attempt=attempt)
        self.end(client)

    def commit(self, client: str, offset: int) -> None:
        self.record(client, "COMMIT_SENT", off=offset)
        self.accept(client, offset)
        self.record(client, "COMMIT_ACK", off=offset)

    def unlock(self, client: str) -> None:
        self.record(client, "UNLOCK")
        self.release(client)

    def crash(self, client: str) -> None:
        self.record("harness", "CRASH", client=client)


def two_members(*, stored: int = 4, keys: Sequence[str | None] = ()) -> Run:
    """A broker with messages 0.., members a and b; a holds the queue under epoch 1."""
    run = Run()
    run.store(*range(stored), keys=keys or [f"k{offset}" for offset in range(stored)])
    run.open("a")
    run.open("b")
    run.lock("a", 1)
    return run


def concurrently(stored: int) -> Run:
    """A broker with messages 0.., members a and b of a group without locks."""
    run = Run()
    run.store(*range(stored), keys=[f"k{offset}" for offset in range(stored)])
    run.epochs = {"a": 0, "b": 0}
    run.open("a")
    run.open("b")
    return run


def close_all(run: Run) -> Run:
    """Everybody leaves in order."""
    gone = {event["client"] for event in run.events if event["type"] == "CRASH"}
    for process in dict.fromkeys(event["p"] for event in run.events):
        if process != "harness" and process not in gone:
            run.close(process)
    return run
