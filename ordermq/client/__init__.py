"""Client side of the protocol: one `ClientSession` per producer, consumer or tool.

| subject | file |
|---|---|
| all parts of one client id, started and closed together | session.py |
| the I/O thread, its tasks, waiting with a clock | runtime.py |
| one connection per address, reconnecting | connections.py |
| one log line per outage of a broker | outages.py |
| requests to brokers, one typed method each | broker_api.py, admin_api.py |
| requests to name servers | name_server_api.py |
| queues and broker addresses of topics, replica to pull from | routes.py |
| heartbeats, registration, re-registration | heartbeats.py |
| message traces | trace.py |
| messages of a range of one queue, beside its group | queue_scan.py |
"""
