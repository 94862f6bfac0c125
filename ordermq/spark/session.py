"""The client session of a Spark process, and the Spark task that the process runs.

The driver half of a stream, the planner of a batch read and every Python worker talk to name
servers and brokers through a `ClientSession`. Each run of a streaming query in ordered mode draws a
run id and holds its queues at the broker under the client id `lease_client_id(group, run_id)`.
The source writes that run id into the column `lease` of each row. A stage which asks the broker
for the lock of the row's queue under the same client id learns whether the run still holds it.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ordermq.admin.topics import Topics
from ordermq.client.session import ClientSession
from ordermq.config import RemotingConfig
from ordermq.errors import RouteError
from ordermq.model.message_queue import MessageQueue
from ordermq.remoting.bodies import PERM_READ
from ordermq.spark.options import Selection
from ordermq.threads import Lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")


class ProcessCache(Generic[_T]):
    """Objects of one process, made once per key and kept until the process ends.

    Spark kills an idle worker without notice, so nothing kept here may need an orderly end:
    whatever it sent was acknowledged before its task ended.
    """

    def __init__(self, make: Callable[..., _T]) -> None:
        self._make = make
        self._lock = Lock()
        self._kept: dict[Any, _T] = {}
        os.register_at_fork(after_in_child=self._unlock)

    def get(self, *arguments: Any) -> _T:
        """Return the object made from these arguments."""
        # Spark forks its workers from a daemon which may have filled this cache already. A
        # connection does not survive a fork, so the process id is part of the key.
        key = (os.getpid(), arguments)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(*arguments)
            return self._kept[key]

    def _unlock(self) -> None:
        self._lock = Lock()  # another thread may have held it during the fork


_SESSIONS = ProcessCache(ClientSession)


def shared_session(name_servers: str, remoting: RemotingConfig) -> ClientSession:
    """Return this process's session with these name servers; the first call opens it."""
    return _SESSIONS.get(name_servers, remoting)


async def selected_topics(session: ClientSession, selection: Selection) -> Sequence[str]:
    """Return the topics of a selection: of a pattern those that brokers have now.

    Raises: RemotingError, RouteError: a broker does not answer, or refuses the list.
    """
    if selection.pattern is None:
        return selection.topics
    # Retry topics, dead letters and the brokers' own topics are left out.
    found = await Topics(session).summaries()
    return [each.name for each in found if each.is_readable and selection.reads_topic(each.name)]


async def queues_of(
    session: ClientSession, selection: Selection, topics: Sequence[str]
) -> list[MessageQueue]:
    """Return the selected readable queues of these topics, sorted.

    Raises: RouteError: a topic exists on no broker.
    """
    queues = sorted([queue for topic in topics for queue in await session.queues(topic)])
    return [queue for queue in queues if selection.reads(queue)]


async def closed_brokers(session: ClientSession, topics: Iterable[str]) -> set[tuple[str, str]]:
    """Return the topics and brokers whose queues an admin has closed for reads."""
    routes = await session.routes.get_all(topics)
    return {
        (topic, data.broker_name)
        for topic, route in routes.items()
        if route is not None
        for data in route.queues
        if not data.perm & PERM_READ
    }


def closed_error(topic: str, brokers: Iterable[str]) -> RouteError:
    """Return the error of a topic that is closed for reads at these brokers."""
    return RouteError(
        f"the topic is closed for reads at {', '.join(sorted(brokers))} (its perm lacks 4; an "
        "admin has withdrawn it): have it opened (mqadmin updateTopicPerm -p 6). Its messages are "
        "kept until they expire",
        topic=topic,
    )


async def learn_routes(session: ClientSession, queues: Iterable[MessageQueue]) -> None:
    """Ask for the routes of these queues' topics: `routes.master_of` knows their brokers then."""
    await session.routes.get_all({queue.topic for queue in queues})


# The id of a run.


def new_run_id() -> int:
    """Draw a run id: 1 .. 2^63 - 1, random."""
    # Random, not counted: two drivers that never heard of each other must not draw the same id.
    # 63 bits, so that it fits the BIGINT column of Spark.
    return secrets.randbelow((1 << 63) - 1) + 1


def lease_client_id(group: str, run_id: int) -> str:
    """Return the client id under which a run holds its queues and its executors ask."""
    # Fixed width: mqadmin and `ordermq locks` list these ids one below the other.
    return f"{group}@spark@{run_id:016x}"


# What the session and the running task have.


def is_on(spark: SparkSession, setting: str) -> bool:
    """Return whether a setting of Spark is true, in whatever case it is written."""
    return str(spark.conf.get(setting, "false")).strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class RunningTask:
    """The Spark task that this process runs.

    Args:
        stage: unique per `apply_in_order` call, or the name of another kind of work.
        query_id: id of the streaming query, kept over restarts; None in a batch query.
        batch_id: number of the micro-batch, the same when it runs again; None in a batch query.
        partition: Spark's number of the partition.
        attempt: number of the attempt, 0 for the first.
        task_attempt: unique within the Spark application; a replayed batch has another one.
        run_id: of this start of the query; None in a batch query.
    """

    stage: str
    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int
    task_attempt: int
    run_id: str | None = None


def running_task(stage: str) -> RunningTask:
    """Return the running task as Spark describes it."""
    # Imported here: the processes which only plan a read need no task, and pay for each import.
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:  # no Spark around the call, as in unit tests
        return RunningTask(stage, None, None, 0, 0, threading.get_ident())
    # These two local properties are how Spark's own Scala sources learn the micro-batch; the
    # Python API has no other way to it.
    batch = task.getLocalProperty("streaming.sql.batchId")
    return RunningTask(
        stage,
        task.getLocalProperty("sql.streaming.queryId"),
        int(batch) if batch is not None else None,
        task.partitionId(),
        task.attemptNumber(),
        task.taskAttemptId(),
        # Spark makes the run's id the group of its jobs.
        task.getLocalProperty("spark.jobGroup.id"),
    )
