"""Client side of the protocol: one `ClientSession` per producer, consumer or tool.

| subject | file |
|---|---|
| all parts of one client id, started and closed together | session.py |
| the I/O thread, its tasks, waiting with a clock | runtime.py |
| futures that callers on other threads wait for | outcome_future.py |
| the place of a user's coroutines and callbacks | user_code.py |
| one connection per address, reconnecting | connections.py |
| the connections of the pull engine | pull_connections.py |
| a client behind RocketMQ's proxy, and its messages | proxy.py, proxy_messages.py |
| one log line per outage of a broker | outages.py |
| requests to brokers, one typed method each | broker_api.py, admin_api.py |
| requests to name servers | name_server_api.py |
| queues and broker addresses of topics, replica to pull from | routes.py |
| heartbeats, registration, re-registration | heartbeats.py |
| message traces | trace.py |
| messages of a range of one queue, beside its group | queue_scan.py |
| offsets by time, looked up around a broker's answer | store_times.py |
| whether a queue is still the one that was read | queue_life.py |
| unread messages of queues that an admin took away | withdrawn_queues.py |
"""
