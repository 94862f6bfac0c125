cdef enum:
    ID_PREFIX_DIGITS = 28  # as in core/status.py
    ID_DIGITS = 32


@cython.final
cdef class UniqueIds:
    """Makes the unique ids of one process's messages; see core/contract/."""

    cdef object _prefix_of
    # Guarded by the GIL, and without one by the critical section of this object.
    cdef uint64_t _number
    cdef int64_t _newest_ms  # the time of the prefix, -1 before the first
    cdef char _prefix[ID_PREFIX_DIGITS]

    def __cinit__(self, prefix_of, uint64_t number=0):
        self._prefix_of = prefix_of
        self._number = number
        self._newest_ms = -1

    def one(self, int64_t now_ms):
        return self._one(now_ms)

    def several(self, Py_ssize_t count, int64_t now_ms):
        cdef char digits[ID_DIGITS]
        cdef Py_ssize_t i
        cdef uint64_t first = self._begin(now_ms, count, digits)
        cdef list made = []
        for i in range(count):
            made.append(id_text(digits, first + <uint64_t>i))
        return made

    @cython.critical_section
    def forget(self):
        self._newest_ms = -1

    cdef str _one(self, int64_t now_ms):
        cdef char digits[ID_DIGITS]
        cdef uint64_t number = self._begin(now_ms, 1, digits)
        return id_text(digits, number)

    cdef uint64_t _begin(self, int64_t now_ms, Py_ssize_t count, char *digits) except? 0:
        # Take `count` numbers, return the first, and write the prefix to `digits`.
        cdef uint64_t first
        cdef const char *prefix
        cdef Py_ssize_t size
        cdef bint is_known
        with cython.critical_section(self):
            is_known = self._newest_ms == now_ms
            if is_known:
                memcpy(digits, self._prefix, ID_PREFIX_DIGITS)
        if not is_known:
            text = self._prefix_of(now_ms)
            prefix = PyUnicode_AsUTF8AndSize(text, &size)
            if size != ID_PREFIX_DIGITS or len(text) != ID_PREFIX_DIGITS:
                raise _status.not_an_id_prefix(text)
            memcpy(digits, prefix, ID_PREFIX_DIGITS)
        with cython.critical_section(self):
            if not is_known:
                memcpy(self._prefix, digits, ID_PREFIX_DIGITS)
                self._newest_ms = now_ms
            first = self._number
            self._number += <uint64_t>count
        return first


cdef str id_text(char *digits, uint64_t number):
    # Upper-case hexadecimal of the lower 16 bits, behind the prefix.
    cdef const char *hexadecimal = b"0123456789ABCDEF"
    digits[28] = hexadecimal[number >> 12 & 15]
    digits[29] = hexadecimal[number >> 8 & 15]
    digits[30] = hexadecimal[number >> 4 & 15]
    digits[31] = hexadecimal[number & 15]
    return PyUnicode_DecodeASCII(digits, ID_DIGITS, NULL)


