"""Sending in order.

| question | file |
|---|---|
| what a user creates | producer.py |
| halves of transactions, and answering brokers that ask | transactions.py |
| requests that wait for replies, and replies | asking.py, requests.py, replies.py |
| which brokers have heard of us | introductions.py |
| what runs around a send, traces among it | hooks.py |
| which queue a key goes to | selectors.py |
| which queue a message goes to | targets.py |
| which brokers are slow or away | faults.py |
| a message on its way, and batches of them | entry.py |
| where messages come in, and in what order | intake.py |
| how a caller waits, and is woken | window.py, bell.py |
| one request of a queue at a time, failed keys | lanes.py |
| a batch on its way, try after try | sending.py |
| what to do after a failed try | send_retry.py |
| requests to a queue's broker, and what its answers say | destination.py |
"""
