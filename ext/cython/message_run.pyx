@cython.no_gc
cdef class MessageRun:
    """Neighbouring messages of one index, or of several; see core/interface."""

    # Most runs are of one index, and then there is no list.
    cdef MessageIndex _index
    cdef uint32_t _first
    cdef Py_ssize_t _length
    cdef list _segments  # (index, first, count); None if all is in the three above

    def __init__(self, segments):
        cdef list checked = []
        cdef Py_ssize_t length = 0
        cdef Py_ssize_t first
        cdef Py_ssize_t count
        for index, first, count in segments:
            if not isinstance(index, MessageIndex):
                raise TypeError(f"a segment of a {type(index).__name__}: expected a MessageIndex")
            if first < 0 or count < 1 or first + count > <Py_ssize_t>(<MessageIndex>index)._rows.count:
                raise IndexError(f"messages {first}..{first + count - 1} of {len(index)}")
            checked.append((index, first, count))
            length += count
        self._length = length
        if len(checked) == 1:
            self._index, self._first = checked[0][0], checked[0][1]
            self._segments = None
        else:
            self._index = None
            self._segments = checked

    def __len__(self):
        return self._length

    @property
    def segments(self):
        if self._index is not None:
            return [(self._index, self._first, self._length)]
        return self._segments if self._segments is not None else []

    @property
    def first_offset(self):
        return self._offset_at(0)

    @property
    def last_offset(self):
        return self._offset_at(self._length - 1)

    cdef object _offset_at(self, Py_ssize_t position):
        cdef size_t row
        cdef MessageIndex index = self._locate(position, &row)
        return omq.omq_message_offset(index._bytes(), &index._rows, row)

    cdef MessageIndex _locate(self, Py_ssize_t position, size_t *row):
        """Which index a message is of, and where there."""
        cdef Py_ssize_t left = position
        cdef Py_ssize_t count
        if 0 <= position < self._length:
            if self._index is not None:
                row[0] = self._first + position
                return self._index
            for segment in self._segments:
                count = (<tuple>segment)[2]
                if left < count:
                    row[0] = <Py_ssize_t>(<tuple>segment)[1] + left
                    return <MessageIndex>(<tuple>segment)[0]
                left -= count
        raise IndexError(f"message {position} of {self._length}")

    def offsets(self):
        return [
            index.offset_at(row)
            for index, first, count in self.segments
            for row in range(first, first + count)
        ]

    def cut(self, kind, Py_ssize_t size):
        if not (PyType_Check(kind) and issubclass(kind, MessageRun)):
            raise TypeError(f"cut: expected a class of MessageRuns, got {kind!r}")
        if size < 1:
            raise ValueError(f"cut: a size of {size}: expected 1 or more")
        cdef _Parts parts = _Parts.__new__(_Parts)
        parts._kind = kind
        parts._size = size
        if self._index is not None:
            parts._index = self._index
            parts._next = self._first
            parts._left = self._length
        else:
            parts._segments = self.segments
        return parts

    def views(self, type kind not None):
        if self._index is not None:
            return self._index.views(kind, self._first, self._length)
        return _chain.from_iterable(
            [index.views(kind, first, count) for index, first, count in self.segments]
        )

    def view(self, type kind not None, Py_ssize_t position):
        if not issubclass(kind, MessageView):
            raise TypeError(f"view: expected a class of MessageViews, got {kind.__name__}")
        cdef size_t row
        cdef MessageIndex index = self._locate(position, &row)
        cdef MessageView view = <MessageView>bare_instance(kind, ())
        view._index = index
        view._row = row
        return view


@cython.final
@cython.no_gc
cdef class _Parts:
    # An iterator of runs.
    cdef object _kind  # a class, perhaps with a metaclass
    cdef Py_ssize_t _size
    # What is left of the current segment; then the segments that follow.
    cdef MessageIndex _index
    cdef uint32_t _next
    cdef Py_ssize_t _left
    cdef list _segments
    cdef Py_ssize_t _segments_taken

    def __iter__(self):
        return self

    def __next__(self):
        if self._left < self._size and not self._is_last():
            return self._gathered()
        if self._left == 0:
            raise StopIteration
        cdef MessageRun run = <MessageRun>bare_instance(<type>self._kind, ())
        run._index = self._index
        run._first = self._next
        run._length = min(self._left, self._size)
        self._next += run._length
        self._left -= run._length
        return run

    cdef bint _is_last(self):
        return self._segments is None or self._segments_taken == len(self._segments)

    cdef object _gathered(self):
        """A run that may take more than what is left of the current segment."""
        cdef list segments = []
        cdef Py_ssize_t held = 0
        cdef Py_ssize_t taken
        while True:
            if self._left > 0:
                taken = min(self._left, self._size - held)
                segments.append((self._index, self._next, taken))
                self._next += taken
                self._left -= taken
                held += taken
            if held == self._size or self._is_last():
                break
            self._index, self._next, self._left = self._segments[self._segments_taken]
            self._segments_taken += 1
        if not segments:
            raise StopIteration
        cdef MessageRun run = <MessageRun>bare_instance(<type>self._kind, ())
        run._length = held
        if len(segments) == 1:
            run._index, run._first = segments[0][0], segments[0][1]
        else:
            run._segments = segments
        return run