cdef class PendingFields:
    """Fields of a message that waits for its receipt; see core/contract/."""

    cdef public object bodies
    cdef public object properties
    cdef public object unique_ids
    cdef public object flags
    cdef public object key
    cdef public object on_done
    cdef public object requirement
    cdef public object reply_header
    cdef public object awaited
    cdef public Py_ssize_t size
    cdef public int sys_flag
    cdef public int fallbacks_left
    cdef public bint is_alone
    cdef public bint is_watched
    cdef public bint is_timed
    cdef public bint wakes_only
    cdef public bint is_oneway
    cdef object _receipts
    cdef object _error
    cdef SendTimer _timer
    cdef int64_t _begun_ns
    cdef readonly int64_t spent_ns

    def __init__(self, bodies, properties, unique_ids, flags, size, key, is_alone, on_done):
        self.bodies = bodies
        self.properties = properties
        self.unique_ids = unique_ids
        self.flags = flags
        self.size = size
        self.key = key
        self.is_alone = is_alone
        self.on_done = on_done

    # In critical sections: one thread sets them while another looks whether they are set.
    @property
    def receipts(self):
        with cython.critical_section(self):
            return self._receipts

    @receipts.setter
    def receipts(self, value):
        with cython.critical_section(self):
            self._receipts = value

    @property
    def error(self):
        with cython.critical_section(self):
            return self._error

    @error.setter
    def error(self, value):
        with cython.critical_section(self):
            self._error = value

    def __len__(self):
        return len(self.bodies)

    @property
    def is_done(self):
        with cython.critical_section(self):
            return self._receipts is not None or self._error is not None

    def all_receipts(self):
        return self._done()

    def receipt(self):
        return self._done()[0]

    cdef object _done(self):
        with cython.critical_section(self):
            receipts, error = self._receipts, self._error
        if error is not None:
            raise error
        if receipts is None:
            raise _status.not_done()
        return receipts

    def begin_timing(self, SendTimer timer):
        self._timer = timer
        self._begun_ns = monotonic_ns()

    def finish(self, receipts, error):
        self._finish(receipts, error, True)

    cdef int _finish(self, object receipts, object error, bint wakes) except -1:
        # wakes: else `Arrivals` note the message, and the caller wakes their loop.
        with cython.critical_section(self):
            is_first = self._receipts is None and self._error is None
            if is_first:
                self._receipts, self._error = receipts, error
        if not is_first:
            return 0
        try:
            if self._begun_ns:
                self.spent_ns = monotonic_ns() - self._begun_ns
                if self._timer is not None:
                    self._timer._count(self.spent_ns, len(self.bodies), error)
        finally:
            self._notify(wakes)
        return 0

    cdef int _notify(self, bint wakes) except -1:
        try:
            if not wakes and type(self.on_done) is Arrivals:
                (<Arrivals>self.on_done)._done.append(self)
            else:
                self.on_done(self)
        except Exception:
            self.not_notified()
        return 0

    def not_notified(self):
        raise


@cython.final
cdef class Arrivals:
    """Messages that are done, for the event loop of their callers; see core/contract/."""

    cdef readonly object loop
    cdef object _new_future
    cdef object _unawaited
    cdef object _cancelled
    cdef object _cancelled_error
    cdef object _task_kind
    cdef object _given  # a future that is done, for tasks to look at
    cdef object _done  # a deque: each of its calls is one step for all threads
    cdef bint _is_woken  # read and changed in critical sections

    def __cinit__(self, loop, unawaited, cancelled):
        from asyncio import CancelledError, Task  # here: programs without a loop do not load it

        self.loop, self._unawaited, self._cancelled = loop, unawaited, cancelled
        self._cancelled_error, self._task_kind = CancelledError, Task
        self._new_future = loop.create_future
        self._done = _deque()

    def future_of(self, PendingFields message not None):
        cdef object receipt = self._new_future()
        message.awaited = receipt
        return receipt

    def receipt_of(self, PendingFields message not None):
        if self._given is None:
            self._given = self._new_future()
            self._given.set_result(None)
        cdef AwaitedReceipt receipt = AwaitedReceipt.__new__(AwaitedReceipt)
        receipt._arrivals, receipt._message = self, message
        message.awaited = receipt
        return receipt

    def __call__(self, PendingFields message not None):
        self._done.append(message)
        self._wake_once()

    cdef int _wake_once(self) except -1:
        cdef bint is_woken
        # Looked at last: if the loop has yet to clear it, it has yet to look for messages.
        with cython.critical_section(self):
            is_woken = self._is_woken
            self._is_woken = True
        if not is_woken:
            self._wake()
        return 0

    cdef int _wake(self) except -1:
        try:
            self.loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the callers' loop is closed by now: nobody waits
            self._rest()
            try:
                while self._done:
                    self._unawaited(self._done.popleft())
            except IndexError:  # another thread has taken the last one
                pass
        except BaseException:  # of a signal handler: the next message wakes the loop
            self._rest()
            raise
        return 0

    cdef int _rest(self) except -1:
        with cython.critical_section(self):
            self._is_woken = False
        return 0

    def _settle(self):
        cdef PendingFields message
        cdef object done = self._done
        cdef object popleft = done.popleft
        cdef Py_ssize_t left
        self._rest()
        # Not those that come meanwhile: they have woken the loop, which has others to call, too.
        left = len(done)
        try:
            while left > 0:
                left -= 1
                message = done[0]
                if type(message.awaited) is AwaitedReceipt:
                    popleft()  # first: its caller goes on in this call, and may raise
                    self._give(message)
                else:
                    self._set(message)
                    popleft()
        except BaseException:  # as above: the others must not wait for the next message
            with cython.critical_section(self):
                self._is_woken = True
            self._wake()
            raise

    cdef int _give(self, PendingFields message) except -1:
        cdef AwaitedReceipt receipt = message.awaited
        message.awaited = None  # each has the other: only the collector would free them
        if receipt._state == RECEIPT_AWAITED:
            receipt._give()
        else:  # its caller was cancelled; the message was sent all the same
            self._unawaited(message)
        return 0

    cdef int _set(self, PendingFields message) except -1:
        cdef object future = message.awaited
        cdef object error = message._error
        if future.done():  # as above
            self._unawaited(message)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(message._done()[0])
        return 0


