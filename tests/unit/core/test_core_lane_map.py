import gc
import weakref
from array import array

import pytest

from ordermq.core.status import NO_KEY
from ordermq.errors import StateError


def lanes_of(core, keys, **options):
    """A map with one message a key, offsets from 0; a message is its offset and key."""
    lanes = core.LaneMap("orders@b/0", **options)
    lanes.add((offset, key, f"{offset}{key}") for offset, key in enumerate(keys))
    return lanes


def offsets_of(taken):
    return [offset for offset, _ in taken]


def test_a_key_has_one_message_in_flight_and_others_run_beside_it(core):
    lanes = lanes_of(core, ["a", "a", "b", "a", "b", "c"])
    assert lanes.take(9) == [(0, "0a"), (2, "2b"), (5, "5c")]
    assert lanes.take(9) == []
    assert lanes.done(2)
    assert offsets_of(lanes.take(9)) == [4]
    assert lanes.done(0)
    assert offsets_of(lanes.take(9)) == [1]
    lanes._check()


def test_no_more_than_max_in_flight_run_at_once(core):
    lanes = lanes_of(core, ["a", "b", "c", "d"], max_in_flight=2)
    assert offsets_of(lanes.take(9)) == [0, 1]
    assert (lanes.take(9), lanes.ready_count) == ([], 2)
    lanes.done(1)
    assert offsets_of(lanes.take(9)) == [2]
    assert lanes.in_flight_count == 2


def test_the_lowest_offset_starts_first_whoever_became_ready_last(core):
    lanes = lanes_of(core, ["a", "a", "b", "c", "d"], max_in_flight=1)
    assert offsets_of(lanes.take(1)) == [0]
    lanes.done(0)
    assert offsets_of(lanes.take(1)) == [1]


def test_the_watermark_is_the_lowest_offset_not_done_and_knows_gaps(core):
    lanes = core.LaneMap()
    lanes.reset(100)
    assert (lanes.watermark, lanes.next_offset) == (100, 100)
    lanes.add([(105, "a", None), (107, "b", None), (120, "c", None)])
    assert lanes.watermark == 105
    lanes.take(9)
    lanes.done(107)
    assert lanes.watermark == 105
    lanes.done(105)
    assert lanes.watermark == 120
    lanes.done(120)
    assert lanes.watermark == 121
    lanes._check()


def test_what_was_delivered_before_is_ignored_and_counted_done_or_not(core):
    lanes = lanes_of(core, ["a", "b", "c"])
    lanes.take(1)
    lanes.done(0)
    assert lanes.add([(1, "b", "again"), (2, "c", "again"), (3, "a", "new")]) == 1
    assert lanes.duplicates_ignored == 2
    assert [message for _, message in lanes.take(9)] == ["1b", "2c", "new"]


@pytest.mark.parametrize("offsets", [[3, 2], [3, 3], [-1, 2], [3, 2**63 - 1], [3, 2**80]])
def test_offsets_that_do_not_ascend_or_fit_are_refused_and_nothing_is_added(core, offsets):
    lanes = core.LaneMap()
    with pytest.raises(ValueError, match="add: an argument is out of its range"):
        lanes.add([(offset, "a", None) for offset in offsets])
    assert (lanes.message_count, lanes.next_offset, lanes.key_count) == (0, 0, 0)


@pytest.mark.parametrize("key", [7, bytearray(b"a"), ("a",)])
def test_a_key_is_text_or_bytes(core, key):
    lanes = core.LaneMap()
    for call in (
        lambda: lanes.add([(0, key, None)]),
        lambda: lanes.park(key),
        lambda: lanes.unpark(key),
        lambda: lanes.is_parked(key),
        lambda: lanes.divert(key, 1),
    ):
        with pytest.raises(TypeError, match="expected a key, str or bytes"):
            call()
    with pytest.raises(TypeError, match="expected a key, str or bytes, got NoneType"):
        lanes.park(None)
    assert lanes.message_count == 0


def test_text_and_its_utf8_bytes_are_one_key_and_equal_prefixes_are_not(core):
    keys = ["ä", "ä".encode(), "a", "a\0", "a\0\0", "", b"", "x" * 33, "x" * 34]
    lanes = lanes_of(core, keys)
    assert offsets_of(lanes.take(20)) == [0, 2, 3, 4, 5, 7, 8]
    assert lanes.key_count == 7
    lanes._check()


