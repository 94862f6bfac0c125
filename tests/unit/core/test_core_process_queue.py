import gc
import json
import sysconfig
import weakref
from array import array
from pathlib import Path

import pytest

from ordermq.core import RecordWriter
from ordermq.errors import StateError
from ordermq.model.stored_message import host_bytes

VECTORS = sorted((Path(__file__).parents[2] / "vectors" / "core").glob("process_queue_*.json"))
MAX_OFFSET = 2**63 - 2


class Batch:
    """A batch whose message i is "m<offset>"."""

    def __init__(self, offsets, sizes=None):
        self.offsets = memoryview(array("q", offsets))
        self.body_sizes = memoryview(array("I", sizes or [1] * len(offsets)))

    def __len__(self):
        return len(self.offsets)

    def __getitem__(self, index):
        return f"m{self.offsets[index]}"


class Objects:
    """Drives a queue by put and take; messages are read back as offsets."""

    @staticmethod
    def put(queue, pairs):
        return queue.put([(o, f"m{o}") for o, _ in pairs], [size for _, size in pairs])

    @staticmethod
    def take(queue, n):
        return [int(message[1:]) for message in queue.take(n)]


class Batches(Objects):
    @staticmethod
    def put(queue, pairs):
        return queue.put_batch(Batch([o for o, _ in pairs], [size for _, size in pairs]))


class Segments(Batches):
    @staticmethod
    def take(queue, n):
        return [
            batch.offsets[i]
            for batch, first, count in queue.take_segments(n)
            for i in range(first, first + count)
        ]


class Columns:
    @staticmethod
    def put(queue, pairs):
        offsets = array("q", [o for o, _ in pairs])
        tokens = array("Q", [o + 2**63 for o in offsets])
        return queue.put_columns(offsets, tokens, array("I", [size for _, size in pairs]))

    @staticmethod
    def take(queue, n):
        offsets, tokens = queue.take_columns(n)
        assert [o + 2**63 for o in offsets] == tokens.tolist()
        return offsets.tolist()


@pytest.mark.parametrize("drive", [Objects, Batches, Segments, Columns])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda path: path.stem)
def test_a_vector_of_the_semantics_gives_its_results(core, vector, drive):
    queue = core.ProcessQueue("t@b/0")
    for number, step in enumerate(json.loads(vector.read_text())["steps"]):
        where = f"step {number}: {step}"
        arguments = [step["with"]] if "with" in step else []
        if step["do"] in ("put", "take"):
            result = getattr(drive, step["do"])(queue, *arguments)
        else:
            result = getattr(queue, step["do"])(*arguments)
        assert result == step["result"], where
        queue._check()
        for name in step.keys() & {"message_count", "size_bytes", "max_span", "max_offset"}:
            assert getattr(queue, name) == step[name], where
        for name in step.keys() & {"duplicates_ignored", "is_dispatched"}:
            assert getattr(queue, name) == step[name], where
        if "pending" in step:
            pending, consuming = step["pending"], step["consuming"]
            assert [o for o in range(20) if o in queue] == pending, where
            assert queue.pending_count == len(pending), where
            assert queue.consuming_count == len(consuming), where
            assert queue.first_consuming == min(consuming, default=-1), where
            assert queue.last_consuming == max(consuming, default=-1), where


def test_the_messages_of_one_batch_are_one_segment(core):
    queue = core.ProcessQueue()
    batch = Batch(range(1000))
    queue.put_batch(batch)
    assert queue.take_segments(32) == [(batch, 0, 32)]
    assert queue.take_segments(2000) == [(batch, 32, 968)]


def test_segments_follow_offsets_across_batches_and_gaps(core):
    queue = core.ProcessQueue()
    even, odd, later = Batch([0, 2, 4]), Batch([1, 3, 5]), Batch([9, 7, 8])
    for batch in (odd, even, later):
        queue.put_batch(batch)
    assert queue.take_segments(4) == [(even, 0, 1), (odd, 0, 1), (even, 1, 1), (odd, 1, 1)]
    assert queue.take_segments(9) == [(even, 2, 1), (odd, 2, 1), (later, 1, 2), (later, 0, 1)]


def test_a_batch_put_twice_is_not_one_segment_with_itself(core):
    queue = core.ProcessQueue()
    batch = Batch([0, 1, 2, 3])
    queue.put_batch(batch)
    queue.take(2)
    queue.commit()
    queue.make_again_from(0)
    queue.reset(0)
    queue.put([(0, "a")])
    queue.put_batch(batch)
    assert queue.take_segments(9) == [(["a"], 0, 1), (batch, 1, 3)]
    assert queue.duplicates_ignored == 1


