"""Errors as Spark shows them: the text first, and not a traceback of Spark's files.

Spark writes Python's whole traceback into the message of its own exception, 8 to 41 lines, and the
text, which says what to do, comes last.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from ordermq.errors import FunctionFailed, OrderMQError

_log = logging.getLogger("ordermq.spark")


@contextlib.contextmanager
def text_first() -> Iterator[None]:
    """Let Spark show only the text of an ordermq error that leaves this block.

    For code that Spark calls in a process of its own, which ends with the error. The traceback
    goes to the log, at level DEBUG. That of a user's function stays.
    """
    try:
        yield
    except FunctionFailed:
        raise  # its traceback has the line of the user's function
    except OrderMQError:
        _log.debug("error shown by Spark", exc_info=True)
        # PySpark looks for it when it writes the error, in this process.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