cdef extern from "Python.h":
    ctypedef PyObject *(*iternextfunc)(PyObject *)
    ctypedef struct TypeSlots "PyTypeObject":
        iternextfunc tp_iternext
    int PyCFunction_Check(PyObject *)
    int PyExceptionInstance_Check(PyObject *)
    PyObject *PyCFunction_GetSelf(PyObject *)  # borrowed
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    void PyErr_SetObject(PyObject *, PyObject *)
    PyObject *PyExc_StopIteration


cdef enum:
    RECEIPT_AWAITED = 0
    RECEIPT_GIVEN = 1
    RECEIPT_CANCELLED = 2


@cython.final
@cython.internal
@cython.freelist(8)
cdef class AwaitedReceipt:
    """A receipt that one coroutine awaits; see core/contract/. To asyncio's tasks it is a future.

    `Arrivals` wakes the task itself, with all others of its turn of the loop. A future has the loop
    call each: making the call, and getting to it, takes as long as the task's own step.
    """

    cdef public object _asyncio_future_blocking  # by this name asyncio knows futures
    cdef Arrivals _arrivals
    cdef PendingFields _message
    cdef object _wakeup  # of the task that waits
    cdef object _context
    cdef object _cancellation
    cdef int _state

    def __cinit__(self):
        self._asyncio_future_blocking = False

    # For the coroutine.

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self._state == RECEIPT_AWAITED:
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def throw(self, kind, value=None, traceback=None):
        cdef object error = kind if value is None else value
        if not isinstance(error, BaseException):
            error = kind() if value is None else kind(value)
        if self._state == RECEIPT_AWAITED:
            self._state, self._cancellation = RECEIPT_CANCELLED, error
        if isinstance(error, self._arrivals._cancelled_error):
            self._arrivals._cancelled(error)
            if self._state == RECEIPT_GIVEN:  # in the same moment: nobody has logged anything
                self._arrivals._unawaited(self._message)
        raise error if traceback is None else error.with_traceback(traceback)

    # For its task.

    def get_loop(self):
        return self._arrivals.loop

    def add_done_callback(self, wakeup, *, context=None):
        if self._state != RECEIPT_AWAITED or self._wakeup is not None:
            raise RuntimeError("a receipt is awaited once")
        self._wakeup, self._context = wakeup, context

    def cancel(self, msg=None):
        cdef object kind = self._arrivals._cancelled_error
        if self._state != RECEIPT_AWAITED:
            return False
        self._state = RECEIPT_CANCELLED
        self._cancellation = kind() if msg is None else kind(msg)
        if self._wakeup is not None:
            self._arrivals.loop.call_soon(self._wakeup, self, context=self._context)
            self._wakeup = None
        return True

    def result(self):
        if self._cancellation is not None:
            raise self._cancellation
        return self._message._done()[0]

    cdef int _give(self) except -1:
        cdef object wakeup = self._wakeup
        cdef object context = self._context
        cdef object given = self
        cdef PyObject *woken = NULL
        self._state, self._wakeup = RECEIPT_GIVEN, None
        if wakeup is None:  # it is not awaited yet
            return 0
        # A task only looks whether what it gets has failed: of a future of asyncio it reads that
        # without a call, and the coroutine raises the error itself. Others get this receipt.
        if PyCFunction_Check(<PyObject *>wakeup):
            woken = PyCFunction_GetSelf(<PyObject *>wakeup)
        if woken is not NULL and type(<object>woken) is self._arrivals._task_kind:
            given = self._arrivals._given
        PyContext_Enter(context)
        try:
            wakeup(given)
        finally:
            PyContext_Exit(context)
        return 0

    cdef PyObject *_stored(self) noexcept:
        # Its receipt, borrowed, if it is there and is simple to give; else NULL.
        cdef PyObject *receipts
        cdef PyObject *receipt
        if self._state != RECEIPT_GIVEN or self._message._error is not None:
            return NULL
        receipts = <PyObject *>self._message._receipts
        if not PyTuple_CheckExact(<object>receipts) or PyTuple_GET_SIZE(<object>receipts) != 1:
            return NULL
        receipt = PyTuple_GET_ITEM(<object>receipts, 0)
        # StopIteration would take the first element of a tuple, and take an exception for itself.
        if PyTuple_Check(<object>receipt) or PyExceptionInstance_Check(receipt):
            return NULL
        return receipt