def test_objects_come_back_themselves(core):
    queue = core.ProcessQueue()
    messages = [object() for _ in range(200)]
    queue.put(enumerate(messages))
    assert all(a is b for a, b in zip(queue.take(200), messages, strict=True))


@pytest.mark.parametrize("leave", ["commit", "remove", "clear", "reset"])
def test_a_batch_is_let_go_with_its_last_message(core, leave):
    queue = core.ProcessQueue()
    batch = Batch(range(300))
    seen = weakref.ref(batch)
    queue.put_batch(batch)
    del batch
    queue.take_segments(299)
    queue.commit()
    gc.collect()
    assert seen() is not None
    if leave == "commit":
        queue.take_segments(1)
    arguments = {"remove": [[299]], "reset": [0]}.get(leave, [])
    getattr(queue, leave)(*arguments)
    gc.collect()
    assert seen() is None
    queue._check()


def test_a_batch_of_duplicates_is_not_kept(core):
    queue = core.ProcessQueue()
    queue.put([(1, "a"), (2, "b")])
    batch = Batch([1, 2])
    seen = weakref.ref(batch)
    queue.put_batch(batch)
    del batch
    gc.collect()
    assert seen() is None
    assert queue.take(9) == ["a", "b"]


def test_a_finalizer_may_put_again_while_its_batch_is_dropped(core):
    queue = core.ProcessQueue()

    class Stubborn(Batch):
        def __del__(self):
            queue.put([(100, "again")])

    queue.put_batch(Stubborn([1, 2]))
    queue.take_segments(2)
    assert queue.commit() == 3
    gc.collect()
    assert queue.take(9) == ["again"]
    queue._check()


def test_make_again_takes_only_what_is_consuming(core):
    queue = core.ProcessQueue()
    queue.put([(o, o) for o in range(10)])
    queue.take(6)
    assert queue.make_again([1, 3, 8, 77, -5, 2**80]) == 2
    assert queue.take(3) == [1, 3, 6]
    assert queue.make_again_from(4) == 3
    assert queue.take(2) == [4, 5]
    assert queue.make_again_from(-(2**70)) == 6
    assert queue.consuming_count == 0
    queue._check()


def test_the_watermark_stays_below_what_is_consuming(core):
    queue = core.ProcessQueue()
    queue.put([(o, o) for o in range(5)])
    queue.take(3)
    assert queue.remove([1, 2, 3]) == 0
    assert queue.remove([0]) == 4
    assert queue.remove([4]) == 5
    assert queue.remove([]) == -1
    assert queue.next_uncommitted == 5


def test_committed_offsets_are_ignored_when_they_come_again(core):
    queue = core.ProcessQueue()
    queue.put([(7, "a"), (8, "b")])
    queue.take(2)
    assert queue.commit() == 9
    assert not queue.put([(7, "a"), (8, "b"), (9, "c")])
    assert queue.duplicates_ignored == 2
    assert queue.take(9) == ["c"]


def test_a_late_commit_of_the_head_does_not_lower_the_floor(core):
    queue = core.ProcessQueue()
    queue.put([(o, o) for o in range(10, 13)])
    queue.take(3)
    queue.make_again([10])
    assert queue.commit() == 13
    assert queue.take(1) == [10]
    assert queue.commit() == 11
    assert queue.next_uncommitted == 13


def test_reset_may_lower_the_floor_and_keeps_the_flag(core):
    queue = core.ProcessQueue()
    queue.put([(50, "a")])
    queue.take(1)
    queue.commit()
    queue.put([(51, "b")])
    queue.reset(10)
    assert (queue.message_count, queue.max_offset, queue.next_uncommitted) == (0, -1, 10)
    assert queue.is_dispatched
    assert not queue.put([(9, "x"), (10, "y")])
    assert queue.take(9) == ["y"]
    queue._check()


def test_clear_keeps_floor_and_flag(core):
    queue = core.ProcessQueue()
    queue.put([(5, "a"), (6, "b")])
    queue.take(1)
    queue.commit()
    queue.clear()
    assert (queue.message_count, queue.size_bytes, queue.max_offset) == (0, 0, -1)
    assert (queue.next_uncommitted, queue.is_dispatched) == (6, True)


def test_exactly_one_put_or_begin_sets_the_flag(core):
    queue = core.ProcessQueue()
    assert not queue.begin_dispatch()
    assert not queue.put([])
    assert queue.put([(1, "a")])
    assert not queue.put([(2, "b")])
    assert not queue.begin_dispatch()
    queue.end_dispatch()
    assert queue.begin_dispatch()
    assert queue.take(2) == ["a", "b"]
    assert queue.take(1) == []
    assert not queue.is_dispatched
    assert not queue.begin_dispatch()


