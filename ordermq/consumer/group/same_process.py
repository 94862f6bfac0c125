"""Members of one group in one process, as a notebook has them whose cell has run twice."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

# Name servers; the group with its namespace; the client id without its unique part: members that
# got an `instance_name` each are meant. A tuple, as a class takes longer to define at each import.
MemberPlace = tuple[frozenset[str], str, str]

# Their topics. Without a lock, which a forked child could find taken for ever: each step is one
# operation of a dict.
_members: Final[dict[tuple[MemberPlace, str], frozenset[str]]] = {}
os.register_at_fork(after_in_child=_members.clear)  # they are the parent's


def place_of(name_servers: Collection[str], group: str, client_id: str) -> MemberPlace:
    """Return the place of a member."""
    return frozenset(name_servers), group, client_id.partition("#")[0]


def note_member(place: MemberPlace, client_id: str, topics: Collection[str]) -> list[str]:
    """Note a member and its topics; return the client ids of others with one of these."""
    _members[place, client_id] = frozenset(topics)
    return [
        other
        for (there, other), theirs in list(_members.items())
        if there == place and other != client_id and theirs.intersection(topics)
    ]


def forget_member(place: MemberPlace, client_id: str) -> None:
    """Note that a member has left; one that was not noted is none."""
    _members.pop((place, client_id), None)
