"""Every core's lane map compared with the reference, step by step, and each start with the rules.

The rules (`Audit`) are written here once more from docs/internals/semantics.md#key-lanes and the
key clauses of I2
and I3, over the events alone, so that the reference is checked too.
"""

import importlib
from array import array

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ordermq.core import reference
from ordermq.core.status import NO_KEY
from ordermq.errors import StateError

CORES = {
    "cython": "ordermq.core._cython",
    "cffi": "ordermq.core.cffi_binding",
    "reference": "ordermq.core.reference",
}
SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
STATE = (
    "watermark",
    "next_offset",
    "is_full",
    "message_count",
    "in_flight_count",
    "old_flight_count",
    "ready_count",
    "key_count",
    "parked_count",
    "duplicates_ignored",
)

# A few keys that meet often; empty, text, and longer than C keeps in a lane.
names = st.sampled_from([b"", b"a", b"b", "ä", "k" * 40, b"k" * 41])
keys = st.one_of(st.none(), names, names, names)
steps = st.integers(1, 3)


class Audit:
    """Deliveries so far, and what may start next to them."""

    def __init__(self, max_in_flight, max_ahead, has_barriers):
        self.max_in_flight, self.max_ahead = max_in_flight, max_ahead
        self.has_barriers = has_barriers
        self.keys = {}  # offset -> key of what is delivered and not done
        self.contents = {}
        self.flights = []  # (offset, key, how), how: taken, diverted, old
        self.parked = set()
        self.next_offset = 0

    @property
    def watermark(self):
        return min(self.keys, default=self.next_offset)

    def start(self, offset, content, how):
        key = self.keys[offset]
        assert content == self.contents[offset]
        waiting = set(self.keys) - {o for o, _, kind in self.flights if kind != "old"}
        assert offset in waiting, "in flight twice"
        before = {o for o in self.keys if o < offset}
        same_key = [flight for flight in self.flights if flight[1] == key]
        if how == "taken":
            assert not same_key, "two of a key in flight"
            assert key not in self.parked, "a parked key was taken"
            assert not any(self.keys[o] == key for o in before), "key order (I3)"
        else:
            assert key in self.parked, "diverted, but not parked"
            assert all(kind == "diverted" for _, _, kind in same_key)
            assert all(o < offset for o, _, _ in same_key), "diverted past one in flight"
            assert not any(self.keys[o] == key for o in before & waiting), "key order (I3)"
        assert all(o != offset for o, _, _ in self.flights), "an old flight of the offset"
        if self.has_barriers:
            assert not any(self.keys[o] is None for o in before), "past a barrier"
            assert all(k is not None for _, k, _ in self.flights), "while a barrier runs"
            assert key is not None or not (before or self.flights), "a barrier too early"
        assert offset - self.watermark <= self.max_ahead
        self.flights.append((offset, key, how))
        assert len(self.flights) <= self.max_in_flight

    def end(self, offset, is_done):
        flight = min((f for f in self.flights if f[0] == offset), key=lambda f: f[2] != "old")
        self.flights.remove(flight)
        if is_done and flight[2] != "old":
            del self.keys[offset], self.contents[offset]

    def reset(self, next_offset):
        self.flights = [(offset, key, "old") for offset, key, _ in self.flights]
        self.keys.clear()
        self.contents.clear()
        self.next_offset = next_offset


def outcome(call, *arguments):
    """Result of a call, or the type of what it raises."""
    try:
        return call(*arguments)
    except (ValueError, StateError) as failure:
        return type(failure)


def named(key):
    return key.encode() if isinstance(key, str) else key


