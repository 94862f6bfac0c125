"""Messages, queues and subscriptions: what the other rooms talk about.

| question | file |
|---|---|
| what is sent, what a listener reads | message.py |
| the unit of order | message_queue.py |
| tag expressions | subscription.py |
| result codes of consuming and sending | status.py |
| property names and their text form | properties.py |
| legal topic and group names | names.py |
| ids of messages and clients | identifiers.py |
| Java's hashes | hashing.py |
| the stored record, read | stored_message.py |
"""