def test_what_failed_comes_again_before_the_rest_of_its_key_only(core):
    lanes = lanes_of(core, ["a", "a", "b"])
    lanes.take(9)
    assert lanes.failed(0)
    assert lanes.ready_count == 1
    assert lanes.take(9) == [(0, "0a")]
    assert (lanes.failed(2), lanes.watermark) == (True, 0)
    lanes.done(0)
    assert offsets_of(lanes.take(9)) == [1, 2]
    lanes._check()


def test_ending_what_is_not_in_flight_does_nothing(core):
    lanes = lanes_of(core, ["a", "a"])
    lanes.take(1)
    for offset in (1, 2, 7, -1, 2**63 - 1, 2**70, -(2**70)):
        assert not lanes.done(offset)
        assert not lanes.failed(offset)
    assert lanes.done(0)
    assert not lanes.done(0)
    assert (lanes.message_count, lanes.watermark) == (1, 1)


def test_a_barrier_waits_for_all_before_it_runs_alone_and_holds_all_behind_it(core):
    lanes = lanes_of(core, ["a", "b", None, "c", None])
    assert offsets_of(lanes.take(9)) == [0, 1]
    lanes.done(1)
    assert lanes.take(9) == []
    lanes.done(0)
    assert offsets_of(lanes.take(9)) == [2]
    assert lanes.take(9) == []
    lanes.failed(2)
    assert offsets_of(lanes.take(9)) == [2]
    lanes.done(2)
    assert offsets_of(lanes.take(9)) == [3]
    lanes.done(3)
    assert offsets_of(lanes.take(9)) == [4]
    lanes.done(4)
    assert lanes.watermark == 5
    lanes._check()


def test_without_barriers_messages_without_a_key_share_a_lane(core):
    lanes = lanes_of(core, [None, "a", None], keyless="lane")
    assert offsets_of(lanes.take(9)) == [0, 1]
    assert lanes.key_count == 1
    lanes.done(0)
    assert offsets_of(lanes.take(9)) == [2]


def test_a_parked_key_blocks_only_its_lane_and_goes_on_in_order(core):
    lanes = lanes_of(core, ["a", "b", "a"])
    assert lanes.park("a")
    assert not lanes.park(b"a")
    assert lanes.is_parked("a")
    assert offsets_of(lanes.take(9)) == [1]
    lanes.done(1)
    lanes.add([(3, "a", "3a"), (4, "b", "4b")])
    assert offsets_of(lanes.take(9)) == [4]
    assert (lanes.watermark, lanes.parked_count) == (0, 1)
    assert lanes.unpark("a")
    assert not lanes.unpark("a")
    for offset in (0, 2, 3):
        assert offsets_of(lanes.take(9)) == [offset]
        lanes.done(offset)
    lanes._check()


def test_parking_is_by_name_so_no_other_key_is_ever_parked(core):
    names = [f"order-{i}" for i in range(500)]
    lanes = lanes_of(core, names, max_in_flight=1_000)
    for name in names[::2]:
        lanes.park(name)
    assert offsets_of(lanes.take(1_000)) == list(range(1, 500, 2))


def test_a_key_that_runs_when_it_is_parked_may_end_and_what_failed_stays(core):
    lanes = lanes_of(core, ["a", "a"])
    lanes.take(1)
    lanes.park("a")
    lanes.failed(0)
    assert (lanes.take(9), lanes.ready_count) == ([], 0)
    lanes.unpark("a")
    assert offsets_of(lanes.take(9)) == [0]


def test_a_parked_key_is_diverted_from_its_head_and_done_when_that_is_durable(core):
    lanes = lanes_of(core, ["a", "a", "b", "a"])
    assert lanes.divert("a", 9) == []  # it is not parked
    lanes.park("a")
    assert lanes.divert("a", 2) == [(0, "0a"), (1, "1a")]
    assert (lanes.watermark, lanes.in_flight_count) == (0, 2)
    assert offsets_of(lanes.divert("a", 9)) == [3]
    for offset in (0, 1, 3):
        lanes.done(offset)
    assert (lanes.watermark, lanes.message_count) == (2, 1)
    assert (lanes.is_parked("a"), lanes.divert("a", 1)) == (True, [])
    lanes._check()


