import pytest
from stored_records import INNER_BATCH, columns, entry, record

JAVA_IPV6_ID = b"20010DB8" * 7  # 56 characters


def stored(offset, unique_id, body=None):
    """A record with this id, between two other properties; None: without one. Without a body of its
    own, its body is the id's."""
    named = b"" if unique_id is None else b"UNIQ_KEY\x01" + unique_id + b"\x02"
    properties = b"TAGS\x01a\x02" + named + b"WAIT\x01true\x02"
    body = unique_id or b"none" if body is None else body
    return record(offset=offset, body=body, properties=properties)


def index_of(core, *messages):
    return core.MessageIndex(b"".join(stored(offset, name) for offset, name in messages))


def kept(core, window, *messages):
    """The offsets that are left after noting these messages."""
    index = index_of(core, *messages)
    dropped = window.drop_copies(index)
    assert dropped == len(messages) - len(index)
    window._check()
    return index.columns("offsets")["offsets"].tolist()


def test_a_copy_is_left_out_and_what_is_left_reads_as_before(core):
    messages = [(10, b"A"), (11, b"B"), (12, b"A"), (13, None), (14, b"C"), (15, b"B")]
    index = index_of(core, *messages)
    window = core.IdWindow(100)
    assert (window.drop_copies(index), window.size) == (2, 100)
    alone = core.MessageIndex(b"".join(stored(*messages[i]) for i in (0, 1, 3, 4)))
    assert columns(index)[0] == [10, 11, 13, 14] == columns(alone)[0]
    views = list(index.views(core.MessageView, 0, 4))
    assert [bytes(view.body) for view in views] == [b"A", b"B", b"none", b"C"]
    assert [view.get_property("UNIQ_KEY") for view in views] == ["A", "B", None, "C"]
    assert [index.offset_at(row) for row in range(4)] == [10, 11, 13, 14]
    assert index.body_sizes.tolist() == alone.body_sizes.tolist()
    with pytest.raises(IndexError):
        index.offset_at(4)
    queue = core.ProcessQueue()
    assert queue.put_batch(index)
    assert (queue.message_count, queue.size_bytes) == (4, 7)
    assert [(first, count) for _, first, count in queue.take_segments(9)] == [(0, 4)]


@pytest.mark.parametrize("left_out", [(0,), (3,), (0, 1), (2, 3), (0, 3), (1,), (0, 1, 2, 3)])
def test_any_rows_may_be_left_out(core, left_out):
    window = core.IdWindow(100)
    kept(core, window, *[(row, b"%d" % row) for row in left_out])
    messages = [(10 + row, b"%d" % row) for row in range(4)]
    assert kept(core, window, *messages) == [10 + row for row in range(4) if row not in left_out]


def test_the_window_spans_so_many_offsets(core):
    window = core.IdWindow(3)
    assert kept(core, window, (0, b"A"), (3, b"A")) == [0]
    assert kept(core, window, (7, b"A")) == [7], "four offsets behind the copy"
    assert kept(core, window, (8, b"B"), (9, None), (10, b"A"), (13, b"A")) == [8, 9]
    assert len(window) == 1, "offsets without an id count, too"


def test_a_window_of_one_knows_the_message_before(core):
    window = core.IdWindow(1)
    assert kept(core, window, (0, b"A"), (1, b"A"), (2, b"B"), (3, b"A"), (4, b"A")) == [0, 2, 3]
    assert len(window) == 1


def test_what_was_noted_is_neither_noted_nor_dropped_again(core):
    window = core.IdWindow(100)
    messages = [(5, b"A"), (6, b"B")]
    assert kept(core, window, *messages) == [5, 6]
    assert kept(core, window, *messages, (7, b"A")) == [5, 6]
    assert len(window) == 3


def test_messages_from_the_end_on_wait_for_their_turn(core):
    window = core.IdWindow(100)
    messages = [(5, b"A"), (6, b"B"), (7, b"A"), (8, b"C")]
    index = index_of(core, *messages)
    assert window.drop_copies(index, 7) == 0
    assert (len(index), len(window)) == (4, 2)
    assert kept(core, window, *messages[2:]) == [8]
    assert window.drop_copies(index_of(core, (9, b"C")), 2**70) == 1


