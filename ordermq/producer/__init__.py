"""Sending in order.

Every message takes one path: producer -> accumulator -> queue sender -> send protocol.

| subject | file |
|---|---|
| the public class, all ways to send | producer.py |
| the same for asyncio | async_producer.py |
| transactions, and the brokers' questions about them | transactions.py |
| local transactions whose callers were cancelled | thread_execution.py |
| requests that wait for replies, and the replies | request_reply.py |
| hooks around a send, checks | hooks.py |
| arguments of a send, and the error that shows a right call | send_arguments.py |
| durations of sends, for metrics | send_times.py |
| traces of sends | trace_sends.py |
| messages in call order, until their queue's sender | accumulator.py |
| queue of a message: selectors, routing, slow brokers | queue_selector.py |
| a message waiting for its receipt, its caller, batches | pending_message.py |
| one request in flight per queue, all queues' senders, failed keys, retries | queue_sender.py |
| decisions after a failed attempt | retry_policy.py |
| requests on the wire, receipts, compression | send_protocol.py |
"""
