import random
from array import array

import pytest

MAX_OFFSET = 2**63 - 2


def test_an_empty_map_has_nothing(core):
    empty = core.OffsetMap()
    assert (len(empty), list(empty), empty.first(), empty.last()) == (0, [], None, None)
    assert (empty.floor(5), empty.ceiling(5), empty.get(5)) == (None, None, None)
    assert not empty.remove(5)
    assert empty.pop_first(3) == []
    empty._check()


def test_neighbours_and_ends(core):
    offsets = core.OffsetMap()
    for offset in (30, 10, 20):
        assert offsets.put(offset, offset + 2**63)
    assert not offsets.put(20, 7)
    assert (offsets.get(20), offsets.first()[0], offsets.last()[0]) == (7, 10, 30)
    assert (offsets.floor(19)[0], offsets.floor(20), offsets.floor(9)) == (10, (20, 7), None)
    assert (offsets.ceiling(21)[0], offsets.ceiling(31)) == (30, None)
    assert offsets.floor(2**90)[0] == 30
    assert offsets.ceiling(-(2**90))[0] == 10
    assert 10 in offsets
    assert "10" not in offsets
    assert offsets.pop_first(2) == [(10, 10 + 2**63), (20, 7)]
    offsets.clear()
    assert len(offsets) == 0


def test_it_is_written_and_read_as_a_mapping(core):
    offsets = core.OffsetMap()
    offsets[7] = 2**64 - 1
    offsets[2**40] = 3
    assert (offsets[7], offsets[2**40], list(offsets)) == (2**64 - 1, 3, [7, 2**40])
    del offsets[7]
    for absent in (7, -1, 2**90):
        with pytest.raises(KeyError, match=str(absent)):
            offsets[absent]
        with pytest.raises(KeyError, match=str(absent)):
            del offsets[absent]
    with pytest.raises(ValueError, match="range"):
        offsets[-1] = 0
    assert list(offsets) == [2**40]


# One digit of Python's ints has 30 bits; each length is read on a path of its own.
NEGATIVE = [-1, -2, -(2**29), -(2**31), -(2**60), -(2**63), -(2**64), 1 - 2**64]


@pytest.mark.parametrize(
    ("offset", "token"),
    [(MAX_OFFSET + 1, 0), (2**90, 0), (0, 2**64)]
    + [(number, 0) for number in NEGATIVE]
    + [(0, number) for number in NEGATIVE],
)
def test_what_is_out_of_range_is_refused(core, offset, token):
    offsets = core.OffsetMap()
    with pytest.raises(ValueError, match="range"):
        offsets.put(offset, token)
    with pytest.raises(ValueError, match="pop_first of 0"):
        offsets.pop_first(0)
    assert offsets.put(MAX_OFFSET, 2**64 - 1)
    assert offsets.last() == (MAX_OFFSET, 2**64 - 1)


ORDERS = {
    "ascending": sorted,
    "descending": lambda keys: sorted(keys, reverse=True),
    "random": lambda keys: random.Random(5).sample(keys, len(keys)),
    "from the middle": lambda keys: sorted(keys, key=lambda key: abs(key - keys[len(keys) // 2])),
}


@pytest.mark.parametrize("gap", [3, 20, 200])
@pytest.mark.parametrize("insert", ORDERS)
@pytest.mark.parametrize("delete", ORDERS)
def test_any_order_of_inserts_and_deletes_keeps_the_map_sound(native_core, insert, delete, gap):
    is_slow = native_core.__name__.endswith("cffi_binding")
    keys = list(range(0, gap * (1_000 if is_slow else 10_000), gap))
    offsets = native_core.OffsetMap()
    for key in ORDERS[insert](keys):
        assert offsets.put(key, key * 2)
    offsets._check()
    assert list(offsets) == keys
    left = set(keys)
    doomed = ORDERS[delete](keys)
    for part in range(4):
        for key in doomed[part * len(keys) // 4 : (part + 1) * len(keys) // 4]:
            assert offsets.remove(key)
            left.discard(key)
        offsets._check()
        assert list(offsets) == sorted(left)
        assert all(offsets.get(key) == (key * 2 if key in left else None) for key in keys[::97])


def test_a_window_slides_through(native_core):
    offsets = native_core.OffsetMap()
    for key in range(5_000):
        offsets.put(key, key)
        if key >= 300:
            assert offsets.pop_first(1) == [(key - 300, key - 300)]
    offsets._check()
    assert list(offsets) == list(range(4_700, 5_000))


def test_iteration_survives_changes(core):
    offsets = core.OffsetMap()
    for key in range(1_000):
        offsets.put(key, key)
    seen = []
    for key in offsets:
        seen.append(key)
        offsets.remove(key)
    assert seen == list(range(1_000))
    assert len(offsets) == 0


@pytest.mark.parametrize("place", range(128))
def test_a_full_leaf_splits_at_any_place(native_core, place):
    offsets = native_core.OffsetMap()
    for key in range(128):
        offsets.put(key * 256, key)
    assert offsets.put(place * 256 + 128, 7)
    offsets._check()
    assert offsets.get(place * 256 + 128) == 7


@pytest.mark.parametrize("first", [0, 2**40, MAX_OFFSET - 127])
@pytest.mark.parametrize("order", ORDERS)
def test_neighbours_fill_a_block_and_leave_it(native_core, order, first):
    """One offset, some, many, all, and back: each count in which a block may lie differently."""
    offsets = native_core.OffsetMap()
    assert offsets.put(first, 0)
    keys = range(first, first + 128)
    held = {first: 0}
    for key in ORDERS[order](keys):
        assert offsets.put(key, 2**64 - 1 - key) == (key not in held)
        held[key] = 2**64 - 1 - key
        offsets._check()
        assert [column.tolist() for column in offsets.columns()] == [
            sorted(held),
            [held[one] for one in sorted(held)],
        ]
    for key in ORDERS[order](keys):
        assert offsets[key] == held.pop(key)
        assert offsets.remove(key)
        assert not offsets.remove(key)
        offsets._check()
        assert list(offsets) == sorted(held)
        assert offsets.floor(key) == max(((k, t) for k, t in held.items() if k < key), default=None)
        assert offsets.ceiling(key) == min(
            ((k, t) for k, t in held.items() if k > key), default=None
        )


def test_a_bad_column_stores_nothing(core):
    offsets = core.OffsetMap()
    with pytest.raises(ValueError, match="range"):
        offsets.put_columns(array("q", [1, -1]), array("Q", [1, 2]))
    with pytest.raises(ValueError, match="2 offsets, 1 tokens"):
        offsets.put_columns(array("q", [1, 2]), array("Q", [1]))
    with pytest.raises(TypeError, match="offsets: expected a contiguous buffer"):
        offsets.remove_columns(array("i", [1]))
    with pytest.raises(ValueError, match="columns of 0"):
        offsets.columns(0, 0)
    assert len(offsets) == 0


def test_columns_of_random_keys_go_in_and_out(core):
    keys = random.Random(3).sample(range(10_000), 2_000)
    offsets = core.OffsetMap()
    assert offsets.put_columns(array("q", keys), array("Q", keys)) == 2_000
    assert [column.tolist() for column in offsets.columns()] == [sorted(keys)] * 2
    assert offsets.remove_columns(array("q", keys[:1_500])) == 1_500
    assert offsets.remove_columns(array("q", keys[:1_501])) == 1
    assert list(offsets) == sorted(keys[1_501:])
    offsets._check()
