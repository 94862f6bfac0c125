"""The embedded broker: name server and broker on one port, durable, for any remoting client.

| question | file |
|---|---|
| start, stop, which thread | embedded.py |
| request code -> processor, connections, timers | server.py |
| one client's bytes | connection.py |
| what each request does | processors/ |
| where a message is stored, and when | placing.py, delays.py |
| pulls that wait | long_poll.py |
| SQLite, group commit | store.py, group_commit.py |
| topics, groups, offsets, locks | topics.py, groups.py, consumer_offsets.py, locks.py |
| routes | name_server.py |

All state lives on one event loop's thread; one writer thread commits to SQLite.
"""

from ordermq.broker.embedded import EmbeddedBroker
from ordermq.broker.statistics import BrokerStatistics

__all__ = ["BrokerStatistics", "EmbeddedBroker"]
