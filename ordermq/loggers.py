"""The loggers of ordermq: an error of a log handler never reaches the code that logs.

`logging` protects its own handlers only. A handler, filter or formatter of the user's that raises
would else end whatever wrote the line: a lock renewal, an answer, a close.
"""

from __future__ import annotations

import contextlib
import logging
import sys

LOGGERS = (
    "ordermq",
    "ordermq.broker",
    "ordermq.client",
    "ordermq.consumer",
    "ordermq.events",
    "ordermq.producer",
    "ordermq.remoting",
    "ordermq.rocketmq",
    "ordermq.run",
    "ordermq.spark",
)


class LogErrors:
    """The errors that log handlers have raised in this process."""

    count = 0


def guard(name: str) -> None:
    """Keep the errors of a logger's handlers and filters from those who log to it."""
    logger = logging.getLogger(name)
    handle = logger.handle

    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception as error:  # noqa: BLE001 - the user's; counted, and told once
            LogErrors.count += 1
            # Not by logging: that is what is broken. Nor may a closed stderr raise here.
            if LogErrors.count == 1:
                with contextlib.suppress(Exception):
                    sys.stderr.write(
                        f"ordermq: a log handler raised {error!r}; further errors of handlers are "
                        "counted in health().log_errors\n"
                    )

    # On the instance: the application may have loggers of a class of its own.
    logger.handle = guarded  # type: ignore[method-assign]


for _name in LOGGERS:
    guard(_name)
