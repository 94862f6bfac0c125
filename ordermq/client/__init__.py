"""What producers and consumers share: the I/O thread, connections, routes, typed requests.

| question | file |
|---|---|
| the I/O thread and what runs on it | runtime.py |
| loops that repeat, waiting with a deadline | timers.py |
| one connection an address, reconnecting | connections.py |
| which broker holds which queue | routes.py |
| which of its replicas is pulled from | pull_source.py |
| telling brokers that we live | heartbeats.py |
| one typed method a request | broker_api.py, name_server_api.py |
| the client id | identity.py |
| message traces on their way | trace.py |
| all of it together for one client id | instance.py |
"""
