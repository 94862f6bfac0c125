"""RocketMQ's remoting protocol: pure functions on bytes, and one class that does I/O.

| subject | file |
|---|---|
| codes of requests, responses and languages | codes.py |
| one request or response, as bytes and back: frames, JSON and binary headers | command.py |
| named fields of each request and response | headers.py, rare_headers.py |
| JSON bodies | bodies.py, admin_bodies.py |
| an open connection, also written by other threads | connection.py |
| opening sockets: host names, several addresses | dialer.py |
| attempts that start one after the other, for addresses and name servers | race.py |
| requests of a connection that wait for a response | response_futures.py |
| time limits of a process that stands still at times | time_limit.py |
| TLS contexts and errors | tls.py |
| accounts: signed requests | signing.py |
| namespaces of tenants | namespaces.py |
| message traces | trace.py |
| asyncio or uvloop | event_loop.py |
"""
