"""Versions of a queue's state on a file system that all executors share.

A micro-batch that changes a queue's state writes one version of it, before its task ends, and so
before Spark commits the batch. A task reads the newest version of an earlier batch: whatever a
failed attempt of its own batch has left is not looked at, and replaced. So the state is that of the
committed batches, whichever process was killed.

    DIRECTORY/ordermq-state.json                      the directory's id
    DIRECTORY/QUERY/STAGE/TOPIC@BROKER-QUEUE/VERSION  a version: its name is `StateVersion`
    DIRECTORY/QUERY/STAGE/TOPIC.queues.json           its queues at each broker: queue_counts.py

A version is a snapshot, or the keys that changed since the version before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs

from ordermq.errors import ConfigError, OrderingError, StoreError
from ordermq.model.message_queue import MessageQueue
from ordermq.spark.session import RunningTask

Kind = Literal["snapshot", "changes"]
_MAGIC: Final = b"OMQSTATE1"
_ID_FILE: Final = "ordermq-state.json"
# A version's changes are read one file after another, so a long row of them is cut short.
MAX_CHANGES: Final = 32
_NO_BATCH: Final = "none"
_NAME: Final = re.compile(
    r"(\d{12,})\.(\d{12,}|none)\.([0-9a-f]{8})\.([0-9a-f]{8})\.(\d+)\.(\d+)\.(snapshot|changes)"
)
_DRAFT: Final = re.compile(r"(\d{12,})\..*\.draft")


@dataclass(frozen=True, slots=True)
class StateVersion:
    """A stored version of a queue's state; its name tells all of it.

    Args:
        batch: the micro-batch that wrote it.
        previous: the batch of the version it goes on from; None for a queue's first.
        run: the run of the query that wrote it; differs after each restart.
        stage: the stage that wrote it; differs after each restart, too.
        partition, task: Spark's numbers of the part of the stage, and of the attempt.
        kind: all keys, or those that changed since `previous`.
        size, modified_ns: of the file.
    """

    batch: int
    previous: int | None
    run: str
    stage: str
    partition: int
    task: int
    kind: Kind
    size: int = field(default=0, compare=False)
    modified_ns: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """The name of its file."""
        previous = _NO_BATCH if self.previous is None else f"{self.previous:012d}"
        return (
            f"{self.batch:012d}.{previous}.{self.run}.{self.stage}.{self.partition}.{self.task}"
            f".{self.kind}"
        )

    @classmethod
    def of_name(cls, name: str, size: int = 0, modified_ns: int = 0) -> StateVersion | None:
        """Return the version that a file's name tells; None if it is not a version."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        batch, previous, run, stage, partition, task, kind = found.groups()
        return cls(
            int(batch),
            None if previous == _NO_BATCH else int(previous),
            run,
            stage,
            int(partition),
            int(task),
            "snapshot" if kind == "snapshot" else "changes",
            size,
            modified_ns,
        )


@dataclass(frozen=True)
class StoredState:
    """The content of a version.

    Args:
        states: keys and states; of a `changes` version those that changed, all values missing
            where a key was forgotten.
        last_offset: of the rows that have made this state.
        told: figures about the state and the process that wrote it.
    """

    states: Any
    last_offset: int
    told: dict[str, Any]


def encoded(queue: MessageQueue, version: StateVersion, stored: StoredState) -> bytes:
    """Return a version as the bytes of its file: magic, size, JSON, Arrow stream, CRC-32."""
    about = {
        "queue": str(queue),
        "batch": version.batch,
        "last_offset": stored.last_offset,
        "told": stored.told,
    }
    head = json.dumps(about).encode()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, stored.states.schema, options=options) as writer:
        writer.write_batch(stored.states)
    content = b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, sink.getvalue()))
    return content + zlib.crc32(content).to_bytes(4, "little")