def test_a_cleared_window_knows_nothing(core):
    window = core.IdWindow(100)
    kept(core, window, *[(offset, b"%d" % offset) for offset in range(90)])
    window.clear()
    window._check()
    assert len(window) == 0
    assert kept(core, window, (3, b"1"), (4, b"2"), (5, b"1")) == [3, 4]


def test_ids_are_told_apart_to_the_byte(core):
    """Longer and shorter ones, as of IPv6 hosts, other clients, or a hand that wrote them."""
    names = [b"a", b"A", b"A" * 31, b"A" * 32, b"A" * 33, JAVA_IPV6_ID, JAVA_IPV6_ID[:-1] + b"9"]
    names += [b"\xff\x00", b"x" * 5_000]
    window = core.IdWindow(1_000)
    assert kept(core, window, *enumerate(names)) == list(range(len(names)))
    assert kept(core, window, *enumerate(names, start=100)) == []
    assert len(window) == 2 * len(names)


def test_one_id_of_other_bodies_is_no_copy(core):
    """Java keeps the id of a Message object that is sent again with another body."""
    window = core.IdWindow(100)
    bodies = [b"order 0", b"order 1", b"order 11", b"", b"order 1", b"order 0", b""]
    index = core.MessageIndex(b"".join(stored(at, b"same", body) for at, body in enumerate(bodies)))
    assert window.drop_copies(index) == 3
    window._check()
    assert index.columns("offsets")["offsets"].tolist() == [0, 1, 2, 3]
    assert len(window) == 7


def test_one_id_of_many_bodies_takes_no_longer_than_many_ids(native_core):
    window = native_core.IdWindow(200_000)
    for start in range(0, 100_000, 10_000):
        records = [stored(at, b"same", b"%d" % at) for at in range(start, start + 10_000)]
        assert window.drop_copies(native_core.MessageIndex(b"".join(records))) == 0
    window._check()


def test_one_id_for_every_message(core):
    window = core.IdWindow(50)
    assert kept(core, window, *[(offset, b"same") for offset in range(300)]) == [0]
    assert len(window) == 50


def test_a_window_slides_and_grows(native_core):
    window = native_core.IdWindow(1_000)
    for start in range(0, 5_000, 100):
        ids = [(offset, b"%d" % offset) for offset in range(start, start + 100)]
        assert kept(native_core, window, *ids) == list(range(start, start + 100))
        assert len(window) == min(start + 100, 1_000)
    late = [(5_000 + at, b"%d" % (4_001 + 2 * at)) for at in range(100)]
    assert kept(native_core, window, *late) == []


def test_messages_of_an_inner_batch_have_ids_of_their_own(core):
    entries = [entry(b"%d" % (at % 3), b"UNIQ_KEY\x01%d\x02" % (at % 3)) for at in range(5)]
    body = record(offset=20, body=b"".join(entries), sys_flag=INNER_BATCH)
    index = core.MessageIndex(stored(19, b"1") + body + stored(30, b"9"))
    window = core.IdWindow(100)
    assert window.drop_copies(index) == 3
    window._check()
    views = list(index.views(core.MessageView, 0, len(index)))
    assert [view.queue_offset for view in views] == [19, 20, 22, 30]
    assert [bytes(view.body) for view in views] == [b"1", b"0", b"2", b"9"]


def test_the_last_of_two_ids_counts_and_one_without_a_value_is_none(core):
    twice = record(offset=1, body=b"B", properties=b"UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02")
    empty = record(offset=2, properties=b"UNIQ_KEY\x01\x02")
    bodies = [stored(0, b"B"), twice, empty, record(offset=3, properties=b"UNIQ_KEY\x01\x02")]
    index = core.MessageIndex(b"".join(bodies))
    assert core.IdWindow(9).drop_copies(index) == 1
    assert index.columns("offsets")["offsets"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**70])
def test_a_size_out_of_range_is_refused(core, size):
    with pytest.raises(ValueError, match=f"id window of {size} offsets"):
        core.IdWindow(size)
    assert core.IdWindow(2**31 - 1).size == 2**31 - 1


def test_only_an_index_has_copies(core):
    window = core.IdWindow(1)
    for other in (None, b"", [1]):
        with pytest.raises(TypeError):
            window.drop_copies(other)
    assert window.drop_copies(core.MessageIndex(b"")) == 0
