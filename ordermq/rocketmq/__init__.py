"""The names of two older Python clients, on ordermq's engine.

Change `from rocketmq.client import ...` to `from ordermq.rocketmq.client import ...` and a program
for `rocketmq-client-python` 2.0.0 or `rocketmq` 0.4.4 runs. These are adapters: they translate
arguments, answers and errors, and decide nothing. docs/migrating.md lists what differs.

    v5/                 the names of a third client, rocketmq-python-client 5.x, over gRPC
    client.py           every public name; what programs import
    consts.py           names of message properties
    exceptions.py       the old exceptions, and how ours become them
    ffi.py              what outlived the C library
    message.py          Message, ReceivedMessage
    status.py           answers and outcomes, by number
    client_settings.py  what every client is told before it starts
    name_server_domain.py   name server addresses from a web address
    sharding.py         which queue the old clients chose
    producer.py send_callbacks.py transaction_producer.py push_consumer.py pull_consumer.py
"""
