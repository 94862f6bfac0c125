"""The wire: RocketMQ's remoting protocol as pure functions on bytes, and one connection class.

| question | file |
|---|---|
| numbers of requests, answers, languages | codes.py |
| one request or answer | command.py |
| its header as bytes, JSON and binary | header_codec.py |
| splitting a stream into commands | framing.py |
| what each request carries | headers.py (fields), bodies.py (JSON) |
| names of a tenant's own | namespaces.py |
| an open connection and its pending requests | connection.py |
"""