class LaneMachine(RuleBasedStateMachine):
    module = "ordermq.core._cython"
    shape = "objects"

    @initialize(
        max_in_flight=st.one_of(st.integers(1, 4), st.just(100)),
        max_ahead=st.one_of(st.integers(1, 12), st.just(10_000)),
        keyless=st.sampled_from(["barrier", "lane"]),
    )
    def make(self, max_in_flight, max_ahead, keyless):
        options = {"max_in_flight": max_in_flight, "max_ahead": max_ahead, "keyless": keyless}
        self.native = importlib.import_module(self.module).LaneMap("n", **options)
        self.model = reference.LaneMap("m", **options)
        self.audit = Audit(max_in_flight, max_ahead, keyless == "barrier")
        self.added = 0
        self.has_shape = False

    def both(self, operation, *arguments):
        native = outcome(getattr(self.native, operation), *arguments)
        model = outcome(getattr(self.model, operation), *arguments)
        if operation.endswith("_columns") and isinstance(model, tuple):
            native, model = ([column.tolist() for column in pair] for pair in (native, model))
            native, model = list(zip(*native, strict=True)), list(zip(*model, strict=True))
        assert native == model, (operation, arguments)
        return model

    def deliver(self, rows):
        """Both shapes; rows are (offset, key)."""
        messages = [(offset, key, self.added + i) for i, (offset, key) in enumerate(rows)]
        self.added += len(rows)
        if self.shape == "objects":
            return self.both("add", messages)
        blob, positions, sizes = b"..", [], []
        for _, key, _ in messages:
            name = named(key) or b""
            positions.append(len(blob))
            sizes.append(NO_KEY if key is None else len(name))
            blob += name
        columns = array("q", [o for o, _, _ in messages]), array("Q", [m for _, _, m in messages])
        return self.both("add_columns", *columns, blob, array("I", positions), array("I", sizes))

    @rule(new=st.lists(st.tuples(steps, keys), max_size=12), again=st.integers(0, 5))
    def add(self, new, again):
        audit = self.audit
        at = max(audit.next_offset - again, 0)
        rows = []
        for step, key in new:
            rows.append((at, key))
            at += step
        first = self.added
        fresh = [
            (offset, key, first + i)
            for i, (offset, key) in enumerate(rows)
            if offset >= audit.next_offset
        ]
        assert self.deliver(rows) == len(fresh)
        self.has_shape = True
        for offset, key, content in fresh:
            audit.keys[offset] = named(key)
            audit.contents[offset] = content
            audit.next_offset = offset + 1

    @rule(count=st.integers(60, 140), several=st.integers(1, 30))
    def add_many(self, count, several):
        self.add([(1, b"%d" % (i % several)) for i in range(count)], 0)

    @rule(offset=st.sampled_from([-1, 2**63 - 1, 2**70]))
    def add_out_of_range(self, offset):
        if self.shape == "objects":
            arguments = [(self.audit.next_offset, "a", 1), (offset, "b", 2)]
            assert self.both("add", arguments) is ValueError
        assert self.deliver([(self.audit.next_offset + 1, "a")] * 2) is ValueError

    @rule(n=st.one_of(st.integers(0, 5), st.just(200)))
    def take(self, n):
        taken = self.both("take" if self.shape == "objects" else "take_columns", n)
        for offset, content in taken if n else []:
            self.audit.start(offset, content, "taken")

    @rule(key=names, n=st.one_of(st.integers(0, 4), st.just(200)))
    def divert(self, key, n):
        suffix = "" if self.shape == "objects" else "_columns"
        taken = self.both(f"divert{suffix}", key, n)
        for offset, content in taken if n else []:
            self.audit.start(offset, content, "diverted")

    @precondition(lambda self: self.audit.flights)
    @rule(data=st.data(), operation=st.sampled_from(["done", "done", "done", "failed"]))
    def end_some(self, data, operation):
        flights = sorted({offset for offset, _, _ in self.audit.flights})
        for offset in data.draw(st.lists(st.sampled_from(flights), unique=True, max_size=6)):
            assert self.both(operation, offset) is True
            self.audit.end(offset, operation == "done")

    @rule(offset=st.integers(-1, 300), operation=st.sampled_from(["done", "failed"]))
    def end_any(self, offset, operation):
        ended = self.both(operation, offset)
        assert ended == any(flight[0] == offset for flight in self.audit.flights)
        if ended:
            self.audit.end(offset, operation == "done")

    @rule(key=names, operation=st.sampled_from(["park", "unpark", "unpark"]))
    def park(self, key, operation):
        changed = self.both(operation, key)
        assert changed == ((named(key) in self.audit.parked) == (operation == "unpark"))
        (self.audit.parked.add if operation == "park" else self.audit.parked.discard)(named(key))

    @rule(seldom=st.integers(0, 3), back=st.integers(0, 20))
    def reset(self, seldom, back):
        if seldom == 0:
            next_offset = max(self.audit.watermark - back, 0)
            self.both("reset", next_offset)
            self.audit.reset(next_offset)

    @rule()
    def drain(self):
        """Whatever the state, nothing is stuck, and an idle map holds no key."""
        for key in list(self.audit.parked):
            self.park(key, "unpark")
        for _ in range(2 * len(self.audit.keys) + len(self.audit.flights) + 1):
            for offset, _, _ in list(self.audit.flights):
                assert self.both("done", offset)
                self.audit.end(offset, is_done=True)
            self.take(200)
        assert not self.audit.keys
        assert (self.native.key_count, self.native.watermark) == (0, self.audit.next_offset)

    @invariant()
    def they_are_alike_and_sound(self):
        self.native._check()
        self.model._check()
        for name in STATE:
            assert getattr(self.native, name) == getattr(self.model, name), name
        assert self.native.watermark == self.audit.watermark
        assert self.native.message_count == len(self.audit.keys)
        for key in (b"", b"a", "ä"):
            assert self.native.is_parked(key) == (named(key) in self.audit.parked)


class LaneColumnsMachine(LaneMachine):
    """The same in columns; the names of the other shape are refused."""

    shape = "columns"

    @rule(data=st.data())
    def done_columns(self, data):
        flights = sorted({offset for offset, _, _ in self.audit.flights} | {10**6})
        ended = data.draw(st.lists(st.sampled_from(flights), unique=True, max_size=8))
        count = sum(any(flight[0] == offset for flight in self.audit.flights) for offset in ended)
        assert self.both("done_columns", array("q", ended)) == count
        for offset in set(ended) - {10**6}:
            self.audit.end(offset, is_done=True)

    @precondition(lambda self: self.has_shape)
    @rule()
    def refuse_objects(self):
        for call in (("add", []), ("take", 1), ("divert", "a", 1)):
            assert self.both(*call) is StateError


def cases():
    for name, module in CORES.items():
        for machine in (LaneMachine, LaneColumnsMachine):
            yield pytest.param(machine, module, id=f"{machine.__name__}-{name}")


@pytest.mark.parametrize(("machine", "module"), list(cases()))
def test_a_lane_map_behaves_as_its_model(machine, module):
    case = type(machine.__name__, (machine,), {"module": module}).TestCase
    case.settings = SETTINGS
    case("runTest").runTest()