def test_nothing_is_diverted_past_what_runs_or_what_failed_to_be_diverted(core):
    lanes = lanes_of(core, ["a"] * 5)
    lanes.take(1)
    lanes.park("a")
    assert lanes.divert("a", 9) == []
    lanes.failed(0)
    assert offsets_of(lanes.divert("a", 3)) == [0, 1, 2]
    lanes.failed(2)
    lanes.failed(0)
    assert lanes.divert("a", 9) == []  # 1 is in flight
    lanes.failed(1)
    lanes._check()
    assert offsets_of(lanes.divert("a", 9)) == [0, 1, 2, 3, 4]


def test_nothing_is_diverted_past_what_runs_though_the_key_was_diverted_before(core):
    lanes = lanes_of(core, ["a", "a"])
    lanes.park("a")
    lanes.divert("a", 1)
    lanes.failed(0)
    lanes.unpark("a")
    lanes.take(1)
    lanes.park("a")
    assert lanes.divert("a", 9) == []
    lanes._check()


def test_an_unparked_key_waits_for_what_is_being_diverted(core):
    lanes = lanes_of(core, ["a", "a", "a"])
    lanes.park("a")
    lanes.divert("a", 2)
    lanes.unpark("a")
    lanes.done(1)
    assert lanes.take(9) == []
    lanes.done(0)
    assert offsets_of(lanes.take(9)) == [2]


def test_divert_keeps_to_the_bounds_of_the_queue_and_to_barriers(core):
    lanes = lanes_of(core, ["a", "a", "a", None, "a"], max_in_flight=2)
    lanes.park("a")
    assert offsets_of(lanes.divert("a", 9)) == [0, 1]
    lanes.done(0)
    lanes.done(1)
    assert offsets_of(lanes.divert("a", 9)) == [2]
    lanes.done(2)
    assert lanes.divert("a", 9) == []
    assert offsets_of(lanes.take(9)) == [3]
    assert lanes.divert("a", 9) == []
    lanes.done(3)
    assert offsets_of(lanes.divert("a", 9)) == [4]


def test_an_idle_key_is_gone_and_a_parked_one_stays(core):
    lanes = core.LaneMap(max_in_flight=10_000, max_ahead=100_000)
    lanes.park("poison")
    for start in range(0, 4_000, 500):
        lanes.add((start + i, f"key-{start + i}", None) for i in range(500))
        assert lanes.key_count == 501
        for offset, _ in lanes.take(10_000):
            lanes.done(offset)
        assert (lanes.key_count, lanes.message_count) == (1, 0)
        lanes._check()
    lanes.unpark("poison")
    assert lanes.key_count == 0


def test_max_ahead_stops_both_the_pull_and_the_takes_above_a_stuck_message(core):
    lanes = core.LaneMap(max_ahead=10, max_in_flight=100)
    lanes.add((offset, f"{offset}", None) for offset in range(10))
    assert not lanes.is_full
    lanes.add((offset, f"{offset}", None) for offset in range(10, 30))
    assert lanes.is_full
    assert offsets_of(lanes.take(100)) == list(range(11))
    for offset in range(1, 11):
        lanes.done(offset)
    assert lanes.take(100) == []
    assert (lanes.watermark, lanes.is_full) == (0, True)
    lanes.done(0)
    assert offsets_of(lanes.take(100)) == list(range(11, 22))


def test_after_a_reset_a_key_waits_for_its_old_flight(core):
    lanes = lanes_of(core, ["a", "b", "a"])
    lanes.take(9)
    lanes.done(1)
    lanes.reset(0)
    assert (lanes.message_count, lanes.old_flight_count, lanes.in_flight_count) == (0, 1, 1)
    assert (lanes.watermark, lanes.key_count) == (0, 1)
    lanes.add([(0, "a", "new 0a"), (1, "b", "new 1b"), (2, "a", "new 2a")])
    assert lanes.take(9) == [(1, "new 1b")]
    assert lanes.done(0)  # the old flight: what is new is neither done nor in flight
    assert (lanes.watermark, lanes.old_flight_count, lanes.message_count) == (0, 0, 3)
    assert lanes.take(9) == [(0, "new 0a")]
    assert lanes.done(0)
    assert lanes.take(9) == [(2, "new 2a")]
    lanes._check()


def test_an_offset_that_comes_again_under_another_key_waits_for_its_old_flight(core):
    lanes = lanes_of(core, ["a"])
    lanes.take(1)
    lanes.reset(0)
    lanes.add([(0, "other", "new")])
    assert lanes.take(9) == []
    lanes.failed(0)
    assert lanes.take(9) == [(0, "new")]
    lanes._check()


