"""The embedded broker: name server and broker on one port, durable, for any remoting client.

| question | file |
|---|---|
| start, stop, the broker's thread and port | embedded_broker.py |
| request code -> handler, connections, background jobs | server.py |
| accepting connections, TLS handshakes | listener.py |
| number of connections, unfinished frames, silent clients | connection_limits.py |
| the bytes of one client, backpressure | connection.py |
| what an account may do | access.py |
| the handler of a request | processors/ (its `__init__.py` lists the codes) |
| the parts that handlers use, replies after a write | context.py |
| where a message is stored: its queue, a delay, a transaction | message_routing.py |
| copies that a producer sends again | recent_sends.py |
| delay levels, timed messages, recall | delayed_messages.py |
| half messages, commit, rollback, transaction checks | transactions.py |
| pulls that wait for a message | long_polling.py |
| POP: leases of batches in order, batches without order, pops that wait | pop_leases.py, \
open_pops.py, held_pops.py |
| queue locks, epochs, leases, waiting members | queue_locks.py |
| consumer groups, members, subscriptions, producers | groups.py |
| committed offsets, resets by an administrator | consumer_offsets.py |
| topics, permissions, creation | topics.py |
| SQLite, group commit, fsync, retention | store/ |
| counters | statistics.py |

A send: connection -> server -> processors/send (processors/fast_path, recent_sends) ->
message_routing ->
store/group_commit, on the writer thread; then, back on the loop, store/store -> long_polling,
and processors/send replies.

A pull: connection -> server -> processors/pull (processors/fast_path) -> store/store, which
reads the records, and processors/pull replies; or long_polling, which holds the pull until an
append or its deadline, and then processors/pull.

All state is used on one event loop's thread. One writer thread commits to SQLite.
"""

from ordermq.broker.embedded_broker import EmbeddedBroker
from ordermq.broker.statistics import BrokerStatistics

__all__ = ["BrokerStatistics", "EmbeddedBroker"]
