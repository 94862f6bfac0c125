# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, autotestdict=False, auto_pickle=False, freethreading_compatible=True
# As methods of C, with their signatures in their docstrings: they are called in less time than
# functions of Cython's own kind, and a tenth less has to be compiled. So a default is a literal.
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The C core bound for CPython. Contracts: ordermq/core/contract/.

Every call holds the GIL, except long calls on columns: releasing it costs as much as a small call.
Waiting for a mutex of the core with the GIL held cannot deadlock, for no holder needs the GIL; the
thread of the pull engine does where it speaks TLS, so whoever waits for it releases the GIL.

Python objects beside a C object, and C objects without a mutex, are guarded by the GIL and, on an
interpreter without one, by the critical section of their owner, which is nothing elsewhere. Both
let others in only where Python code runs, so one argument serves for both. What an object is made
from is not guarded: one thread makes it, and others see it afterwards. docs/versions.md says what
has been tested.
"""

cimport cython
from cpython.array cimport array, clone
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.memoryview cimport (
    PyMemoryView_FromMemory, PyMemoryView_FromObject, PyMemoryView_GET_BUFFER,
)
from cpython.pystate cimport PyGILState_Ensure, PyGILState_Release, PyGILState_STATE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cpython.sequence cimport PySequence_Fast_GET_ITEM, PySequence_Fast_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.type cimport PyType_Check, PyType_IsSubtype
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.errno cimport ECONNABORTED, ENOMEM
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, UINT32_MAX, UINT64_MAX, int32_t, int64_t, uint8_t,
    uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset, strchr, strlen
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.types cimport clockid_t

cimport libordermq as omq

from array import array as _array
from collections import deque as _deque
from itertools import chain as _chain
from os import strerror as _strerror
from os import urandom as _urandom
from sys import is_finalizing
from threading import current_thread as _current_thread, main_thread as _main_thread
from types import NoneType

from ordermq import errors as _errors
from ordermq.core import compression as _compression
from ordermq.core import status as _status

# One module of several parts: cdef classes see each other's C fields without a .pxd of their own.
include "arguments.pyx"
include "offset_map.pyx"
include "pull_declarations.pyx"
include "property_layout.pyx"
include "message_codec.pyx"
include "id_window.pyx"
include "durations.pyx"
include "pending_message.pyx"
include "message_writer.pyx"
include "frame_codec.pyx"
include "proxy_message.pyx"
include "request_template.pyx"
include "tls_records.pyx"
include "frame_stream.pyx"
include "send_run.pyx"
include "process_queue.pyx"
include "lane_map.pyx"
include "answer_queue.pyx"
include "assigned_queue.pyx"
include "poll_line.pyx"
include "pull_engine.pyx"
include "lock_table.pyx"
include "event_lines.pyx"
include "consume_loop.pyx"
include "call_times.pyx"
include "hooked_listener.pyx"
include "trace_records.pyx"
