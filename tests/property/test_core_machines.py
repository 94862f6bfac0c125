"""Every native core compared with a model, step by step, with `_check()` after each step.

The process queue's model is the reference core, the offset map's is a dict, the lock table's
is written here once more from docs/internals/semantics.md#broker-lock-table, so that the reference
is checked too.
"""

import importlib
from array import array

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ordermq.core import reference
from ordermq.errors import StateError
from tests.unit.core.stored_records import record

CORES = {
    "cython": "ordermq.core._cython",
    "cffi": "ordermq.core.cffi_binding",
    "reference": "ordermq.core.reference",
}
SETTINGS = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

near = st.integers(0, 80)
offset_lists = st.lists(near, max_size=20)
sizes = st.integers(0, 2**31 - 1)
counts = st.one_of(st.integers(1, 40), st.integers(100, 700))


class Batch:
    def __init__(self, offsets, body_sizes):
        self.offsets = array("q", offsets)
        self.body_sizes = array("I", body_sizes)

    def __getitem__(self, index):
        return (id(self), index)


def outcome(call, *arguments):
    """Return the result of a call, or the type of its exception."""
    try:
        return call(*arguments)
    except (ValueError, KeyError, StateError) as failure:
        return type(failure)


class ProcessQueueMachine(RuleBasedStateMachine):
    module = "ordermq.core._cython"

    def __init__(self):
        super().__init__()
        self.native = importlib.import_module(self.module).ProcessQueue("n")
        self.model = reference.ProcessQueue("m")

    def both(self, operation, *arguments):
        native = outcome(getattr(self.native, operation), *arguments)
        model = outcome(getattr(self.model, operation), *arguments)
        if operation == "take_columns" and isinstance(model, tuple):
            native, model = ([column.tolist() for column in pair] for pair in (native, model))
        assert native == model, (operation, arguments)
        return model

    @rule(offsets=offset_lists, size=sizes)
    def put(self, offsets, size):
        messages = [(offset, object()) for offset in offsets]
        self.both("put", messages, [size] * len(offsets))

    @rule(offsets=offset_lists, size=sizes)
    def put_batch(self, offsets, size):
        self.both("put_batch", Batch(offsets, [size] * len(offsets)))

    @rule(count=counts, gap=st.integers(1, 3), start=st.integers(0, 3000))
    def put_far(self, count, gap, start):
        offsets = range(start, start + count * gap, gap)
        self.both("put_batch", Batch(offsets, range(count)))

    @rule(count=counts)
    def put_next(self, count):
        start = max(self.model.max_offset + 1, self.model.next_uncommitted)
        self.both("put_batch", Batch(range(start, start + count), [1] * count))

    @rule(offset=st.sampled_from([-1, 2**63 - 1, 2**70]))
    def put_out_of_range(self, offset):
        assert self.both("put", [(3, "a"), (offset, "b")]) is ValueError

    @rule(operation=st.sampled_from(["take", "take_segments", "take_columns"]), n=counts)
    def take(self, operation, n):
        self.both(operation, n)

    @rule(operation=st.sampled_from(["commit", "rollback", "begin_dispatch", "end_dispatch"]))
    def act(self, operation):
        self.both(operation)

    @rule(offsets=offset_lists, operation=st.sampled_from(["make_again", "remove"]))
    def act_on_offsets(self, offsets, operation):
        self.both(operation, offsets)

    @rule(data=st.data(), operation=st.sampled_from(["make_again", "remove"]))
    def act_on_what_is_there(self, data, operation):
        model = self.model
        there = sorted([*model._pending, *model._consuming])
        if there:
            chosen = data.draw(st.lists(st.sampled_from(there), max_size=40))
            self.both(operation, chosen)

    @rule(n=st.integers(1, 40))
    def commit_past_the_head(self, n):
        self.both("take", n)
        self.both("make_again", [self.model.first_consuming])
        self.both("commit")

    @rule(share=st.floats(0, 1))
    def make_again_from(self, share):
        first, last = self.model.first_consuming, self.model.last_consuming
        self.both("make_again_from", int(first + share * (last - first)))

    @rule(seldom=st.integers(0, 9), next_offset=near)
    def start_over(self, seldom, next_offset):
        if seldom == 0:
            self.both("clear")
        elif seldom == 1:
            self.both("reset", next_offset)

    @invariant()
    def they_are_alike_and_sound(self):
        self.native._check()
        self.model._check()
        for name in (
            "message_count",
            "size_bytes",
            "pending_count",
            "consuming_count",
            "max_span",
            "max_offset",
            "first_pending",
            "last_pending",
            "first_consuming",
            "last_consuming",
            "is_dispatched",
            "duplicates_ignored",
            "next_uncommitted",
        ):
            assert getattr(self.native, name) == getattr(self.model, name), name
        assert all((o in self.native) == (o in self.model) for o in range(0, 90, 7))


