"""Failure policies of a stage: a failing row becomes a dead letter, or its key is parked.

`DeadLetter` and `ParkKey` are the user's choice; `FailureHandler` carries it out in a task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from ordermq import Producer, json_text
from ordermq.config import ProducerConfig, RemotingConfig
from ordermq.errors import ConfigError, StoreError, own_text
from ordermq.model.failure_story import FailureStory
from ordermq.model.message import RESERVED_PROPERTIES, Message
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.options import client_options
from ordermq.spark.session import ProcessCache
from ordermq.spark.stages.state_store import file_system_of, read_json, reported, write_file

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

DEAD_LETTER_GROUP = "ordermq-spark-dead-letters"
# Keys that JSON gives back as they were.
_PARKABLE = (str, int)


@dataclass(frozen=True)
class DeadLetter:
    """Send a failing row to a topic, with the error in its properties; the other rows go on.

    The send is acknowledged before the batch ends. The order of the row's key has a gap.

    Args:
        topic: of the dead letters.
        max_attempts: calls with the failing row alone before it is sent there, 1..1000.
        counter: an accumulator that is increased per row; as everywhere in Spark, again for a
            task that runs again.
    """

    topic: str
    max_attempts: int = 1
    counter: Accumulator[int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 1_000:
            raise ConfigError(f"max_attempts={self.max_attempts}: expected 1..1000")


@dataclass(frozen=True)
class ParkKey(DeadLetter):
    """Send a failing row, and all later rows of its key, to a topic, in order of sharding keys.

    Args:
        directory: where parked keys are stored, on a file system that all executors share (the
            checkpoint's, for example; any that pyarrow.fs supports). Required in streaming,
            because the next micro-batch may run anywhere. In a batch query a key is parked until
            its task ends.
        key: the column whose value is parked.
    """

    directory: str | None = None
    key: str = "sharding_key"


# Parked keys.


@dataclass(frozen=True, slots=True)
class Parked:
    """The row since which a key is parked."""

    queue: MessageQueue
    offset: int

    def covers(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether a row of the key is parked."""
        # Rows before the failed one of the same queue are not: when a batch runs again, they are
        # processed as in its first run. Offsets of other queues do not compare.
        return queue != self.queue or offset >= self.offset


@dataclass
class ParkedKeys:
    """The parked keys that a task knows: those stored before it began, and its own."""

    directory: str | None
    keys: dict[Any, Parked] = field(default_factory=dict)

    def load(self) -> None:
        """Read the stored keys; called before the first row of a task."""
        if self.directory is None:
            return
        system, path = file_system_of(self.directory)
        with reported(path):
            selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
            files = [found.path for found in system.get_file_info(selector)]
        for file in files:
            # Drafts of a writer that crashed are left out.
            if not file.endswith(".json"):
                continue
            try:
                with reported(file, but=(FileNotFoundError,)):
                    entry = read_json(system, file)
                queue = MessageQueue(entry["topic"], entry["broker"], entry["queue_id"])
                self.keys[entry["key"]] = Parked(queue, entry["offset"])
            except FileNotFoundError:
                continue  # `unpark` was faster
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(
                    f"{file} is damaged: restore it, or find its key by the dead letters "
                    "and delete it, which processes the key's rows again. It parks a key"
                ) from error

    def park(self, key: Any, queue: MessageQueue, offset: int, reason: str) -> None:
        """Store a key. Called before its row is sent, so that a crash in between loses nothing."""
        if not isinstance(key, _PARKABLE):
            raise ConfigError(
                f"key {key!r} cannot be parked: use a key column of strings or integers"
            )
        self.keys[key] = Parked(queue, offset)
        if self.directory is None:
            return
        system, path = file_system_of(self.directory)
        entry = {
            "key": key,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset": offset,
            "reason": reason,
        }
        with reported(path):
            system.create_dir(path, recursive=True)
            write_file(system, f"{path}/{_file_name(key)}", json.dumps(entry).encode())


def unpark(directory: str, key: str | int) -> bool:
    """Process a parked key's rows again from the next micro-batch; False if it was not parked.

    Replay its dead letters first: rows that arrive after this call overtake them.
    """
    system, path = file_system_of(directory)
    name = f"{path}/{_file_name(key)}"
    with reported(path):
        if system.get_file_info(name).type is pyarrow.fs.FileType.NotFound:
            return False
        system.delete_file(name)
    return True


def _file_name(key: str | int) -> str:
    # Hashed, because a key may contain anything, and with its type: 1 and "1" are two keys.
    text = f"{type(key).__name__}:{key}"
    return hashlib.sha256(text.encode()).hexdigest()[:32] + ".json"


# Dead letters.


def _start_producer(name_servers: str, remoting: RemotingConfig) -> Producer:
    config = ProducerConfig(remoting=remoting)
    producer = Producer(DEAD_LETTER_GROUP, name_servers=name_servers, config=config)
    producer.start()
    return producer


_PRODUCERS = ProcessCache(_start_producer)


def send_dead_letter(
    topic: str,
    client: Mapping[str, str],
    row: Mapping[str, Any],
    queue: MessageQueue | None,
    reason: str,
) -> None:
    """Send a row to a topic and wait for the acknowledgement.

    The body is the row's own, or the whole row as JSON where it has none.
    """
    body = row.get("body")
    if isinstance(body, str):
        body = body.encode()
    # A stage may have dropped the body, and a broker accepts no empty message.
    if not body:
        body = json_text.dumps(dict(row), default=_json_value)
    kept = {
        name: value
        for name, value in dict(row.get("properties") or {}).items()
        if name not in RESERVED_PROPERTIES and value
    }
    where = "" if queue is None else str(queue)
    FailureStory(reason, queue=where, offset=row.get("offset", -1)).add_to(kept)
    key = row.get("sharding_key")
    message = Message(
        topic,
        bytes(body),
        tags=row.get("tags") or None,
        keys=[key for key in (row.get("keys") or "").split(" ") if key],
        properties=kept,
    )
    # By the sharding key, so that the rows of a parked key stay in order in the topic, too.
    producer = _PRODUCERS.get(*client_options(client))
    producer.send(message, sharding_key=None if key is None else str(key))


def _json_value(value: Any) -> Any:
    if hasattr(value, "tolist"):  # an array or a number of NumPy's, from a stage with pandas
        return value.tolist()
    return value.hex() if isinstance(value, bytes) else str(value)


# Carrying a policy out.


class FailureHandler:
    """Applies a failure policy in one task.

    Args:
        policy: the user's choice.
        client: options of the format: name servers, account, TLS.
    """

    def __init__(self, policy: DeadLetter, client: Mapping[str, str]) -> None:
        self.policy = policy
        self._client = client
        self._key_column = ""
        self._parked: ParkedKeys | None = None
        if isinstance(policy, ParkKey):
            self._key_column = policy.key
            self._parked = ParkedKeys(policy.directory)
            self._parked.load()

    def give_up(self, row: Any, queue: MessageQueue | None, error: Exception) -> None:
        """Send a failing row (a batch of one row) away, and park its key if the policy says so."""
        reason = own_text(error.__cause__ or error)
        values = row.slice(0, 1).to_pylist()[0]
        queue = queue or queue_of(values)
        key = values.get(self._key_column)
        if self._parked is not None and key is not None:
            self._parked.park(key, queue, values["offset"], reason)
        self.divert(values, queue, reason)

    def divert(self, values: Mapping[str, Any], queue: MessageQueue, reason: str) -> None:
        """Send a row to the policy's topic and count it."""
        send_dead_letter(self.policy.topic, self._client, values, queue, reason)
        if self.policy.counter is not None:
            self.policy.counter.add(1)

    def parted(self, rows: Any, queue: MessageQueue | None) -> tuple[Any, list[Mapping[str, Any]]]:
        """Return the rows of keys that are not parked, and the others as mappings.

        The others are for `divert_parked`, once the call with the rows beside them is over: after
        a failed one all of them are taken again.

        Args: queue: of all rows; None if there are several.
        """
        if self._parked is None or not self._parked.keys:
            return rows, []
        # Natively first: nearly always no row is parked, and a Python object per row would be
        # paid for every row of the stage.
        keys = rows.column(self._key_column)
        mask = pc.is_in(keys, value_set=pa.array(list(self._parked.keys), type=keys.type))
        if not pc.any(mask).as_py():
            return rows, []
        held: list[bool] = mask.to_pylist()
        parked: list[Mapping[str, Any]] = []
        for at, is_held in enumerate(held):
            if is_held:
                values = rows.slice(at, 1).to_pylist()[0]
                since = self._parked.keys[values[self._key_column]]
                held[at] = since.covers(queue or queue_of(values), values["offset"])
                if held[at]:
                    parked.append(values)
        return rows.filter(pa.array([not is_held for is_held in held])), parked

    def divert_parked(self, parked: Iterable[Mapping[str, Any]]) -> None:
        """Send rows of parked keys away, in their order."""
        for values in parked:
            assert self._parked is not None
            since = self._parked.keys[values[self._key_column]]
            reason = f"its key is parked since offset {since.offset} of {since.queue}"
            self.divert(values, queue_of(values), reason)


def queue_of(values: Mapping[str, Any]) -> MessageQueue:
    """Return the queue that a row comes from."""
    return MessageQueue(values["topic"], values["broker"], int(values["queue_id"]))
