"""Consuming: who owns which queue, what is pulled, who calls the listener, what is committed.

| question | file |
|---|---|
| what a user creates | push_consumer.py, lite_pull_consumer.py, pull_consumer.py |
| what a listener is given and may answer | listener.py |
| one assigned queue: lease, state, process queue | assigned_queue.py |
| a started consumer: the parts, and what happens between them | member.py, member_settings.py |
| what is subscribed | subscribing.py |
| which queues are mine | rebalance.py, strategies.py |
| pausing, releasing, seeking | steered.py, steering.py |
| taking, renewing, losing locks | locks.py |
| giving a queue up: drain, commit, unlock | hand_off.py |
| where to start, what is committed when | offsets.py |
| offsets of a broadcasting member, in a file | local_offsets.py |
| fetching messages | pull.py, pull_streak.py, pullers.py; one pull by itself: single_pull.py |
| calling the listener, one batch a queue at a time | orderly.py, worker_pool.py |
| calling the listener, keys of a queue beside each other | lanes.py, lane_queue.py |
| calling the listener, many batches of a queue at once | concurrently.py, unlocked.py |
| hooks and filters around listeners, traces | hooks.py, trace.py |
| what admin tools ask through the broker | answers.py, inquiries.py, lite_inquiries.py |
| a message an admin tool has consumed directly | direct.py |
| listeners that do not return | watchdog.py, stacks.py |
| messages that fail again and again | retry.py; keys parked in a topic: parking.py |
| a lite pull consumer: its parts; its queues | lite_member.py, shares.py |
| what it pulls, holds and hands out | fetcher.py, poll_buffer.py, polled_batch.py |
| what it commits; how it comes back to a broker | lite_offsets.py, group_offsets.py, rejoining.py |
| what is counted, what is recorded | statistics.py, rates.py, group_history.py |

Those of a push consumer meet in `AssignedQueue`, those of a lite pull consumer in `PollBuffer`,
and nowhere else. Decisions are pure functions beside
their drivers; drivers run on the I/O thread, listeners on the worker pool.
"""
