cdef enum:
    NAME_SLOTS = 256
    LONGEST_KEPT_NAME = 64
    LAYOUT_SLOTS = 32
    LAYOUT_ENTRIES = 16
    LAYOUT_BYTES = 1024
    MISSES_PER_LAYOUT = 16
    ENTRY_END = 2  # the byte behind an entry of a property text


# Names of properties that were read lately: they are the same in message after message, and one that
# is made anew costs its memory and its hash. The GIL guards it.
cdef list _names = [None] * NAME_SLOTS


cdef object property_name(const omq.omq_text *name):
    """Return the name of a property as a str."""
    cdef const uint8_t *bytes_ = name.bytes
    cdef size_t size = name.size
    cdef const char *text = <const char *>bytes_
    if IS_FREE_THREADED or size > LONGEST_KEPT_NAME:
        return PyUnicode_DecodeUTF8(text, size, NULL)
    cdef size_t slot = (
        size + 31 * bytes_[0] + 7 * bytes_[size // 2] + 13 * bytes_[size - 1]
    ) % NAME_SLOTS
    cdef object known = _names[slot]
    cdef Py_ssize_t known_size
    cdef const char *known_text
    if known is not None:
        known_text = PyUnicode_AsUTF8AndSize(known, &known_size)
        if <size_t>known_size == size and memcmp(known_text, text, size) == 0:
            return known
    known = PyUnicode_DecodeUTF8(text, size, NULL)
    _names[slot] = known
    return known


ctypedef struct entry_place:
    # Where a property lies in its text; its name ends before the byte in front of the value.
    uint16_t name
    uint16_t value
    uint16_t end


cdef size_t same_until(
    const uint8_t *one, const uint8_t *other, size_t at, size_t size
) noexcept nogil:
    """Return where from `at` on two texts differ first; `size` if they do not."""
    cdef uint64_t word
    cdef uint64_t other_word
    while size - at >= sizeof(word):
        memcpy(&word, one + at, sizeof(word))
        memcpy(&other_word, other + at, sizeof(word))
        if word != other_word:
            break
        at += sizeof(word)
    while at < size and one[at] == other[at]:
        at += 1
    return at


@cython.final
@cython.no_gc
cdef class _PropertyLayout:
    """The properties of a message that was read lately, and where they lie in its text.

    Messages of one producer have the same names at the same places, and most values, too. What is
    the same is taken from here: it is neither searched, nor checked to be UTF-8, nor made again.
    """

    cdef bytes text
    cdef const uint8_t *_bytes  # of `text`
    cdef size_t size
    cdef size_t count
    cdef entry_place[LAYOUT_ENTRIES] places
    cdef list names
    cdef list values
    cdef dict properties  # copied, never handed out: it is the reader's to change

    cdef int64_t differing(self, const uint8_t *text) noexcept:
        """Return a bit for each value that another text of the same size has instead.

        -1: its names lie elsewhere, or a value is not UTF-8.
        """
        cdef int64_t found = 0
        cdef size_t entry = 0
        cdef size_t at = 0
        cdef const entry_place *place
        while True:
            at = same_until(text, self._bytes, at, self.size)
            if at == self.size:
                return found
            while entry < self.count and self.places[entry].end <= at:
                entry += 1
            if entry == self.count or at < self.places[entry].value:
                return -1
            place = &self.places[entry]
            if memchr(text + at, ENTRY_END, place.end - at) is not NULL:
                return -1
            if not omq.omq_is_utf8(text + place.value, place.end - place.value):
                return -1
            found |= <int64_t>1 << entry
            at = place.end

    cdef Py_ssize_t entry_of(self, const char *name, size_t size) noexcept:
        """Return the number of the property of this name; -1 if there is none."""
        cdef size_t entry
        cdef const entry_place *place
        for entry in range(self.count):
            place = &self.places[entry]
            # The byte in front of the value is no part of the name.
            if <size_t>(place.value - place.name) == size + 1 and memcmp(
                self._bytes + place.name, name, size
            ) == 0:
                return entry
        return -1

    cdef object value(self, const uint8_t *text, uint32_t differing, size_t entry):
        """Return a value of the text that differs so."""
        cdef const entry_place *place = &self.places[entry]
        if not differing >> entry & 1:
            return self.values[<Py_ssize_t>entry]
        return PyUnicode_DecodeUTF8(
            <const char *>text + place.value, place.end - place.value, NULL
        )

    cdef dict all_of(self, const uint8_t *text, uint32_t differing):
        """Return all properties of the text that differs so."""
        cdef dict found = self.properties.copy()
        cdef size_t entry
        for entry in range(self.count):
            if differing >> entry & 1:
                found[self.names[<Py_ssize_t>entry]] = self.value(text, differing, entry)
        return found


# By the size of the text: one producer's differ in few sizes. The GIL guards both.
cdef list _layouts = [None] * LAYOUT_SLOTS
cdef uint32_t[LAYOUT_SLOTS] _layout_misses


cdef _PropertyLayout layout_of(const uint8_t *text, size_t size, uint32_t *differing):
    """Return a layout that the text has, and write which values differ; None if none is known."""
    cdef _PropertyLayout known
    cdef int64_t found
    cdef size_t slot = size % LAYOUT_SLOTS
    if IS_FREE_THREADED or size > LAYOUT_BYTES:
        return None
    known = _layouts[slot]
    if known is not None and known.size == size:
        found = known.differing(text)
        if found >= 0:
            differing[0] = <uint32_t>found
            return known
    # Not each time: making one costs as much as reading several messages, and where every message
    # differs, none is of use.
    _layout_misses[slot] += 1
    if _layout_misses[slot] % MISSES_PER_LAYOUT != 1:
        return None
    known = new_layout(text, size)
    if known is not None:
        differing[0] = 0
        _layouts[slot] = known
    return known


cdef _PropertyLayout new_layout(const uint8_t *text, size_t size):
    """Return the layout of a text; None if something in it is no property, or occurs twice."""
    cdef _PropertyLayout made
    cdef omq.omq_property found
    cdef entry_place *place
    cdef size_t at = 0
    cdef size_t expected = 0
    if not omq.omq_is_utf8(text, size):
        return None
    made = _PropertyLayout.__new__(_PropertyLayout)
    made.text = PyBytes_FromStringAndSize(<const char *>text, size)
    made._bytes = <const uint8_t *>PyBytes_AS_STRING(made.text)
    made.size = size
    made.names, made.values, made.properties = [], [], {}
    while omq.omq_property_next(text, size, &at, &found):
        if made.count == LAYOUT_ENTRIES or found.name.bytes != text + expected:
            return None
        place = &made.places[made.count]
        place.name = <uint16_t>expected
        place.value = <uint16_t>(found.value.bytes - text)
        place.end = <uint16_t>(place.value + found.value.size)
        made.count += 1
        name = property_name(&found.name)
        value = PyUnicode_DecodeUTF8(<const char *>found.value.bytes, found.value.size, NULL)
        made.names.append(name)
        made.values.append(value)
        made.properties[name] = value
        expected = at
    if expected < size or len(made.properties) != <Py_ssize_t>made.count:
        return None
    return made