@pytest.mark.parametrize("operation", ["take", "take_segments", "take_columns"])
@pytest.mark.parametrize("n", [0, -1, -(2**70)])
def test_a_take_of_less_than_one_is_refused_and_keeps_the_flag(core, operation, n):
    queue = core.ProcessQueue("orders@b/1")
    queue.put_columns(array("q", [1]), array("Q", [1]))
    with pytest.raises(ValueError, match="orders@b/1"):
        getattr(queue, operation)(n)
    assert queue.is_dispatched


def test_a_take_of_very_many_takes_all(core):
    queue = core.ProcessQueue()
    queue.put([(o, o) for o in range(300)])
    assert queue.take(2**80) == list(range(300))


@pytest.mark.parametrize("offset", [-1, MAX_OFFSET + 1, 2**63, 2**90, -(2**90)])
def test_an_offset_out_of_range_is_refused_and_nothing_is_put(core, offset):
    queue = core.ProcessQueue()
    with pytest.raises(ValueError, match="range"):
        queue.put([(1, "a"), (offset, "b")])
    assert queue.message_count == 0
    assert queue.put([(MAX_OFFSET, "z")])
    assert queue.take(1) == ["z"]
    assert queue.commit() == MAX_OFFSET + 1
    queue._check()


@pytest.mark.parametrize(
    "size", [-1, -2, -(2**29), -(2**31), 1 - 2**32, -(2**32), 1 - 2**64, 2**31, 2**40]
)
def test_a_size_out_of_range_is_refused(core, size):
    queue = core.ProcessQueue()
    with pytest.raises(ValueError, match="range"):
        queue.put([(1, "a")], [size])
    with pytest.raises(ValueError, match="range"):
        queue.reset(-1)
    assert queue.message_count == 0


def test_lengths_that_differ_are_refused(core):
    queue = core.ProcessQueue()
    with pytest.raises(ValueError, match="2 sizes"):
        queue.put([(1, "a")], [1, 2])
    with pytest.raises(ValueError, match="2 sizes"):
        queue.put_batch(Batch([1], [1, 2]))
    with pytest.raises(ValueError, match="3 tokens"):
        queue.put_columns(array("q", [1, 2]), array("Q", [1, 2, 3]))


@pytest.mark.parametrize(
    "offsets",
    [array("i", [1]), array("Q", [1]), array("d", [1.0]), b"12345678", memoryview(b"1" * 16)[::2]],
)
def test_a_column_of_another_type_is_refused(core, offsets):
    queue = core.ProcessQueue()
    with pytest.raises(TypeError, match="offsets: expected a contiguous buffer"):
        queue.put_columns(offsets, array("Q", [1]))


def test_shapes_do_not_mix(core):
    columns, objects = core.ProcessQueue("c"), core.ProcessQueue("o")
    columns.put_columns(array("q", [1]), array("Q", [7]))
    objects.put([(1, "a")])
    for misuse in (
        lambda: columns.put([(2, "b")]),
        lambda: columns.put_batch(Batch([2])),
        lambda: columns.take(1),
        lambda: columns.take_segments(1),
        lambda: objects.put_columns(array("q", [2]), array("Q", [8])),
        lambda: objects.take_columns(1),
    ):
        with pytest.raises(StateError, match="either objects and batches or columns"):
            misuse()
    assert [column.tolist() for column in columns.take_columns(9)] == [[1], [7]]
    assert objects.take(9) == ["a"]


def test_columns_default_to_size_zero_and_keep_whole_tokens(core):
    queue = core.ProcessQueue()
    queue.put_columns(array("q", [3, 1]), array("Q", [2**64 - 1, 0]))
    offsets, tokens = queue.take_columns(5)
    assert (offsets.format, tokens.format) == ("q", "Q")
    assert (offsets.tolist(), tokens.tolist()) == ([1, 3], [0, 2**64 - 1])
    assert queue.size_bytes == 0


