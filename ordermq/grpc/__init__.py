"""gRPC as RocketMQ 5's proxy speaks it: messages, their encoding, and calls over HTTP/2
(docs/internals/protocol.md#grpc).

| what | file |
|---|---|
| the encoding of protocol buffers | protobuf.py |
| the messages of `apache.rocketmq.v2` | messages.py |
| frames, streams and flow control of HTTP/2 | http2.py |
| connections and calls | connection.py |
| metadata of a call: client, account | metadata.py |
"""
