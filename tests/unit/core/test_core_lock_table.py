from array import array

import pytest

from ordermq.model.message_queue import MessageQueue

G, Q, ME, OTHER = "billing", "orders@b/0", "me", "other"
LEASE = 60_000


def table_with(core, entry):
    """A table whose entry is none, or (owner, live or expired at LEASE + 1)."""
    table = core.LockTable(LEASE)
    if entry != "none":
        owner, age = entry.split()
        table.try_lock(G, Q, owner, 1 if age == "live" else 0)
    return table


# docs/internals/semantics.md#broker-lock-table, row by row: entry, epoch of tryLock(me),
# unlock(me), unlock(other)
ROWS = [
    ("none", 1, False, False),
    ("me live", 1, True, False),
    ("me expired", 2, True, False),
    ("other live", 0, False, True),
    ("other expired", 2, False, True),
]


@pytest.mark.parametrize(("entry", "epoch", "_mine", "_other"), ROWS)
def test_try_lock_by_the_table(core, entry, epoch, _mine, _other):
    table = table_with(core, entry)
    before = table.holder(G, Q)
    assert table.try_lock(G, Q, ME, LEASE + 1) == epoch
    assert table.holder(G, Q) == ((ME, epoch, LEASE + 1) if epoch else before)
    table._check()


@pytest.mark.parametrize(("entry", "_epoch", "mine", "other"), ROWS)
def test_unlock_by_the_table(core, entry, _epoch, mine, other):
    for owner, expected in ((ME, mine), (OTHER, other)):
        table = table_with(core, entry)
        before = table.holder(G, Q)
        assert table.unlock(G, Q, owner) is expected
        assert table.holder(G, Q) == (None if expected else before)
        table._check()


def test_a_grant_expires_strictly_after_the_lease(core):
    table = core.LockTable(LEASE)
    assert table.try_lock(G, Q, ME, 0) == 1
    assert table.try_lock(G, Q, OTHER, LEASE) == 0
    assert table.is_current(G, Q, ME, 1, LEASE)
    assert not table.is_current(G, Q, ME, 1, LEASE + 1)
    assert table.try_lock(G, Q, OTHER, LEASE + 1) == 2


def test_a_live_renewal_keeps_its_epoch_and_a_late_one_does_not(core):
    table = core.LockTable(LEASE)
    assert [table.try_lock(G, Q, ME, now) for now in (0, LEASE, 2 * LEASE)] == [1, 1, 1]
    assert table.try_lock(G, Q, ME, 3 * LEASE + 1) == 2


def test_only_the_holder_in_its_epoch_is_current(core):
    table = core.LockTable(LEASE)
    epoch = table.try_lock(G, Q, ME, 0)
    assert table.is_current(G, Q, ME, epoch, 1)
    assert not table.is_current(G, Q, ME, epoch + 1, 1)
    assert not table.is_current(G, Q, OTHER, epoch, 1)
    assert not table.is_current(G, "unknown", ME, epoch, 1)
    assert not table.is_current("unknown", Q, ME, epoch, 1)


def test_an_unlock_of_another_epoch_is_refused(core):
    table = core.LockTable(LEASE)
    epoch = table.try_lock(G, Q, ME, 0)
    assert not table.unlock(G, Q, ME, epoch + 1)
    assert table.unlock(G, Q, ME, epoch)
    assert table.try_lock(G, Q, OTHER, 0) == epoch + 1


def test_a_batch_is_granted_queue_by_queue(core):
    table = core.LockTable(LEASE)
    queues = [f"q{i}" for i in range(200)]
    assert table.try_lock_batch(G, queues[::2], OTHER, 0) == list(range(1, 101))
    epochs = table.try_lock_batch(G, queues, ME, 5)
    assert epochs[::2] == [0] * 100
    assert epochs[1::2] == list(range(101, 201))
    table._check()
    assert table.unlock_batch(G, queues, ME) == [False, True] * 100
    assert table.unlock_batch(G, queues[::2], OTHER, [1, 9] + [0] * 98) == (
        [True, False] + [True] * 98
    )
    assert len(table) == 1
    with pytest.raises(ValueError, match="1 epochs"):
        table.unlock_batch(G, queues, ME, [1])
    assert table.try_lock_batch(G, [], ME, 0) == []
    table._check()


