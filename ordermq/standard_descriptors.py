"""The descriptors 0 to 2, which belong to the standard streams and to nothing else."""

from __future__ import annotations

import errno
import os

_STANDARD = range(3)


def fill_standard_descriptors() -> None:
    """Open the null device where the standard input, output or error is closed.

    A socket would take the number. Then what code in C writes to the standard error goes to a
    broker, and uvloop ends the process as it closes the socket.
    """
    while not all(map(_is_open, _STANDARD)):
        opened = os.open(os.devnull, os.O_RDWR)  # the smallest number that is free
        if opened in _STANDARD:
            os.set_inheritable(opened, True)
        else:  # another thread has opened a file meanwhile
            os.close(opened)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise  # of a signal handler: a TimeoutError is an OSError, too
        return False
    return True
