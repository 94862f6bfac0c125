cdef extern from *:
    """
    /* Read an exact int of one or two digits and no sign, as nearly all are, without a call:
     * PyLong_AsLongLong was a fifth of a put of objects. Python 3.12 made the layout private, and
     * offers the same for one digit, with its sign: what is unsigned here must not be negative. */
    static CYTHON_INLINE int omq_is_plain_int(PyObject *value, int64_t *result) {
        if (!PyLong_CheckExact(value)) {
            return 0;
        }
    #if !defined(CPYTHON) && defined(PYPY_VERSION)
        return 0;
    #elif PY_VERSION_HEX >= 0x030C0000
        if (!PyUnstable_Long_IsCompact((PyLongObject *)value)) {
            return 0;
        }
        *result = PyUnstable_Long_CompactValue((PyLongObject *)value);
        return *result >= 0;
    #else
        const digit *digits = ((PyLongObject *)value)->ob_digit;
        Py_ssize_t size = Py_SIZE(value);
        if (size == 1) {
            *result = digits[0];
        } else if (size == 2) {
            *result = (int64_t)digits[0] | (int64_t)digits[1] << PyLong_SHIFT;
        } else {
            *result = 0;
        }
        return size >= 0 && size <= 2;
    #endif
    }
    """
    bint omq_is_plain_int(object value, int64_t *result)


cdef extern from "Python.h":
    PyObject **PySequence_Fast_ITEMS(object sequence)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    unsigned long PyThread_get_thread_ident()


cdef uint64_t random_seed() except? 0:
    """Return a seed of the system's: a sender must not guess it and choose keys that collide."""
    return int.from_bytes(_urandom(8), "little")


cdef extern from *:
    """
    /* Make kind.__new__(kind, *arguments) without looking __new__ up, per message of a batch. */
    static PyObject *omq_bare_instance(PyTypeObject *kind, PyObject *arguments) {
        return kind->tp_new(kind, arguments, NULL);
    }
    """
    object bare_instance "omq_bare_instance"(type kind, tuple arguments)


cdef extern from *:
    """
    /* A flag that any thread may set, and that stays set. On the usual build, plain memory. */
    static CYTHON_INLINE int omq_flag(const int *flag) {
        return __atomic_load_n(flag, __ATOMIC_RELAXED);
    }
    static CYTHON_INLINE void omq_set_flag(int *flag) {
        __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
    }
    /* Is there no GIL on this build? A constant: the other way is not compiled. */
    #ifdef Py_GIL_DISABLED
    #define OMQ_IS_FREE_THREADED 1
    #else
    #define OMQ_IS_FREE_THREADED 0
    #endif
    """
    bint omq_flag(const int *flag)
    void omq_set_flag(int *flag)
    bint IS_FREE_THREADED "OMQ_IS_FREE_THREADED"


cdef enum:
    GIL_RELEASE_MIN = 4096  # messages: some 10 us of work against the 30 ns of a release
    SMALL = 64  # messages or queues that a call keeps on the stack


cdef object failure(object status, str what):
    """Return the error of a status of C."""
    return _status.failure(status, what)


cdef inline int64_t clamped(object value) except? -1:
    """Return an int as int64, or the nearest int64, which is never a valid offset."""
    cdef int overflow
    cdef int64_t result
    if omq_is_plain_int(value, &result):
        return result
    result = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return INT64_MAX if overflow > 0 else INT64_MIN
    return result


cdef inline bint is_token(object value, uint64_t *token) except -1:
    """Write an int as uint64; False if it does not fit."""
    cdef int64_t plain
    if omq_is_plain_int(value, &plain):
        token[0] = <uint64_t>plain
        return True
    try:
        token[0] = value
    except OverflowError:
        return False
    return True


cdef inline uint64_t epoch_of(object epoch) except? 0:
    """Return an int as an epoch; UINT64_MAX, which no lock has, if it is none."""
    cdef uint64_t known
    return known if is_token(epoch, &known) else UINT64_MAX


cdef size_t at_least_one(object n, object owner, str operation) except 0:
    cdef int64_t limit = clamped(n)
    if limit < 1:
        raise failure(_status.OUT_OF_RANGE, f"{owner}: {operation} of {n}")
    return <size_t>limit


cdef void *allocate(size_t count, size_t size) except NULL:
    # Never 0 bytes: NULL would then not mean that memory is short.
    cdef void *memory = PyMem_Malloc(count * size if count else 1)
    if memory is NULL:
        raise MemoryError()
    return memory


cdef array copied_offsets(object offsets):
    """Copy any iterable of ints into an array of int64, clamped."""
    cdef tuple wanted = tuple(offsets)
    cdef array column = clone(_INT64, len(wanted), zero=False)
    cdef Py_ssize_t i
    for i in range(len(wanted)):
        column.data.as_longlongs[i] = clamped(wanted[i])
    return column


cdef int get_column(
    object column, Py_buffer *view, const char *formats, Py_ssize_t itemsize, str what
) except -1:
    """Fill `view`, which the caller releases, or raise TypeError and leave it unfilled."""
    try:
        PyObject_GetBuffer(column, view, PyBUF_FORMAT | PyBUF_ND)
    except BufferError as error:
        raise TypeError(f"{what}: expected a contiguous buffer") from error
    cdef char format = view.format[0] if view.format is not NULL else b"B"
    # One character: "q" and "l" are the same int64 on Linux, and NumPy gives "l".
    cdef bint is_right = view.ndim == 1 and view.itemsize == itemsize and format != 0
    if is_right and strchr(formats, format) is not NULL and view.format[1] == 0:
        return 0
    text = (
        f"{what}: expected a contiguous buffer of {itemsize}-byte integers "
        f"({'/'.join(formats.decode())}), got format {view.format.decode()!r}, "
        f"{view.itemsize} bytes an item"
    )
    PyBuffer_Release(view)
    raise TypeError(text)


cdef array _INT64 = _array("q")
cdef array _UINT64 = _array("Q")
cdef array _BYTES = _array("B")