def test_a_group_without_live_locks_is_all_expired(core):
    table = core.LockTable(LEASE)
    assert table.is_all_expired(G, 0)
    table.try_lock(G, "a", ME, 0)
    table.try_lock(G, "b", ME, 10)
    table.try_lock("audit", "a", ME, 99)
    assert not table.is_all_expired(G, LEASE + 1)
    assert table.is_all_expired(G, LEASE + 11)


def test_a_sweep_returns_and_deletes_what_expired(core):
    table = core.LockTable(LEASE)
    old = [(f"g{i % 7}", f"q{i}", ME, i + 1) for i in range(500)]
    for group, queue, owner, _ in old:
        table.try_lock(group, queue, owner, 0)
    table.try_lock("g0", "live", OTHER, 5)
    assert sorted(table.sweep(LEASE + 1)) == sorted(old)
    table._check()
    assert table.snapshot() == [("g0", "live", OTHER, 501, 5)]
    assert table.sweep(LEASE + 1) == []
    assert table.try_lock("g0", "q0", ME, LEASE + 2) == 502


def test_a_snapshot_restores_with_its_epochs(core):
    table = core.LockTable(LEASE)
    for i in range(30):
        table.try_lock(f"g{i % 3}", f"q{i}", f"m{i % 2}", i)
    other = core.LockTable(LEASE, first_epoch=7)
    other.try_lock("gone", "gone", "gone", 0)
    other.restore(table.snapshot(), table.next_epoch)
    other._check()
    assert sorted(other.snapshot()) == sorted(table.snapshot())
    assert other.next_epoch == 31
    other.restore([], 3)
    assert (len(other), other.next_epoch) == (0, 31)


@pytest.mark.parametrize(
    "entries",
    [
        [(G, Q, ME, 1, 0), (G, Q, OTHER, 2, 0)],
        [(G, Q, ME, 9, 0)],
        [(G, Q, ME, 0, 0)],
        [(G, Q, ME, -1, 0)],
        [(G, Q, ME, 2**64 - 1, 0)],
        [(G, Q, ME, 2**200, 0)],
    ],
)
def test_a_wrong_restore_changes_nothing(core, entries):
    table = core.LockTable(LEASE)
    table.try_lock(G, "kept", ME, 3)
    with pytest.raises(ValueError, match="restore"):
        table.restore(entries, 9)
    assert table.snapshot() == [(G, "kept", ME, 1, 3)]
    assert table.next_epoch == 2
    table._check()


@pytest.mark.parametrize(("lease_ms", "first_epoch"), [(-1, 1), (0, 0), (1, -5)])
def test_a_table_out_of_range_is_refused(core, lease_ms, first_epoch):
    with pytest.raises(ValueError, match="lock table"):
        core.LockTable(lease_ms, first_epoch)


def test_clocks_may_jump_from_end_to_end(core):
    table = core.LockTable(LEASE)
    assert table.try_lock(G, Q, ME, -(2**63)) == 1
    assert table.try_lock(G, Q, OTHER, 2**63 - 1) == 2
    assert table.try_lock(G, Q, ME, -(2**63)) == 0


def ids_of(table, names):
    return array("Q", [table.intern(name) for name in names])


