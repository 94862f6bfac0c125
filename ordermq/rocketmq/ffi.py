"""The old clients' interface to the C++ library: its enumeration; other names raise.

There is no `librocketmq` underneath, so its handles, structures and callback types have no
counterpart; asking for one says so instead of failing later.
"""

from __future__ import annotations

from typing import NoReturn

from ordermq.rocketmq.status import MessageModel

__all__ = ["MessageModel"]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"ordermq.rocketmq.ffi has no {name!r}: ordermq does not use librocketmq, so there are no "
        "C functions, handles or structures to reach; docs/migrating.md names what replaces them"
    )