class ColumnsMachine(ProcessQueueMachine):
    """The same with put_columns first, so that the shape is columns; the rest is refused."""

    def __init__(self):
        super().__init__()
        self.both("put_columns", array("q", [0]), array("Q", [0]), None)

    @rule(offsets=offset_lists, token=st.integers(0, 2**64 - 20), size=sizes)
    def put_columns(self, offsets, token, size):
        tokens = array("Q", [token + i for i in range(len(offsets))])
        lengths = array("I", [size] * len(offsets))
        self.both("put_columns", array("q", offsets), tokens, lengths)

    @rule(count=counts)
    def put_next_columns(self, count):
        start = max(self.model.max_offset + 1, self.model.next_uncommitted)
        tokens = array("Q", range(count))
        self.both("put_columns", array("q", range(start, start + count)), tokens, None)


keys = st.integers(0, 3000)
# Beside what the core keeps together, blocks of 128 offsets, and up to the last offset.
far_keys = st.one_of(
    st.integers(2**63 - 300, 2**63 - 2),
    st.builds(lambda block, low: block * 128 + low, st.integers(0, 2**56 - 1), st.integers(-1, 1)),
).map(lambda key: min(max(key, 0), 2**63 - 2))


class OffsetMapMachine(RuleBasedStateMachine):
    module = "ordermq.core._cython"

    def __init__(self):
        super().__init__()
        self.native = importlib.import_module(self.module).OffsetMap()
        self.model = reference.OffsetMap()

    def both(self, operation, *arguments):
        native = outcome(getattr(self.native, operation), *arguments)
        model = outcome(getattr(self.model, operation), *arguments)
        assert native == model, (operation, arguments)

    @rule(
        offset=keys, token=st.integers(-1, 2**64), operation=st.sampled_from(["put", "__setitem__"])
    )
    def put(self, offset, token, operation):
        self.both(operation, offset, token)

    @rule(start=keys, count=counts, step=st.sampled_from([-3, -1, 1, 2, 7]))
    def put_run(self, start, count, step):
        for offset in range(start, start + count * step, step):
            self.both("put", offset, abs(offset))

    @rule(start=st.integers(3000, 6000), place=st.integers(0, 127))
    def split_a_leaf_anywhere(self, start, place):
        self.both("clear")
        self.put_run(start, 128, 256)
        self.both("put", start + 256 * place + 128, 1)

    @rule(start=far_keys, count=counts, step=st.sampled_from([1, 5, 30, 128, 1000]))
    def put_far(self, start, count, step):
        for offset in range(start, min(start + count * step, 2**63 - 1), step):
            self.both("put", offset, offset)

    @rule(block=st.integers(0, 5), lows=st.permutations(range(128)), keep=st.integers(0, 128))
    def fill_a_block_and_thin_it(self, block, lows, keep):
        for low in lows:
            self.both("put", block * 128 + low, low)
        self.native._check()
        for low in lows[keep:]:
            self.both("remove", block * 128 + low)
        self.look(block * 128 + keep)

    @rule(step=st.integers(2, 40))
    def thin_everything(self, step):
        for offset in list(self.model)[::step]:
            self.both("remove", offset)

    @rule(step=st.integers(2, 40))
    def leave_little(self, step):
        kept = set(list(self.model)[::step])
        self.both("remove_columns", array("q", [key for key in self.model if key not in kept]))

    @rule(offset=keys, is_item=st.booleans())
    def remove(self, offset, is_item):
        self.both("__delitem__" if is_item else "remove", offset)

    @rule(start=keys, count=counts, step=st.sampled_from([-1, 1, 2, 5]))
    def remove_run(self, start, count, step):
        for offset in range(start, start + count * step, step):
            self.both("remove", offset)

    @rule(offsets=st.lists(keys, max_size=200), token=st.integers(0, 2**64 - 200))
    def put_columns(self, offsets, token):
        tokens = array("Q", range(token, token + len(offsets)))
        self.both("put_columns", array("q", offsets), tokens)

    @rule(offsets=st.lists(st.integers(-5, 3000), max_size=200))
    def remove_columns(self, offsets):
        self.both("remove_columns", array("q", offsets))

    @rule(start=st.integers(-1, 3000) | far_keys, n=counts)
    def read_columns(self, start, n):
        columns = self.native.columns(start, n)
        assert [column.format for column in columns] == ["q", "Q"]
        assert [list(one) for one in columns] == [list(one) for one in self.model.columns(start, n)]

    @rule(n=counts)
    def pop_first(self, n):
        self.both("pop_first", n)

    @rule(seldom=st.integers(0, 9))
    def clear(self, seldom):
        if seldom == 0:
            self.both("clear")

    @rule(offset=st.integers(-1, 4000) | far_keys)
    def look(self, offset):
        for operation in ("get", "__getitem__", "__contains__", "floor", "ceiling"):
            self.both(operation, offset)

    @invariant()
    def they_are_alike_and_sound(self):
        self.native._check()
        self.both("__len__")
        self.both("first")
        self.both("last")
        assert list(self.native) == list(self.model)


