"""What the broker does for each request code, a file per subject.

| requests | file |
|---|---|
| 10, 310, 320: sending | send.py |
| 37: how a transaction ends | transactions.py |
| 36: a message a consumer gives back | send_back.py |
| 370: taking a timed message back | recall.py |
| 11, 361: pulling, 33: one message by id | pull.py |
| 14, 15, 29-32: offsets | offsets.py |
| 41, 42: queue locks | locks.py |
| 34, 35, 38, 46, 400: clients and groups | clients.py |
| 105, 106, 206, 17, 21, 215, 216, 351: routes and topics | topics.py |
| 28, 200-203, 207, 208, 352: what admin tools ask | admin.py |
| 222: moving a group to another offset | resets.py |
| 12: finding messages by key | search.py |
| 324, 325: replies to requests | reply.py |
| 307, 309: what a member is asked through the broker | relay.py |

Each names its handlers in `HANDLERS`.
"""
