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
| values of the user's as bodies, and back | codec.py, json_types.py, json_values.py |
| levels of delay | delay_levels.py |
| why a message is a dead letter | failure_story.py |
| fields of log records | log_fields.py |
| attributes of other clients' messages, and what to write instead | foreign_attributes.py |
"""