cdef iternextfunc raising_next = (<TypeSlots *>AwaitedReceipt).tp_iternext


cdef PyObject *next_of_receipt(PyObject *awaited) noexcept:
    # In place of __next__: for an exception that Cython raises it makes a traceback with a frame,
    # which takes as long as the rest of the wait, and a StopIteration that nobody looks at.
    cdef PyObject *receipt = (<AwaitedReceipt>awaited)._stored()
    if receipt is NULL:
        return raising_next(awaited)
    PyErr_SetObject(PyExc_StopIteration, receipt)
    return NULL


(<TypeSlots *>AwaitedReceipt).tp_iternext = next_of_receipt


@cython.final
cdef class PlainSends:
    """Makes the pending messages of plain sends; see core/contract/."""

    cdef UniqueIds _ids
    cdef str _after
    cdef type _kind

    def __cinit__(self, UniqueIds ids not None, str after not None, type kind not None):
        if not issubclass(kind, PendingFields):
            raise TypeError(f"PlainSends: {kind.__name__} is no subclass of PendingFields")
        self._ids, self._after, self._kind = ids, after, kind

    def pending(self, body, str before not None, flag, key, on_done, int64_t now_ms):
        cdef PendingFields made = <PendingFields>bare_instance(self._kind, ())
        cdef str unique_id = self._ids._one(now_ms)
        cdef str text = before + unique_id + self._after
        made.size = len(body) + len(text)
        made.bodies = (body if type(body) is bytes else bytes(body),)
        made.properties = (text,)
        made.unique_ids = (unique_id,)
        made.flags = (flag,)
        made.key = key
        made.on_done = on_done
        return made


def finish_stored(batch not None, receipts not None):
    cdef PendingFields message
    cdef Arrivals arrivals = None
    cdef Arrivals others
    cdef object its_receipts
    try:
        for message, its_receipts in zip(batch, receipts, strict=True):
            if type(message.on_done) is Arrivals:
                others = message.on_done
                if arrivals is not None and others is not arrivals:
                    arrivals._wake_once()
                arrivals = others
            message._finish(its_receipts, None, False)
    finally:
        if arrivals is not None:
            arrivals._wake_once()


def take_batch(waiting not None, Py_ssize_t max_bytes, list taken not None):
    # The first one even if it is too big by itself.
    cdef PendingFields first = waiting.popleft()
    cdef PendingFields message
    taken.append(first)
    cdef Py_ssize_t size = first.size
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i
    if first.is_alone:
        return taken
    for message in waiting:
        size += message.size
        if message.is_alone or size > max_bytes:
            break
        count += 1
    popleft = waiting.popleft
    for i in range(count):
        taken.append(popleft())
    return taken


def gathered(batch not None):
    cdef PendingFields message
    cdef list bodies = []
    cdef list properties = []
    cdef list flags = []
    for message in batch:
        add_each(bodies, message.bodies)
        add_each(properties, message.properties)
        add_each(flags, message.flags)
    return bodies, properties, flags


cdef inline int add_each(list found, object values) except -1:
    # A tuple of one for a message of its own; a list for a `send_batch`.
    if PyTuple_CheckExact(values) and PyTuple_GET_SIZE(values) == 1:
        found.append(<object>PyTuple_GET_ITEM(values, 0))
    else:
        found.extend(values)
    return 0


def receipts_of(
    batch not None, str message_ids not None, one, several, queue, int64_t queue_offset, status,
    recall_handle,
):
    cdef PendingFields message
    cdef list offset_ids = message_ids.split(",")
    cdef list found = []
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size
    for message in batch:
        count += len(message.bodies)
    if len(offset_ids) != count:
        return None
    for message in batch:
        ids = message.unique_ids
        size = len(ids)
        if size == 1:  # no object that makes it when it is read
            found.append((
                one(queue, queue_offset + at, ids[0], offset_ids[at], status, recall_handle),
            ))
        else:
            found.append(several(
                queue, queue_offset + at, ids, offset_ids[at:at + size], status, recall_handle
            ))
        at += size
    return found