def test_a_deep_queue_keeps_its_order_through_rollback(core):
    queue = core.ProcessQueue()
    total = 20_000 if core.__name__.endswith("_cython") else 3_000
    for start in range(0, total, 100):
        queue.put_batch(Batch(range(start, start + 100)))
    for _ in range(3):
        assert sum(count for _, _, count in queue.take_segments(total // 2)) == total // 2
        assert sum(count for _, _, count in queue.take_segments(7)) == 7
        queue._check()
        queue.rollback()
        queue._check()
    assert queue.take(total) == [f"m{o}" for o in range(total)]
    assert queue.commit() == total
    queue._check()


def test_the_middle_of_a_batch_leaves_and_comes_back(core):
    queue = core.ProcessQueue()
    batch = Batch(range(100), list(range(100)))
    queue.put_batch(batch)
    queue.take_segments(60)
    assert queue.remove([30, 31, 70]) == 0
    assert queue.size_bytes == sum(range(100)) - 131
    assert queue.make_again([10, 59, 29]) == 3
    queue._check()
    assert queue.take_segments(5) == [(batch, 10, 1), (batch, 29, 1), (batch, 59, 3)]
    assert queue.commit() == 62
    assert queue.size_bytes == sum(range(62, 100)) - 70
    assert queue.take_segments(99) == [(batch, 62, 8), (batch, 71, 29)]
    queue._check()


def test_every_second_message_removed_leaves_the_rest(core):
    queue = core.ProcessQueue()
    queue.put_batch(Batch(range(2_000)))
    queue.take_segments(1_000)
    assert queue.remove(range(1, 2_000, 2)) == 0
    queue._check()
    assert (queue.pending_count, queue.consuming_count, queue.size_bytes) == (500, 500, 1_000)
    queue.rollback()
    queue._check()
    assert [first for _, first, _ in queue.take_segments(2_000)] == list(range(0, 2_000, 2))
    assert queue.commit() == 1_999
    assert (queue.size_bytes, queue.remove([])) == (0, -1)


def test_membership_and_repr(core):
    queue = core.ProcessQueue("orders@b/1")
    queue.put([(3, "a"), (4, "b")])
    queue.take(1)
    assert 4 in queue
    assert 3 not in queue
    assert "4" not in queue
    assert 2**80 not in queue
    assert "orders@b/1" in repr(queue)


class Shrinking:
    """An offset that empties the list it is read from."""

    def __init__(self, messages):
        self.messages = messages

    def __index__(self):
        self.messages.clear()
        return 1


def test_a_list_that_changes_while_it_is_put_is_refused_or_put_as_it_was(core):
    messages = []
    messages += [(Shrinking(messages), "a"), (2, "b")]
    queue = core.ProcessQueue("q")
    # The only one that does not copy it first, where other threads wait for the interpreter lock.
    if core.__name__.endswith("_cython") and not sysconfig.get_config_var("Py_GIL_DISABLED"):
        with pytest.raises(RuntimeError, match="changed"):
            queue.put(messages)
        assert queue.message_count == 0
    queue._check()
    assert queue.put(iter([(5, "c")]), (3,))
    assert queue.take(9) == ["c"]


def pull_body(offsets, body_sizes):
    """Stored records, the tag of every third message "other"."""
    writer = RecordWriter("T", 0, host_bytes("127.0.0.1", 1), host_bytes("127.0.0.1", 2))
    records = []
    for offset, size in zip(offsets, body_sizes, strict=True):
        tag = b"other" if offset % 3 == 0 else b"wanted"
        written = writer.write(
            b"x" * size, b"TAGS\x01" + tag, flag=0, sys_flag=0, born_ms=1, stored_ms=2
        )
        records += [record for _, _, record in written.rows(offset, 0)]
    return b"".join(records)


@pytest.mark.parametrize(
    ("offsets", "tags"),
    [
        (range(10, 17), ()),
        (range(10, 17), (b"wanted",)),
        ([10, 11, 15, 16], ()),
        ([16, 12, 10, 11], ()),
        (range(100), ()),
        ([*range(99), 200], ()),
        ([], ()),
    ],
)
def test_an_index_is_a_batch_with_the_bytes_of_each_message(core, offsets, tags):
    sizes = [1 + offset % 7 for offset in offsets]
    index = core.MessageIndex(pull_body(offsets, sizes), tags)
    wanted = sorted(o for o in offsets if not tags or o % 3)
    queue = core.ProcessQueue("q")
    assert queue.put_batch(index) == bool(wanted)
    assert not queue.put_batch(core.MessageIndex(index.body, tags)), "all of it is there"
    assert queue.duplicates_ignored == len(wanted)
    del index
    gc.collect()
    queue._check()
    left = list(wanted)
    while left:
        assert queue.size_bytes == sum(1 + offset % 7 for offset in left)
        ((batch, first, count),) = queue.take_segments(1)
        assert (batch.offset_at(first), count) == (left[0], 1)
        assert queue.commit() == left.pop(0) + 1
        queue._check()
    assert (queue.size_bytes, queue.message_count) == (0, 0)