LEASE = 10
names = st.sampled_from(["a", "b", "c"])
queue_lists = st.lists(st.integers(0, 40).map("q{}".format), max_size=30)


class LockTableMachine(RuleBasedStateMachine):
    """I12: the table of docs/internals/semantics.md#broker-lock-table under any interleaving and
    clock."""

    module = "ordermq.core._cython"

    def __init__(self):
        super().__init__()
        self.table_type = importlib.import_module(self.module).LockTable
        self.table = self.table_type(LEASE, first_epoch=5)
        self.held = {}
        self.next_epoch = 5
        self.now = 0
        self.ids = {}  # what a name's id is, as long as it is known
        self.pins = {}
        self.gone = []  # ids that were forgotten

    def is_live(self, entry):
        return entry is not None and self.now - entry[2] <= LEASE

    @rule(step=st.integers(-8, 25))
    def pass_time(self, step):
        self.now += step

    @rule(group=names, queues=queue_lists, owner=names)
    def try_lock(self, group, queues, owner):
        expected = []
        for queue in queues:
            entry = self.held.get((group, queue))
            if self.is_live(entry) and entry[0] != owner:
                expected.append(0)
                continue
            if self.is_live(entry):
                epoch = entry[1]
            else:
                epoch = self.next_epoch
                self.next_epoch += 1
            self.held[group, queue] = (owner, epoch, self.now)
            expected.append(epoch)
        if self.has_ids([group, owner, *queues]):
            ids = array("Q", [self.ids[queue] for queue in queues])
            epochs = self.table.try_lock_ids(self.ids[group], ids, self.ids[owner], self.now)
            assert epochs.tolist() == expected
        elif len(queues) == 1:
            assert self.table.try_lock(group, queues[0], owner, self.now) == expected[0]
        else:
            assert self.table.try_lock_batch(group, queues, owner, self.now) == expected

    @rule(group=names, queues=queue_lists, owner=names, data=st.data())
    def unlock(self, group, queues, owner, data):
        asked = st.sampled_from([0, 0, self.next_epoch - 1, self.next_epoch - 2])
        epochs = data.draw(st.none() | st.lists(asked, min_size=len(queues), max_size=len(queues)))
        expected = []
        for queue, epoch in zip(queues, epochs or [0] * len(queues), strict=True):
            entry = self.held.get((group, queue))
            expected.append(entry is not None and entry[0] == owner and epoch in (0, entry[1]))
            if expected[-1]:
                del self.held[group, queue]
        if self.has_ids([group, owner, *queues]):
            ids = array("Q", [self.ids[queue] for queue in queues])
            asked = None if epochs is None else array("Q", epochs)
            unlocked = self.table.unlock_ids(self.ids[group], ids, self.ids[owner], asked)
            assert unlocked.tolist() == expected
        elif len(queues) == 1 and epochs is None:
            assert self.table.unlock(group, queues[0], owner) == expected[0]
        else:
            assert self.table.unlock_batch(group, queues, owner, epochs) == expected

    def has_ids(self, wanted):
        return all(name in self.ids for name in wanted)

    @rule(chosen=st.lists(names, max_size=3), queues=queue_lists)
    def intern(self, chosen, queues):
        for name in chosen + queues:
            number = self.table.intern(name)
            assert number not in self.gone
            assert self.ids.setdefault(name, number) == number
            self.pins[name] = self.pins.get(name, 0) + 1

    @rule()
    def intern_all(self):
        self.intern(list("abc"), [f"q{i}" for i in range(41)])

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), times=st.integers(1, 4))
    def release(self, data, times):
        for name in data.draw(st.lists(st.sampled_from(sorted(self.ids)), max_size=40)):
            for _ in range(times):
                expected = None if self.pins[name] else ValueError
                assert outcome(self.table.release, self.ids[name]) is expected
                self.pins[name] = max(self.pins[name] - 1, 0)

    def forget(self):
        used = {name for where, entry in self.held.items() for name in (*where, entry[0])}
        for name in [name for name in self.ids if not self.pins[name] and name not in used]:
            self.gone.append(self.ids.pop(name))
            del self.pins[name]

    @rule()
    def sweep(self):
        expired = {where: e for where, e in self.held.items() if not self.is_live(e)}
        expected = sorted((*where, owner, epoch) for where, (owner, epoch, _) in expired.items())
        assert sorted(self.table.sweep(self.now)) == expected
        for where in expired:
            del self.held[where]
        self.forget()

    @rule()
    def restore_in_place(self):
        rows = self.table.snapshot()
        assert outcome(self.table.restore, [*rows, ("a", "q", "a", 0, 0)], 1) is ValueError
        self.table.restore(rows[::2], 1)
        self.held = {(group, queue): tuple(entry) for group, queue, *entry in rows[::2]}

    @rule(seed=st.integers(0, 100))
    def restart(self, seed):
        rows, next_epoch = self.table.snapshot(), self.table.next_epoch
        self.table = self.table_type(LEASE, first_epoch=seed + 1)
        self.table.restore(rows, next_epoch)
        self.ids, self.pins, self.gone = {}, {}, []
        self.next_epoch = max(self.next_epoch, seed + 1)

    @precondition(lambda self: self.held)
    @rule(owner=names, data=st.data())
    def look(self, owner, data):
        group, queue = data.draw(st.sampled_from(sorted(self.held)))
        entry = self.held[group, queue]
        is_current = self.is_live(entry) and entry[0] == owner
        table, now = self.table, self.now
        assert table.is_current(group, queue, owner, entry[1], now) == is_current
        assert not table.is_current(group, queue, owner, entry[1] + 1, now)

    @invariant()
    def they_are_alike_and_sound(self):
        self.table._check()
        rows = {(group, queue): tuple(entry) for group, queue, *entry in self.table.snapshot()}
        assert rows == self.held
        assert (len(self.table), self.table.next_epoch) == (len(self.held), self.next_epoch)
        for group in "abc":
            live = any(g == group and self.is_live(e) for (g, _), e in self.held.items())
            assert self.table.is_all_expired(group, self.now) == (not live)
        for (group, queue), entry in list(self.held.items())[:5]:
            assert self.table.holder(group, queue) == entry
        for name, number in self.ids.items():
            assert self.table.name_of(number) == name
        for number in self.gone[-5:]:
            assert outcome(self.table.name_of, number) is ValueError


