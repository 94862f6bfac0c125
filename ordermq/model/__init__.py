"""Messages, queues, subscriptions and results: the data that all other packages exchange.

| subject | file |
|---|---|
| messages to send and received messages | message.py |
| message queues | message_queue.py |
| tag and SQL subscriptions | subscription.py |
| results of listeners, sends and transactions | status.py |
| receipts of sends | receipts.py |
| receipts of half messages | transaction_receipt.py |
| message properties and their encoding | properties.py |
| topic and group names | names.py |
| ids of messages and clients | identifiers.py |
| Java's hash codes | hashing.py |
| records as the broker stores them | stored_message.py |
| handles that recall timed messages | recall_handle.py |
| messages as Arrow columns | arrow.py |
"""
