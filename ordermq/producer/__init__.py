"""Sending in order.

| question | file |
|---|---|
| what a user creates | producer.py |
| halves of transactions, and answering brokers that ask | transactions.py |
| what runs around a send, traces among it | hooks.py |
| which queue a key goes to | selectors.py |
| which queue a message goes to | targets.py |
| which brokers are slow or away | faults.py |
| one request of a queue at a time, batches, failed keys | lanes.py |
| what to do after a failed try | send_retry.py |
"""