def decoded(content: bytes, path: str, queue: MessageQueue, batch: int) -> StoredState:
    """Return the version that a file contains.

    Args: queue, batch: those that its place tells.
    Raises: StoreError: the file is damaged, or of another queue or batch.
    """
    begin = len(_MAGIC) + 4
    whole = memoryview(content)
    if (
        len(content) < begin + 4
        or bytes(whole[: len(_MAGIC)]) != _MAGIC
        or zlib.crc32(whole[:-4]) != int.from_bytes(whole[-4:], "little")
    ):
        raise StoreError(
            f"{path} is damaged: restore it from a backup, or start the query with a new "
            f"checkpoint, which begins without state. It has {len(content)} bytes, and its "
            "checksum is wrong"
        )
    end = begin + int.from_bytes(whole[len(_MAGIC) : begin], "little")
    about = json.loads(bytes(whole[begin:end]))
    if (about["queue"], about["batch"]) != (str(queue), batch):
        raise StoreError(
            f"{path} is another file under this name: restore it from a backup, or start the query "
            f"with a new checkpoint, which begins without state. It has the state of "
            f"{about['queue']} after micro-batch {about['batch']}"
        )
    with pa.ipc.open_stream(pa.py_buffer(content).slice(end, len(content) - end - 4)) as reader:
        states = reader.read_next_batch()
    return StoredState(states, about["last_offset"], about["told"])


# The directory.


def file_system_of(directory: str) -> tuple[Any, str]:
    """Return the file system of a directory, and the directory's path there.

    Raises: ConfigError: it is neither an absolute path nor a URI that pyarrow.fs knows.
    """
    # A relative path would name another directory in every process.
    if "://" not in directory and not directory.startswith("/"):
        raise ConfigError(f"directory {directory!r}: give an absolute path or a URI")
    try:
        system, path = pyarrow.fs.FileSystem.from_uri(directory)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"directory {directory!r} cannot be used: give a scheme that pyarrow.fs knows: {error}"
        ) from error
    return system, path


