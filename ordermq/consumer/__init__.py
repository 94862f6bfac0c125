"""Consumers: queue ownership, fetching, listeners and polling, and what is committed.

Floors, from the top; a file imports only its own floor and those below:

| floor | duty |
|---|---|
| async_consumer.py | the public class for asyncio, around one of the two below |
| push_consumer.py, lite_pull_consumer.py | the public classes |
| group/ | membership: rebalance, queue locks, revocation, queue control, admin requests |
| pull_consumer.py | the public class of single pulls, which is no member of a group |
| pop/ | leases of popped batches instead of queue locks and pulls |
| fetch/ | pulling messages ahead, one request in flight per queue |
| dispatch/ | calling listeners: in order, by key, or concurrently |
| trace_consumption.py | traces of listener calls |
| call_times.py | durations of listener calls, for metrics |
| hooks.py | hooks and filters around listener calls |
| listener.py, offsets/ | what a listener is given and may return; stored offsets |
| queue/ | one assigned queue, the receiver of its messages, counters |

A member is the same for every consumer: `MemberParts` makes its parts and connects them,
`GroupMember` joins and leaves, `MemberState` tells. Four choices are made with the parts: queue
locks or none (`QueueLocks`, `NoLocks`), the storage of offsets (`BrokerOffsets`, `LocalOffsets`,
`StoreOffsets`), the place of user code (`OwnThreads`, `CallersLoop`), and the `Receiver` of fetched
messages: a dispatcher that calls listeners, or the `PollReceiver`, which fills a `PollBuffer`. Its
parts meet in `AssignedQueue` and nowhere else. Decisions are pure functions next to their drivers;
drivers run on the I/O thread, listeners on the worker pool.
"""