def test_old_flights_count_against_max_in_flight_and_hold_up_barriers(core):
    lanes = lanes_of(core, ["a", "b"], max_in_flight=2)
    lanes.take(2)
    lanes.reset(10)
    lanes.add([(10, "c", None), (11, None, None)])
    assert lanes.take(9) == []
    lanes.done(0)
    assert offsets_of(lanes.take(9)) == [10]
    lanes.done(10)
    assert lanes.take(9) == []
    lanes.done(1)
    assert offsets_of(lanes.take(9)) == [11]
    lanes.reset(20)
    lanes.add([(20, "d", None)])
    assert lanes.take(9) == []  # the barrier still runs
    lanes.done(11)
    assert offsets_of(lanes.take(9)) == [20]


def test_a_parked_key_outlives_a_reset(core):
    lanes = lanes_of(core, ["a", "a", "b"])
    lanes.park("a")
    lanes.divert("a", 2)
    lanes.reset(0)
    assert (lanes.key_count, lanes.old_flight_count) == (1, 2)
    lanes.add([(0, "a", "new"), (1, "a", "new"), (2, "b", "new")])
    assert lanes.divert("a", 9) == []
    assert offsets_of(lanes.take(9)) == [2]
    lanes.done(0)
    lanes.done(1)
    assert offsets_of(lanes.divert("a", 9)) == [0, 1]
    lanes._check()


@pytest.mark.parametrize("offset", [-1, 2**63, 2**80])
def test_a_reset_out_of_range_does_nothing(core, offset):
    lanes = lanes_of(core, ["a"])
    with pytest.raises(ValueError, match="orders@b/0: reset to"):
        lanes.reset(offset)
    assert lanes.message_count == 1
    lanes.reset(2**63 - 1)
    assert (lanes.watermark, lanes.message_count) == (2**63 - 1, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_in_flight": 2**31},
        {"max_ahead": 0},
        {"max_ahead": 2**63},
        {"keyless": "none"},
    ],
)
def test_bounds_out_of_range_are_refused(core, options):
    with pytest.raises(ValueError, match=f"q: .*{next(iter(options))}"):
        core.LaneMap("q", **options)


def test_take_and_divert_want_at_least_one(core):
    lanes = core.LaneMap("q")
    for call in (lanes.take, lanes.take_columns, lambda n: lanes.divert("a", n)):
        with pytest.raises(ValueError, match=r"q: .* of 0"):
            call(0)
    assert lanes.take(2**80) == []


class Message:
    pass


def test_a_message_is_let_go_when_it_is_done_or_dropped(core):
    lanes = core.LaneMap()
    messages = [Message() for _ in range(3)]
    known = [weakref.ref(message) for message in messages]
    lanes.add([(offset, "k", message) for offset, message in enumerate(messages)])
    lanes.add([(0, "k", Message())])  # ignored, and not kept
    del messages
    assert lanes.take(1)[0][1] is known[0]()
    lanes.done(0)
    gc.collect()
    assert [ref() is None for ref in known] == [True, False, False]
    lanes.reset(0)
    gc.collect()
    assert [ref() is None for ref in known] == [True, True, True]


def test_a_bad_row_in_the_middle_adds_nothing(core):
    lanes = core.LaneMap()
    for rows, error in (([(0, "a", 1), (1, "b")], ValueError), ([(0, "a", 1), 7], TypeError)):
        with pytest.raises(error):
            lanes.add(rows)
    assert lanes.add([[0, "a", 1]]) == 1
    assert lanes.take(1) == [(0, 1)]


# ---- columns ----


def add_columns(lanes, offsets, keys, tokens=None):
    """Keys of a list; None: no key."""
    blob = b"".join(key or b"" for key in keys)
    sizes = [NO_KEY if key is None else len(key) for key in keys]
    starts, at = [], 0
    for key in keys:
        starts.append(at)
        at += len(key or b"")
    columns = array("q", offsets), array("Q", offsets if tokens is None else tokens)
    return lanes.add_columns(*columns, blob, array("I", starts), array("I", sizes))


def test_columns_give_back_whole_tokens_in_key_order(core):
    lanes = core.LaneMap()
    assert add_columns(lanes, [3, 5, 9], [b"a", b"a", b"b"], [2**64 - 1, 0, 7]) == 3
    offsets, tokens = lanes.take_columns(9)
    assert (offsets.format, tokens.format) == ("q", "Q")
    assert (offsets.tolist(), tokens.tolist()) == ([3, 9], [2**64 - 1, 7])
    assert lanes.done_columns(array("q", [9, 3, 3, 4])) == 2
    assert lanes.watermark == 5
    lanes.park(b"a")
    assert [column.tolist() for column in lanes.divert_columns("a", 9)] == [[5], [0]]
    assert lanes.failed(5)
    lanes._check()