@contextlib.contextmanager
def reported(path: str, but: tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """Raise StoreError where the file system refuses something, but for these errors."""
    try:
        yield
    except but:
        raise
    except OSError as error:
        raise StoreError(
            f"the files in {path} cannot be read or written: give driver and executors the right "
            f"to read, write, list and delete there, or make room; the batch runs again: {error}"
        ) from error


def prepare_directory(directory: str) -> str:
    """Create a directory for states unless it is there; return its id.

    Called on the driver: an executor that does not find the id looks at another disk.
    Raises: ConfigError: as `file_system_of`. StoreError: it cannot be used.
    """
    system, path = file_system_of(directory)
    with reported(path):
        found = _read_id(system, path)
        if found is None:
            system.create_dir(path, recursive=True)
            write_file(
                system, f"{path}/{_ID_FILE}", json.dumps({"id": secrets.token_hex(8)}).encode()
            )
            # Read again: of two drivers that come at once, the later one has replaced the file.
            found = _read_id(system, path)
    assert found is not None
    return found


def _read_id(system: Any, path: str) -> str | None:
    file = f"{path}/{_ID_FILE}"
    try:
        return str(read_json(system, file)["id"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{file} is damaged: delete it, and start the query again, which makes it anew. No "
            "state is in it: executors know by it that the directory is the driver's"
        ) from error


def read_json(system: Any, path: str) -> Any:
    """Return what a file is the JSON of; raises ValueError where it is none."""
    with system.open_input_stream(path) as stream:
        return json.loads(stream.read())


class StateFolder:
    """The stored versions of a stage's states, queue by queue, as a task sees them.

    Args:
        directory: an absolute path, or a URI that pyarrow.fs knows.
        stage: the stage's name within its query, for the user.
        query_id: of the streaming query.
    """

    def __init__(self, directory: str, stage: str, query_id: str) -> None:
        self._directory = directory
        self._system, self._root = file_system_of(directory)
        self._is_local = self._system.type_name == "local"
        self.path = f"{self._root}/{query_id}/{quote(stage, safe='')}"

    def check(self, directory_id: str, batch: int) -> None:
        """Make sure that this is the driver's directory, with the states of earlier batches.

        Raises: ConfigError: it is not shared, or the query had another one before. StoreError: it
            cannot be used.
        """
        with reported(self._root):
            self._check(directory_id, batch)

    def _check(self, directory_id: str, batch: int) -> None:
        if _read_id(self._system, self._root) != directory_id:
            raise ConfigError(
                f"directory {self._directory!r} is not the driver's in this executor: give one "
                "that driver and all executors share, such as the checkpoint's file system"
            )
        if self._system.get_file_info(self.path).type is not pyarrow.fs.FileType.NotFound:
            return
        if batch > 0:
            raise ConfigError(
                f"no state of this query in {self.path}, and this is its micro-batch {batch}: "
                "give the directory and the name that the stage had before. If the stage is new "
                "or had no rows until now, create that folder"
            )
        self._system.create_dir(self.path, recursive=True)
        if self._is_local:
            _sync(os.path.dirname(self.path))
            _sync(self._root)

    def versions(self, queue: MessageQueue) -> list[StateVersion]:
        """Return the stored versions of a queue's state, sorted by batch.

        Raises: StoreError: they cannot be listed.
        """
        with reported(self._folder(queue)):
            infos = _infos_in(self._system, self._folder(queue))
        found = (
            StateVersion.of_name(info.base_name, info.size or 0, info.mtime_ns or 0)
            for info in infos
        )
        known = (version for version in found if version is not None)
        return sorted(known, key=lambda one: (one.batch, one.name))

    def queues(self) -> list[MessageQueue]:
        """Return the queues that have a state."""
        names = _folders_in(self._system, self.path)
        found = (queue for name in names if (queue := _queue_of(name)) is not None)
        return sorted(queue for queue in found if self.versions(queue))

    def read(self, queue: MessageQueue, version: StateVersion) -> StoredState:
        """Return the content of a version.

        Raises: StoreError: its file is damaged, or it cannot be read.
        """
        path = f"{self._folder(queue)}/{version.name}"
        with reported(path), self._system.open_input_stream(path) as stream:
            content = stream.read()
        return decoded(content, path, queue, version.batch)

    def write(self, queue: MessageQueue, version: StateVersion, content: bytes) -> None:
        """Store a version; it is there as a whole, or not at all.

        Raises: StoreError: it cannot be written.
        """
        folder = self._folder(queue)
        with reported(folder):
            self._system.create_dir(folder, recursive=True)
            write_file(self._system, f"{folder}/{version.name}", content)
            if self._is_local and version.previous is None:
                _sync(self.path)  # the folder may be new, too

    def remove(self, queue: MessageQueue, versions: Iterable[StateVersion]) -> None:
        """Delete versions that no batch will read; raises as `versions`."""
        folder = self._folder(queue)
        with reported(folder):
            for version in versions:
                _delete(self._system, f"{folder}/{version.name}")

    def remove_drafts(self, queue: MessageQueue, batch: int) -> None:
        """Delete what writers have left that were killed in batches before this one.

        Raises: as `versions`.
        """
        folder = self._folder(queue)
        with reported(folder):
            for info in _infos_in(self._system, folder):
                draft = _DRAFT.fullmatch(info.base_name)
                if draft is not None and int(draft[1]) < batch:
                    _delete(self._system, info.path)

    def queue_counts(self, topic: str) -> dict[str, int]:
        """Return how many queues a topic had at each broker; {} where that was not stored yet.

        Raises: StoreError: they cannot be read.
        """
        path = self._counts_path(topic)
        try:
            with reported(self.path, but=(FileNotFoundError,)):
                return {str(name): int(n) for name, n in read_json(self._system, path).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{path} is damaged: delete it if the topic has as many queues as ever; it is "
                f"made anew: {error}"
            ) from error

    def keep_queue_counts(self, topic: str, counts: Mapping[str, int]) -> None:
        """Store how many queues a topic has at each broker; raises as `write`."""
        with reported(self.path):
            write_file(self._system, self._counts_path(topic), json.dumps(dict(counts)).encode())

    def _counts_path(self, topic: str) -> str:
        return f"{self.path}/{quote(topic, safe='')}.queues.json"

    def _folder(self, queue: MessageQueue) -> str:
        name = f"{queue.topic}@{queue.broker_name}-{queue.queue_id}"
        return f"{self.path}/{quote(name, safe='@')}"


def _queue_of(folder: str) -> MessageQueue | None:
    """Return the queue whose states are in a folder of this name; None if it is another folder."""
    place, _, queue_id = unquote(folder).rpartition("-")
    topic, _, broker = place.partition("@")  # no topic has an @
    if not topic or not broker or not queue_id.isdecimal():
        return None
    return MessageQueue(topic, broker, int(queue_id))


def queries_in(directory: str) -> list[str]:
    """Return the ids of the queries that have states in a directory.

    Raises: ConfigError: as `file_system_of`. StoreError: it cannot be listed.
    """
    system, root = file_system_of(directory)
    with reported(root):
        return _folders_in(system, root)


def _folders_in(system: Any, path: str) -> list[str]:
    kind = pyarrow.fs.FileType.Directory
    return sorted(info.base_name for info in _infos_in(system, path) if info.type is kind)


def _infos_in(system: Any, path: str) -> list[Any]:
    selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
    found: list[Any] = system.get_file_info(selector)
    return found


def _delete(system: Any, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # another attempt of this task has deleted it
        system.delete_file(path)


def write_file(system: Any, path: str, content: bytes) -> None:
    """Write a file that is there as a whole, or not at all, also after a power failure."""
    # A move replaces a file as a whole. The draft's name is of this attempt alone: of two at once
    # one would move away what the other writes.
    draft = f"{path}.{secrets.token_hex(4)}.draft"
    try:
        with system.open_output_stream(draft) as stream:
            stream.write(content)
        if system.type_name == "local":
            _sync(draft)
        system.move(draft, path)
        if system.type_name == "local":
            # Spark commits the batch afterwards, and after a power failure a batch that is
            # committed must not find an older file.
            _sync(os.path.dirname(path))
    except OSError:
        # On a full disk each attempt would leave another part of the room filled.
        _delete(system, draft)
        raise


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Choosing versions.


def base_versions(
    versions: Iterable[StateVersion], batch: int, run: str, where: str
) -> list[StateVersion]:
    """Return the versions that make the state before a batch: a snapshot, then the changes.

    Args:
        run: the reader's.
        where: the queue, for the error.
    Raises: StoreError: one of them is missing.
    """
    by_batch: dict[int, StateVersion] = {}
    for version in versions:
        known = by_batch.get(version.batch)
        if known is None or _preference(version, run) > _preference(known, run):
            by_batch[version.batch] = version
    newest = max((number for number in by_batch if number < batch), default=None)
    for number, version in by_batch.items():
        # What a failed attempt of this batch has left tells what it went on from.
        before = version.previous
        if number >= batch and before is not None and before < batch and before != newest:
            raise _missing(where, batch, before)
    chain: list[StateVersion] = []
    number_needed = newest
    while number_needed is not None:
        if number_needed not in by_batch:
            raise _missing(where, batch, number_needed)
        version = by_batch[number_needed]
        chain.insert(0, version)
        number_needed = version.previous if version.kind == "changes" else None
    return chain


def _preference(version: StateVersion, run: str) -> tuple[bool, int, int]:
    # A run that ended in mid-batch leaves its version beside that of the run that repeated the
    # batch. The repeated one is the committed one: it is the reader's own, or it is the later one.
    # Within a run the last attempt of a task is the one that succeeded.
    own = version.run == run
    return own, 0 if own else version.modified_ns, version.task


def _missing(where: str, batch: int, number: int) -> StoreError:
    return StoreError(
        f"the state of {where} before micro-batch {batch} is incomplete: restore the directory "
        f"from a backup, or start the query with a new checkpoint. The version of batch {number} "
        "is not there: files were deleted, or the checkpoint is older than the states"
    )


def check_sole_writer(
    versions: Iterable[StateVersion], mine: StateVersion, queue: MessageQueue
) -> None:
    """Refuse a state that two parts of a run write, after the own version was written.

    Both look after writing, so at least one of them sees the other.

    Raises: ConfigError: two stages have one name. OrderingError: a queue is in two tasks.
    """
    for other in versions:
        if other.batch != mine.batch or other.run != mine.run:
            continue
        if other.stage != mine.stage:
            raise ConfigError(
                "two stages of this query keep their states under one name: give each "
                f"apply_with_keyed_state its own name=...; both wrote {queue}"
            )
        if other.partition != mine.partition:
            raise OrderingError(
                "rows of one queue are in two tasks: call the stage straight on the source's "
                "DataFrame, before any repartition, join, union with itself or distinct",
                topic=queue.topic,
                broker=queue.broker_name,
                queue_id=queue.queue_id,
            )


def outdated(
    versions: Iterable[StateVersion], base: Sequence[StateVersion], mine: StateVersion
) -> list[StateVersion]:
    """Return the versions that neither this batch, run again, nor a later one will read."""
    # No newer ones, and none of another run's: this may be a task that Spark has given up, and
    # that runs on while others have got further.
    oldest = base[0].batch if base else mine.batch
    mine_before = (mine.batch, mine.run, mine.stage, mine.partition)
    return [
        one
        for one in versions
        if one.batch < oldest
        or ((one.batch, one.run, one.stage, one.partition) == mine_before and one.task < mine.task)
    ]


def run_name(task: RunningTask, driver: str) -> str:
    """Return a short name of the run of a query that a task belongs to."""
    return _short(f"{driver}/{task.run_id}")


def stage_name(stage: str) -> str:
    """Return a short name of a stage."""
    return _short(stage)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