def test_ids_do_what_names_do(core):
    table = core.LockTable(LEASE)
    queues = [f"q{i}" for i in range(100)]
    group, me, other = (table.intern(name) for name in (G, ME, OTHER))
    ids = ids_of(table, queues)
    epochs = table.try_lock_ids(group, ids, me, 0)
    assert (epochs.format, epochs.tolist()) == ("Q", list(range(1, 101)))
    assert table.try_lock_batch(G, queues, ME, LEASE) == epochs.tolist()
    assert table.try_lock_ids(group, ids, other, LEASE).tolist() == [0] * 100
    assert table.holder(G, "q7") == (ME, 8, LEASE)
    wrong = array("Q", [1] * 100)
    assert table.unlock_ids(group, ids, me, wrong).tolist() == [1] + [0] * 99
    assert table.unlock_ids(group, ids, other).tolist() == [0] * 100
    unlocked = table.unlock_ids(group, ids, me, epochs)
    assert (unlocked.format, unlocked.tolist()) == ("B", [0] + [1] * 99)
    assert len(table) == 0
    empty = array("Q")
    assert table.try_lock_ids(group, empty, me, 0).tolist() == []
    assert table.unlock_ids(group, empty, me).tolist() == []
    table._check()


def test_equal_names_have_one_id_whatever_they_name(core):
    table = core.LockTable(LEASE)
    queue = MessageQueue("Orders", "b", 3)
    number = table.intern(queue)
    assert number == table.intern(MessageQueue("Orders", "b", 3)) >= 1
    assert table.name_of(number) is queue
    assert table.intern("billing") == table.intern("billing") != number


def test_a_message_queue_is_a_queue_and_an_equal_one_the_same(core):
    table = core.LockTable(LEASE)
    queues = [MessageQueue("Orders", "b", number) for number in range(3)]
    again = [MessageQueue("".join(["Ord", "ers"]), "b", number) for number in range(3)]
    assert table.try_lock_batch(G, queues, ME, 0) == [1, 2, 3]
    assert table.try_lock_batch(G, again, ME, 1) == [1, 2, 3]
    assert table.try_lock(G, again[0], OTHER, 1) == 0
    assert table.holder(G, again[1]) == (ME, 2, 1)
    assert sorted(table.snapshot())[0] == (G, queues[0], ME, 1, 1)
    assert table.is_current(G, again[2], ME, 3, 1)
    assert table.unlock_batch(G, again, ME) == [True] * 3


def test_an_interned_id_outlives_sweeps_until_each_intern_was_released(core):
    table = core.LockTable(LEASE)
    number = table.intern(Q)
    assert table.intern(Q) == number
    table.release(number)
    table.sweep(0)
    assert table.name_of(number) == Q
    table.release(number)
    with pytest.raises(ValueError, match="release"):
        table.release(number)
    assert table.name_of(number) == Q, "no sweep came by yet"
    table.sweep(0)
    for use in (table.name_of, table.release):
        with pytest.raises(ValueError, match="intern its name again"):
            use(number)
    assert table.intern(Q) != number, "an id is given out once"
    table._check()


@pytest.mark.parametrize("end", ["unlock", "expiry", "take-over", "restore"])
def test_a_lock_keeps_its_released_ids_until_it_ends(core, end):
    table = core.LockTable(LEASE)
    group, me = table.intern(G), table.intern(ME)
    ids = ids_of(table, [Q])
    table.try_lock_ids(group, ids, me, 0)
    for number in (group, me, *ids):
        table.release(number)
    assert table.sweep(LEASE) == []
    assert [table.name_of(number) for number in (group, me, *ids)] == [G, ME, Q]
    gone = [group, me, *ids]
    if end == "unlock":
        assert table.unlock_ids(group, ids, me).tolist() == [1]
    elif end == "restore":
        table.restore([], 1)
    elif end == "take-over":
        assert table.try_lock(G, Q, OTHER, LEASE + 1) == 2
        gone = [me]
    table.sweep(LEASE + 1)
    for number in gone:
        with pytest.raises(ValueError, match="intern its name again"):
            table.name_of(number)
    table._check()


