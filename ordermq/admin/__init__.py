"""Administration of a cluster: topics, groups, offsets, dead letters, parked keys.

| subject | file |
|---|---|
| the public class, `ordermq.Admin` | admin.py |
| topics: list, create, describe, delete, peek | topics.py |
| groups: list, progress, members, locks | groups.py |
| moving a group to other offsets | reset.py |
| dead letters, and sending them again | dead_letters.py handled_letters.py |
| parked keys, and going on with them | parked.py |
| messages by key, id, offset or time, and their state in each group | message_search.py |
| connecting step by step, to find what is wrong | check.py |
| what is wrong with a cluster or a group | doctor.py |
"""