unique_ids = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from([*(b"%d" % number * 8 for number in range(30)), b"long" * 20]),
        st.sampled_from([b"", b"x", b"y"]),
    ),
)


class IdWindowMachine(RuleBasedStateMachine):
    """A message is a copy if one of the window's last `size` offsets has its id and body: a list.

    Ids come with a body: the same id may have another one.
    """

    module = "ordermq.core._cython"

    def __init__(self):
        super().__init__()
        self.core = importlib.import_module(self.module)
        self.start_over(20)

    @rule(size=st.sampled_from([1, 2, 20, 64, 65, 300]))
    def start_over(self, size):
        self.size = size
        self.window = self.core.IdWindow(size)
        self.log = []  # (offset, id)

    @rule()
    def forget(self):
        self.window.clear()
        self.log = []

    @rule(ids=st.lists(unique_ids, max_size=40), gap=st.sampled_from([1, 1, 2, 30, 400]))
    def pull(self, ids, gap):
        start = self.log[-1][0] + gap if self.log else gap
        self.note([(start + place, unique_id) for place, unique_id in enumerate(ids)])

    @rule(count=counts)
    def pull_new(self, count):
        start = self.log[-1][0] + 1 if self.log else 0
        self.note([(offset, (b"new%d" % offset, b"")) for offset in range(start, start + count)])

    @precondition(lambda self: self.log)
    @rule(back=st.integers(0, 40))
    def pull_again(self, back):
        messages = self.log[-back:]
        assert self.drop(messages) == [offset for offset, _ in messages]

    @rule(ids=st.lists(unique_ids, max_size=40), ahead=st.integers(0, 40))
    def pull_too_much(self, ids, ahead):
        start = self.log[-1][0] + 1 if self.log else 0
        self.note([(start + place, one) for place, one in enumerate(ids)], start + ahead)

    def note(self, messages, end=2**63 - 1):
        expected = []
        for offset, unique_id in messages:
            if offset >= end:
                expected.append(offset)
                continue
            near = [name for at, name in self.log[-self.size :] if offset - at <= self.size]
            if unique_id is None or unique_id not in near:
                expected.append(offset)
            self.log.append((offset, unique_id))
        assert self.drop(messages, end) == expected

    def drop(self, messages, end=2**63 - 1):
        index = self.core.MessageIndex(
            b"".join(
                record(offset=offset, properties=b"UNIQ_KEY\x01%s\x02" % named[0], body=named[1])
                if named
                else record(offset=offset)
                for offset, named in messages
            )
        )
        dropped = self.window.drop_copies(index, end)
        offsets = [index.offset_at(row) for row in range(len(index))]
        assert index.columns("offsets")["offsets"].tolist() == offsets
        assert dropped == len(messages) - len(index)
        return offsets

    @invariant()
    def it_is_sound(self):
        self.window._check()
        newest = self.log[-1][0] if self.log else 0
        named = [at for at, name in self.log if name is not None]
        # What is too far back leaves as an id is noted, so the last id counts, not the last offset.
        last = named[-1] if named else newest
        assert len(self.window) == sum(last - at < self.size for at in named)


def cases():
    for name, module in CORES.items():
        for machine in (
            ProcessQueueMachine,
            ColumnsMachine,
            OffsetMapMachine,
            LockTableMachine,
            IdWindowMachine,
        ):
            is_model = name == "reference" and machine in (ProcessQueueMachine, ColumnsMachine)
            if not is_model:
                yield pytest.param(machine, module, id=f"{machine.__name__}-{name}")


@pytest.mark.parametrize(("machine", "module"), list(cases()))
def test_a_core_behaves_as_its_model(machine, module):
    case = type(machine.__name__, (machine,), {"module": module}).TestCase
    case.settings = SETTINGS
    case("runTest").runTest()
