"""RocketMQ's remoting protocol: pure functions on bytes, and one class that does I/O.

| subject | file |
|---|---|
| codes of requests, responses and languages | codes.py |
| one request or response, as bytes and back: frames, JSON and binary headers | command.py |
| named fields of each request and response | headers.py, rare_headers.py |
| JSON bodies | bodies.py, admin_bodies.py |
| headers, handles and bodies of POP | pop.py |
| how a client writes its requests: namespace, signature, templates | framing.py |
| an open connection, also written by other threads | connection.py |
| who reads its socket, who writes it, an event to wait for together with it | reading.py, \
writing.py, thread_event.py |
| opening it, over TCP or TLS | connecting.py |
| opening sockets: host names, several addresses | dialer.py |
| attempts that start one after the other, for addresses and name servers | race.py |
| requests of a connection that wait for a response | response_futures.py |
| work of a loop that several callers wait for together | shared_tasks.py |
| time limits of a process that stands still at times | time_limit.py |
| TLS contexts and errors | tls.py |
| accounts: signed requests | signing.py |
| namespaces of tenants | namespaces.py |
| message traces | trace.py |
| asyncio or uvloop | event_loop.py |
"""
