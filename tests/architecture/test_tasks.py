"""Places that start a task or thread by hand: of each it is known who sees its error.

A loop is started by `Supervisor.start` and a single piece of work by `Runtime.spawn`, which log and
count what goes wrong. asyncio and `threading` would drop it, or tell it when nobody looks.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_STARTS = re.compile(r"\b(create_task|ensure_future|Thread)\(")
# file -> who gets the error.
KNOWN = {
    "background_writer.py": "Python's hook for threads; what it writes raises nothing",
    "client/pull_connections.py": "whoever waits for the connection",
    "broker/context.py": "the loop's exception handler",
    "broker/embedded_broker.py": "`start`, or Python's hook for threads",
    "broker/listener.py": "the loop's exception handler",
    "broker/store/integrity.py": "nobody: it only tells the progress of a check",
    "broker/store/group_commit.py": "`_commit`, which fails the group",
    "cli/consume.py": "Python's hook for threads",
    "cli/demo/processes.py": "Python's hook for threads",
    "cli/run/consumer_process.py": "Python's hook for threads",
    "cli/run/metrics_port.py": "Python's hook for threads",
    "cli/run/process_supervisor.py": "`run`, which waits for them, or the loop's handler",
    "client/connections.py": "all who wait for the connection",
    "client/name_server_api.py": "whoever waits for the race of the servers",
    "client/routes.py": "all who wait for the route",
    "client/runtime.py": "`spawn` itself; the thread goes on after any error",
    "client/user_code.py": "`_run_async`, which goes on; or whoever waits for a callback",
    "clock.py": "nobody: they only wait, and are cancelled",
    "consumer/dispatch/worker_pool.py": "the thread itself, which goes on",
    "consumer/pop/fetcher.py": "the loop that pops, or who gives back what comes after its end",
    "consumer/pop/grpc_pop.py": "the receive that waits, and cancels its pause",
    "consumer/lite_pull_consumer.py": "the caller of `commit`",
    "consumer/offsets/offset_committer.py": "whoever writes, unless it gave up",
    "producer/request_reply.py": "nobody: a timer; and registrations, which log their failures",
    "remoting/dialer.py": "the connect that races the addresses",
    "remoting/response_futures.py": "the loop's exception handler; the check goes on",
    "contrib/faststream/subscriber.py": "`stop`, or whoever asks the reader for the next batch",
    "contrib/kombu.py": "Python's hook for threads; the queues of the exchange get no more",
    "metrics/opentelemetry.py": "Python's hook for threads; each collection records, too",
    "rocketmq/client_settings.py": "Python's hook for threads",
    "rocketmq/send_callbacks.py": "the thread itself, which goes on",
    "spark/source/driver_locks.py": "whoever waits for the locks",
    "supervisor.py": "`start` itself",
}


def test_every_place_that_starts_a_task_or_thread_is_known() -> None:
    found = {
        str(path.relative_to(ROOT / "ordermq"))
        for path in (ROOT / "ordermq").rglob("*.py")
        if any(_STARTS.search(line) for line in path.read_text().splitlines())
    }
    assert found == set(KNOWN)
