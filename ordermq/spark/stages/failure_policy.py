"""What becomes of a row that the function fails on, as the user chooses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow.fs
from pyspark.accumulators import Accumulator

from ordermq.errors import ConfigError
from ordermq.model.message import RESERVED_PROPERTIES, Message
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import producer_of

_MOST_OF_AN_ERROR = 1_000  # characters
_SCALARS = (str, int)


@dataclass(frozen=True)
class DeadLetter:
    """A row that fails goes to a topic, with the reason in its properties; the others go on.

    The send is acknowledged before the batch ends. The order of its key has a gap.

    Args:
        topic: of the dead letters.
        max_attempts: calls with the failing row alone before that, 1..1000.
        counter: an accumulator that gets one for each row, as Spark counts: again for a task
            that is run again.
    """

    topic: str
    max_attempts: int = 1
    counter: Accumulator[int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 1_000:
            raise ConfigError(f"max_attempts={self.max_attempts}: expected 1..1000")


@dataclass(frozen=True)
class ParkKey(DeadLetter):
    """A row that fails goes to a topic, and so do all later rows of its key, in order.

    Args:
        directory: where parked keys are written down, on a file system all executors share
            (the checkpoint's will do; any that pyarrow.fs knows). Needed in streaming, for the
            next micro-batch may run anywhere; in a batch query a key ends with its task.
        key: the column whose value is parked.
    """

    directory: str | None = None
    key: str = "sharding_key"


@dataclass(frozen=True, slots=True)
class Parked:
    """Since which row a key is parked: a batch that is run again parks no earlier one."""

    queue: MessageQueue
    offset: int

    def holds(self, queue: MessageQueue, offset: int) -> bool:
        return queue != self.queue or offset >= self.offset


@dataclass
class ParkedKeys:
    """The parked keys a task knows: what others wrote down before it began, and its own."""

    directory: str | None
    keys: dict[Any, Parked] = field(default_factory=dict)

    def load(self) -> None:
        """Read what is written down; before the first row of a task."""
        if self.directory is None:
            return
        system, path = pyarrow.fs.FileSystem.from_uri(_uri(self.directory))
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
        for found in system.get_file_info(selector):
            if found.path.endswith(".json"):
                with system.open_input_stream(found.path) as stream:
                    told = json.loads(stream.read())
                queue = MessageQueue(told["topic"], told["broker"], told["queue_id"])
                self.keys[told["key"]] = Parked(queue, told["offset"])

    def park(self, key: Any, queue: MessageQueue, offset: int, reason: str) -> None:
        """Write a key down, before its row is sent away: a crash between loses nothing."""
        if not isinstance(key, _SCALARS):
            raise ConfigError(f"key {key!r}: only texts and whole numbers can be parked")
        self.keys[key] = Parked(queue, offset)
        if self.directory is None:
            return
        system, path = pyarrow.fs.FileSystem.from_uri(_uri(self.directory))
        told = {
            "key": key,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset": offset,
            "reason": reason,
        }
        system.create_dir(path, recursive=True)
        name = f"{path}/{_file_name(key)}"
        # Two tries of one task write the same; a name of its own and a move keep it whole.
        draft = f"{name}.{queue.queue_id}-{offset}.draft"
        with system.open_output_stream(draft) as stream:
            stream.write(json.dumps(told).encode())
        system.move(draft, name)


def unpark(directory: str, key: str | int) -> bool:
    """Let a parked key's rows go on from the next micro-batch; False if it was not parked.

    Replay its dead letters first: rows that come after this call pass them.
    """
    system, path = pyarrow.fs.FileSystem.from_uri(_uri(directory))
    name = f"{path}/{_file_name(key)}"
    if system.get_file_info(name).type is pyarrow.fs.FileType.NotFound:
        return False
    system.delete_file(name)
    return True


def _uri(directory: str) -> str:
    return directory if "://" in directory or directory.startswith("/") else _absolute(directory)


def _absolute(directory: str) -> str:
    raise ConfigError(f"directory {directory!r}: expected an absolute path or a URI")


def _file_name(key: str | int) -> str:
    text = f"{type(key).__name__}:{key}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


@dataclass(frozen=True)
class DeadLetters:
    """Sends rows away; awaited, so that the batch ends after they are stored.

    Args:
        topic: where to.
        client: options of the producer: name servers, account, TLS.
    """

    topic: str
    client: Mapping[str, str]

    def send(self, row: Mapping[str, Any], queue: MessageQueue | None, reason: str) -> None:
        """Send one row: its body as it is, or the whole row as JSON where it has none."""
        body = row.get("body")
        if isinstance(body, str):
            body = body.encode()
        if not body:
            body = orjson.dumps(dict(row), default=_plain)
        own = {
            "omq_error": _cleaned(reason)[:_MOST_OF_AN_ERROR],
            "omq_failed_offset": str(row.get("offset", "")),
            "omq_failed_queue": str(queue) if queue is not None else "",
        }
        kept = {
            name: value
            for name, value in dict(row.get("properties") or {}).items()
            if name not in RESERVED_PROPERTIES and value
        }
        key = row.get("sharding_key")
        message = Message(
            self.topic,
            bytes(body),
            tags=row.get("tags") or None,
            properties=kept | {name: text for name, text in own.items() if text},
        )
        producer_of(self.client).send(message, sharding_key=None if key is None else str(key))


def _cleaned(text: str) -> str:
    return text.replace("\x01", " ").replace("\x02", " ")


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