@pytest.mark.parametrize("unknown", ["group", "queue", "owner"])
def test_an_unknown_id_is_refused_and_nothing_is_done(core, unknown):
    table = core.LockTable(LEASE)
    group, me = table.intern(G), table.intern(ME)
    ids = ids_of(table, ["a", "b", "c"])
    table.try_lock_ids(group, ids, me, 0)
    before = sorted(table.snapshot())
    stray = 2**63 + 5
    if unknown == "group":
        group = stray
    elif unknown == "owner":
        me = 0
    else:
        ids[2] = stray
    with pytest.raises(ValueError, match="intern its name again"):
        table.try_lock_ids(group, ids, me, 7)
    with pytest.raises(ValueError, match="intern its name again"):
        table.unlock_ids(group, ids, me)
    assert sorted(table.snapshot()) == before
    table._check()


def test_columns_of_another_kind_are_refused(core):
    table = core.LockTable(LEASE)
    group, me = table.intern(G), table.intern(ME)
    ids = ids_of(table, ["a", "b", "c"])
    for wrong in (array("q", ids), array("d", ids), memoryview(array("Q", ids))[::2]):
        with pytest.raises(TypeError, match="queues"):
            table.try_lock_ids(group, wrong, me, 0)
        with pytest.raises(TypeError, match="queues"):
            table.unlock_ids(group, wrong, me)
    with pytest.raises(TypeError, match="epochs"):
        table.unlock_ids(group, ids, me, array("i", [1, 2, 3]))
    with pytest.raises(ValueError, match="1 epochs"):
        table.unlock_ids(group, ids, me, array("Q", [1]))


@pytest.mark.parametrize("name", [None, [], {}])
def test_what_cannot_name_a_queue_is_refused(core, name):
    table = core.LockTable(LEASE)
    for use in (table.intern, lambda name: table.try_lock(G, name, ME, 0)):
        with pytest.raises(TypeError):
            use(name)
    assert len(table) == 0
    table._check()


def test_a_sweep_finds_what_a_clock_that_went_back_granted(core):
    table = core.LockTable(LEASE)
    table.try_lock(G, "a", ME, 10 * LEASE)
    table.try_lock(G, "b", ME, 10 * LEASE)
    assert table.sweep(10 * LEASE) == []
    table.try_lock(G, "a", ME, 3)
    assert table.sweep(LEASE + 4) == [(G, "a", ME, 1)]
    table._check()
    assert table.sweep(11 * LEASE + 1) == [(G, "b", ME, 2)]


def test_a_group_of_thousands_shrinks_with_its_sweep(core):
    table = core.LockTable(LEASE)
    table.try_lock_batch(G, range(5_000), ME, 0)
    table.try_lock_batch(G, range(40), ME, 1)
    assert len(table.sweep(LEASE + 1)) == 4_960
    table._check()
    assert table.try_lock_batch(G, range(5_000), ME, 2)[:40] == list(range(1, 41))
    table._check()


@pytest.mark.parametrize("epoch", [2**64 - 1, 2**64, 2**200, -1, 1 - 2**64, -(2**200)])
def test_an_epoch_that_no_lock_can_have_is_none_of_its(core, epoch):
    table = core.LockTable(LEASE)
    assert table.try_lock(G, Q, ME, 0) == 1
    assert not table.is_current(G, Q, ME, epoch, 1)
    assert not table.unlock(G, Q, ME, epoch)
    assert table.unlock_batch(G, [Q], ME, [epoch]) == [False]
    assert table.holder(G, Q) == (ME, 1, 0)


@pytest.mark.parametrize("next_epoch", [2**63, 2**64, 2**200])
def test_epochs_stay_within_63_bits(core, next_epoch):
    table = core.LockTable(LEASE)
    with pytest.raises(ValueError, match="restore"):
        table.restore([], next_epoch)
    assert table.next_epoch == 1
    table.restore([], 2**63 - 1)
    assert table.try_lock(G, Q, ME, 0) == 2**63 - 1
