"""Queue locks as their holder sees them: leases, the requests that keep them, and their epochs.

A consumer (`ordermq/consumer/group/queue_locks.py`) and the driver of a Spark query
(`ordermq/spark/source/driver_locks.py`) stand on this room: what they do about a lost lock differs,
how a lock is asked for, timed and told apart does not.

| question | file |
|---|---|
| how long a grant is trusted, and when it is renewed | lease.py |
| lock and unlock requests, one at a time per broker | lock_requests.py |
| epochs where a broker has none | lock_epochs.py |
"""