def test_keys_in_a_column_may_be_empty_missing_or_numbers(core):
    lanes = core.LaneMap(keyless="lane")
    assert add_columns(lanes, range(4), [b"", None, b"", None]) == 4
    assert lanes.take_columns(9)[0].tolist() == [0, 1]
    ids = array("q", [7, 8, 7])
    signed = array("i", [-1, 8, 8])  # Arrow's lengths, -1 for null
    tokens = array("Q", [4, 5, 6])
    lanes.reset(4)
    lanes.add_columns(array("q", tokens), tokens, ids, array("i", [0, 8, 16]), signed)
    assert lanes.key_count == 3  # 8, 7, and "" that is still in flight
    assert lanes.take_columns(9)[0].tolist() == [5, 6]  # 4, without a key, waits for 1
    lanes.done(1)
    assert lanes.take_columns(9)[0].tolist() == [4]
    lanes._check()


def test_an_empty_key_is_one_even_if_no_bytes_come_with_it(core):
    lanes = core.LaneMap()
    zero, one = array("I", [0]), array("Q", [1])
    lanes.add_columns(array("q", [0]), one, array("B"), zero, zero)
    assert (lanes.key_count, lanes.park("")) == (1, True)


@pytest.mark.parametrize(("position", "size"), [(3, 2), (5, 0), (2**32 - 1, 2), (0, 2**32 - 2)])
def test_a_key_that_reaches_past_its_bytes_is_refused_and_nothing_is_added(core, position, size):
    lanes = core.LaneMap()
    offsets, tokens = array("q", [0, 1]), array("Q", [0, 1])
    with pytest.raises(ValueError, match="out of its range"):
        lanes.add_columns(
            offsets, tokens, b"abcd", array("I", [0, position]), array("I", [1, size])
        )
    assert (lanes.message_count, lanes.key_count) == (0, 0)


def test_columns_of_wrong_length_or_type_are_refused(core):
    lanes = core.LaneMap("q")
    q, big, small = array("q", [0]), array("Q", [0]), array("I", [0])
    with pytest.raises(ValueError, match="1 offsets, 1 tokens, 2 key positions, 1 key sizes"):
        lanes.add_columns(q, big, b"", array("I", [0, 0]), small)
    for arguments in (
        (big, big, b"", small, small),
        (q, q, b"", small, small),
        (q, big, b"", big, small),
        (q, big, b"", small, q),
        (q, big, memoryview(b"abcd")[::2], small, small),
    ):
        with pytest.raises(TypeError):
            lanes.add_columns(*arguments)
    assert lanes.message_count == 0


def test_a_map_holds_objects_or_columns(core):
    objects = lanes_of(core, ["a"])
    columns = core.LaneMap("c")
    add_columns(columns, [1], [b"a"])
    for misuse in (
        lambda: objects.take_columns(1),
        lambda: objects.divert_columns("a", 1),
        lambda: objects.done_columns(array("q", [0])),
        lambda: add_columns(objects, [2], [b"a"]),
        lambda: columns.take(1),
        lambda: columns.divert("a", 1),
        lambda: columns.add([(2, "a", None)]),
    ):
        with pytest.raises(StateError, match="objects"):
            misuse()
    assert (objects.message_count, columns.message_count) == (1, 1)


def test_a_deep_map_keeps_key_order_through_failures(core):
    count = 100_000 if core.__name__.endswith("_cython") else 600
    keys = [b"%d" % (offset * offset % 997) for offset in range(count)]
    lanes = core.LaneMap(max_in_flight=64, max_ahead=count)
    add_columns(lanes, range(0, 2 * count, 2), keys)
    seen = {}
    failed = set()
    while lanes.message_count:
        for offset in lanes.take_columns(64)[0]:
            if offset % 14 == 0 and offset not in failed:
                failed.add(offset)
                assert lanes.failed(offset)
                continue
            key = keys[offset // 2]
            assert seen.get(key, -1) < offset
            seen[key] = offset
            assert lanes.done(offset)
    assert lanes.watermark == 2 * count - 1
    lanes._check()
