"""The rules I1-I9 of semantics section 11, fed one event after another.

A violation is kept once for each invariant, the first time it happens; checking goes on,
so one defect that breaks several promises names them all. Events of different processes
are compared only where one caused the other or where a lease lies between them: the time
stamp of a broker event and of its effect at a client are not taken at the same instant.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ordermq.audit.history import Event, Histories
from ordermq.audit.ledger import (
    DIVERTED,
    DONE,
    EXISTS,
    STARTED,
    Ledger,
    QueueName,
    StoredQueue,
    Tenure,
)
from ordermq.audit.report import AuditReport, Cause, HandOff, HandOffKind, Holding, Violation
from ordermq.events import EventType

MS = 1_000_000
# A broker takes `t` when it records a grant, some time after it looked at its own clock, so
# a lease seems to end that much later than it did.
RECORDING_DELAY_NS = 5 * MS


@dataclass(slots=True)
class _Process:
    incarnation: int = 0
    closed: bool = False
    crashed: bool = False
    is_broker: bool = False
    last_active: int = 0  # last START or LOCK_OK


@dataclass(slots=True)
class _Change:
    """A hand-off before its end is known."""

    ledger: Ledger
    old: Tenure
    new: Tenure
    cause: Cause
    at: int
    duplicates: int = 0


class Checker:
    """See `ordermq.audit.audit` for the arguments."""

    def __init__(
        self,
        *,
        subscription_tags: Collection[str] | None = None,
        start_offsets: int | Mapping[QueueName, int] | None = None,
        complete: bool = True,
    ) -> None:
        self._tags = None if subscription_tags is None else frozenset(subscription_tags)
        self._starts = start_offsets
        self._complete = complete
        self._found: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._events: Counter[str] = Counter()
        self._processes: dict[str, _Process] = {}
        self._incarnations = 0
        self._stored: dict[tuple[str, str, int], StoredQueue] = {}
        self._ledgers: dict[QueueName, Ledger] = {}
        self._broker_life: Counter[str] = Counter()  # broker name -> incarnations seen
        self._brokers_of: dict[str, set[str]] = {}  # process name, file -> broker names
        self._changes: list[_Change] = []
        self._change_of: dict[Tenure, _Change] = {}
        self._duplicates: Counter[str] = Counter()
        self._crashes = 0
        self._last = 0  # time of the newest event
        self._handlers: dict[str, Callable[[int, int, Event], None]] = {
            EventType.OPEN: self._on_open,
            EventType.CLOSE: self._on_close,
            EventType.CRASH: self._on_crash,
            EventType.STORE: self._on_store,
            EventType.LOCK_OK: self._on_lock_ok,
            EventType.LOCK_LOST: self._on_lock_lost,
            EventType.UNLOCK: self._on_unlock,
            EventType.START: self._on_start,
            EventType.END: self._on_end,
            EventType.COMMIT_SENT: self._on_commit_sent,
            EventType.COMMIT_ACK: self._on_commit_ack,
            EventType.RESET: self._on_reset,
            EventType.ROLLBACK: self._on_rollback,
            EventType.DIVERT: self._on_divert,
        }

    def feed(self, t: int, ref: int, event: Event) -> None:
        """Check the next event of the merged history."""
        self._last = max(self._last, t)
        if "derived" not in event:
            self._events[event["type"]] += 1
        self._handlers[event["type"]](t, ref, event)

    def report(self, histories: Histories) -> AuditReport:
        """What the whole history amounts to. O(messages)."""
        if self._complete:
            self._check_nothing_is_left()
        refs = {ref for _, found in self._found.values() for ref in found if ref >= 0}
        evidence = histories.evidence(refs)
        violations = tuple(
            Violation(invariant, sentence, tuple(evidence[ref] for ref in found if ref >= 0))
            for invariant, (sentence, found) in self._found.items()
        )
        ledgers = self._ledgers.values()
        return AuditReport(
            violations=violations,
            files=tuple(histories.paths),
            lines=histories.lines,
            processes=self._incarnations,
            crashes=self._crashes,
            events=dict(self._events),
            stored=sum(stored.stored for stored in self._stored.values()),
            delivered=sum(ledger.delivered for ledger in ledgers),
            deliveries=sum(ledger.deliveries for ledger in ledgers),
            diverted=sum(ledger.diverted for ledger in ledgers),
            committed=sum(self._committed(ledger) for ledger in ledgers),
            duplicates={cause.value: self._duplicates[cause] for cause in Cause},
            hand_offs=tuple(self._hand_off(change) for change in self._changes),
            holdings=tuple(each for ledger in ledgers for each in self._holdings(ledger)),
        )

    # -- processes ---------------------------------------------------------------------

    def _process(self, event: Event) -> _Process:
        name = event.get("p", "")
        process = self._processes.get(name)
        if process is None:
            process = self._processes[name] = _Process()
        return process

    def _on_open(self, t: int, ref: int, event: Event) -> None:
        process = self._process(event)
        self._incarnations += 1
        process.incarnation += 1
        process.closed = process.crashed = False

    def _on_close(self, t: int, ref: int, event: Event) -> None:
        self._process(event).closed = True

    def _on_crash(self, t: int, ref: int, event: Event) -> None:
        client = event.get("client", "")
        process = self._processes.setdefault(client, _Process())
        if process.crashed:
            return  # told twice: by the missing CLOSE and by the harness
        process.crashed = True
        self._crashes += 1
        for ledger in self._ledgers.values():
            for tenure in ledger.tenures.values():
                if tenure.client != client:
                    continue
                tenure.open.clear()
                ledger.running.discard(tenure)
                if tenure.ended is Cause.NONE:
                    self._end(t, tenure, Cause.CRASH, ref)

    def _broker_speaks(self, event: Event) -> None:
        """Note a broker's life: its lock table dies with it."""
        process = self._process(event)
        life = f"{event.get('p', '')}#{process.incarnation}"
        names = self._brokers_of.setdefault(life, set())
        process.is_broker = True
        name = event.get("broker", "")
        if name not in names:
            names.add(name)
            self._broker_life[name] += 1

    # -- broker ------------------------------------------------------------------------

    def _on_store(self, t: int, ref: int, event: Event) -> None:
        self._broker_speaks(event)
        place = (event.get("topic", ""), event.get("broker", ""), event["queue"])
        stored = self._stored_queue(place)
        offsets, keys = event["offs"], event.get("keys") or ()
        foreign = None
        tags = event.get("tags")
        if self._tags is not None and tags:
            foreign = [tag not in self._tags for tag in tags]
        stored.add(offsets, keys, ref, foreign)
        stored.stored += len(offsets)
        for ledger in self._ledgers.values():
            # A commit may be recorded before a message it covers: nobody may be left behind.
            if ledger.acked > offsets[0] and ledger.name[1:] == place and ledger.started_any:
                self._check_late_store(ledger, stored, offsets, ref)

    def _check_late_store(
        self, ledger: Ledger, stored: StoredQueue, offsets: Sequence[int], ref: int
    ) -> None:
        for offset in offsets:
            if offset >= ledger.acked:
                return
            owed = stored.flags[offset - stored.base] == EXISTS
            if owed and not ledger.is_settled(offset):
                text = f"offset {ledger.acked} is committed, but nobody finished offset {offset}"
                self._violate("I4", ledger, text, ref, ledger.acked_by)

    def _broker_grants(self, t: int, ref: int, event: Event, ledger: Ledger) -> None:
        self._broker_speaks(event)
        client, epoch = event["client"], event.get("epoch", 0)
        life = self._broker_life[ledger.name[2]]
        ledger.broker_seen = True
        # A restarted broker may know no locks, or go on with those it had.
        live = life == ledger.holder_of and t < ledger.holder_until - RECORDING_DELAY_NS
        live = live and ledger.holder != ""
        if live and ledger.holder != client:
            left = (ledger.holder_until - t) / MS
            self._violate(
                "I6",
                ledger,
                f"the broker granted the queue to {client} while the lease of {ledger.holder} "
                f"had {left:.0f} ms to go",
                ledger.holder_ref,
                ref,
            )
        renewed = ledger.holder == client and ledger.holder_epoch == epoch
        tenure = ledger.tenures.get((client, epoch))
        if renewed and tenure is not None:
            tenure.loss = life
            if tenure.lease_end is not None and not tenure.tells_renewals:
                tenure.lease_end = max(tenure.lease_end, t + tenure.lease_ns)
        if not renewed:
            self._check_epoch_rises(ledger, client, epoch, ref)
            ledger.epoch, ledger.epoch_ref = max(epoch, ledger.epoch), ref
        ledger.holder, ledger.holder_epoch, ledger.holder_ref = client, epoch, ref
        ledger.holder_of = life
        ledger.holder_until = t + event.get("lease_ms", 0) * MS

    def _check_epoch_rises(self, ledger: Ledger, client: str, epoch: int, ref: int) -> None:
        if 0 < epoch <= ledger.epoch:
            text = f"{client} got epoch {epoch}, not above {ledger.epoch} of the owner before"
            self._violate("I6", ledger, text, ledger.epoch_ref, ref)

    def _broker_releases(self, event: Event, ledger: Ledger) -> None:
        if event.get("client", ledger.holder) == ledger.holder:
            ledger.holder = ""

    # -- locks -------------------------------------------------------------------------

    def _on_lock_ok(self, t: int, ref: int, event: Event) -> None:
        ledger = self._ledger(event)
        if "client" in event:
            self._broker_grants(t, ref, event, ledger)
            return
        process = self._process(event)
        process.last_active = t
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        if tenure is None or tenure.unlocked is not None:
            tenure = self._begin(t, ref, event, ledger)
        elif tenure.ended is Cause.NONE:
            tenure.loss = self._broker_life[ledger.name[2]]
        tenure.lease_ns = event.get("lease_ms", 0) * MS
        tenure.tells_renewals = tenure.lease_end is not None
        end = event.get("sent", t) + tenure.lease_ns
        if tenure.lease_end is None or end > tenure.lease_end:
            tenure.lease_end = end
            tenure.granted_by = ref
        if tenure is ledger.current and tenure.ended is not Cause.NONE:
            # Given up here and got back while the broker still had it as ours: the epoch is
            # the same, but the member begins again at the committed offset.
            tenure.generation = ledger.begin_generation(tenure.ended)
            tenure.ended, tenure.ended_at = Cause.NONE, None
            _reopen(tenure, max(tenure.acked, ledger.acked))

    def _begin(self, t: int, ref: int, event: Event, ledger: Ledger) -> Tenure:
        client, epoch = event["p"], event.get("epoch", 0)
        old = ledger.current
        generation = len(ledger.causes) - 1
        cause = Cause.NONE
        if old is not None:
            cause = self._why_it_ended(old, ledger)
            held = cause is Cause.HAND_OFF and old.held
            if old.ended is Cause.NONE and old.client != client and not ledger.broker_seen:
                self._check_old_lease(t, ref, ledger, old, client)
            generation = ledger.begin_generation(Cause.ROLLBACK if held else cause)
        if not ledger.broker_seen:
            self._check_epoch_rises(ledger, client, epoch, ref)
            ledger.epoch, ledger.epoch_ref = max(epoch, ledger.epoch), ref
        tenure = Tenure(client, epoch, generation, ref, t)
        tenure.loss = self._broker_life[ledger.name[2]]
        if old is not None and old.client != client:
            change = _Change(ledger, old, tenure, cause, t)
            self._changes.append(change)
            self._change_of[tenure] = change
        ledger.tenures[client, epoch] = ledger.current = tenure
        return tenure

    def _why_it_ended(self, old: Tenure, ledger: Ledger) -> Cause:
        if old.ended in (Cause.HAND_OFF, Cause.CRASH):
            return old.ended
        if old.loss != self._broker_life[ledger.name[2]]:
            return Cause.BROKER
        return Cause.LEASE

    def _check_old_lease(self, t: int, ref: int, ledger: Ledger, old: Tenure, client: str) -> None:
        if old.lease_end is None or t >= old.lease_end or self._lost_with_broker(old, ledger):
            return
        left = (old.lease_end - t) / MS
        text = f"{client} holds the queue while the lease of {old.client} has {left:.0f} ms to go"
        self._violate("I6", ledger, text, old.granted_by, ref)

    def _lost_with_broker(self, tenure: Tenure, ledger: Ledger) -> bool:
        return tenure.loss != self._broker_life[ledger.name[2]]

    def _on_lock_lost(self, t: int, ref: int, event: Event) -> None:
        ledger = self._ledger(event)
        if "client" in event or self._process(event).is_broker:
            return  # the lease it was granted for decides, not what the broker thinks later
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        if tenure is None:  # a loss is told without the epoch
            mine = [each for each in ledger.tenures.values() if each.client == event["p"]]
            tenure = mine[-1] if mine else None
        if tenure is not None and tenure.ended is Cause.NONE:
            broker = self._lost_with_broker(tenure, ledger)
            self._end(t, tenure, Cause.BROKER if broker else Cause.LEASE, ref)

    def _on_unlock(self, t: int, ref: int, event: Event) -> None:
        ledger = self._ledger(event)
        if "client" in event or self._process(event).is_broker:
            self._broker_releases(event, ledger)
            return
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        if tenure is None:
            return
        tenure.unlocked = t
        if tenure.ended is not Cause.NONE:
            return
        if tenure.lease_end is not None and t > tenure.lease_end:
            # Too late to commit, and nothing left to protect: the lease ended before.
            self._end(t, tenure, Cause.LEASE, ref)
            return
        for started, offsets, _ in tenure.open.values():
            text = f"{tenure.client} unlocked while its listener ran on {_offsets(offsets)}"
            self._violate("I9", ledger, text, started, ref)
            break
        owed = tenure.watermark()
        if owed > max(tenure.acked, ledger.acked):
            text = f"{tenure.client} unlocked without an acknowledged commit of {owed}"
            self._violate("I9", ledger, text, self._done_by(ledger, owed - 1), ref)
        self._end(t, tenure, Cause.HAND_OFF, ref)

    def _end(self, t: int, tenure: Tenure, cause: Cause, ref: int) -> None:
        tenure.ended, tenure.ended_by, tenure.ended_at = cause, ref, t

    # -- consuming ---------------------------------------------------------------------

    def _on_start(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        process = self._process(event)
        process.last_active = t
        ledger.started_any = True
        stored.add(offsets, keys, ref)
        ledger.cover(min(offsets), max(offsets))
        if event.get("epoch", 0) <= 0:  # concurrent and broadcasting consumers hold nothing
            for offset in offsets:
                ledger.flags[offset - ledger.base] |= STARTED
            return
        tenure = self._tenure(t, ref, event, ledger)
        if event.get("lane"):
            ledger.by_key = True
        self._check_lease(t, ref, ledger, tenure, f"a listener started on {_offsets(offsets)}")
        self._check_serial(t, ref, ledger, tenure, offsets, keys)
        if not ledger.by_key:
            self._check_queue_order(ref, ledger, tenure, offsets, event.get("attempt", 0))
        self._check_messages(ref, ledger, stored, tenure, offsets)
        if tenure.first_start is None:
            tenure.first_start = t
        tenure.last_active = t
        tenure.open[offsets[0]] = (ref, offsets, keys)
        ledger.running.add(tenure)

    def _tenure(self, t: int, ref: int, event: Event, ledger: Ledger) -> Tenure:
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        return self._begin(t, ref, event, ledger) if tenure is None else tenure

    def _check_lease(self, t: int, ref: int, ledger: Ledger, tenure: Tenure, what: str) -> None:
        if tenure.lease_end is None:
            text = f"{what} of epoch {tenure.epoch}, which {tenure.client} was never granted"
            self._violate("I7", ledger, text, ref)
        elif t > tenure.lease_end:
            late = (t - tenure.lease_end) / MS
            text = f"{what} {late:.0f} ms after the lease of epoch {tenure.epoch} ended"
            self._violate("I7", ledger, text, tenure.granted_by, ref)
        elif tenure.unlocked is not None:
            text = f"{what} after {tenure.client} had unlocked epoch {tenure.epoch}"
            self._violate("I7", ledger, text, tenure.ended_by, ref)

    def _check_serial(
        self,
        t: int,
        ref: int,
        ledger: Ledger,
        tenure: Tenure,
        offsets: Sequence[int],
        keys: Sequence[str | None],
    ) -> None:
        for other in ledger.running:
            for started, running, running_keys in other.open.values():
                if ledger.by_key and not _share_key(keys, running_keys):
                    continue
                if other is not tenure and self._ended_by_loss(t, other, ledger):
                    continue
                text = (
                    f"{tenure.client} (epoch {tenure.epoch}) started {_offsets(offsets)} while "
                    f"{other.client} (epoch {other.epoch}) ran {_offsets(running)}"
                )
                self._violate("I2", ledger, text, started, ref)

    def _ended_by_loss(self, t: int, tenure: Tenure, ledger: Ledger) -> bool:
        """Whether a tenure is over by expiry, crash or broker loss, so that it may overlap."""
        if tenure.ended is Cause.HAND_OFF:
            return False
        if tenure.ended is not Cause.NONE or self._lost_with_broker(tenure, ledger):
            return True
        return tenure.lease_end is not None and t >= tenure.lease_end

    def _check_queue_order(
        self, ref: int, ledger: Ledger, tenure: Tenure, offsets: Sequence[int], attempt: int
    ) -> None:
        first = offsets[0]
        reopened = tenure.reopened is not None and first >= tenure.reopened
        if first < tenure.started and not reopened:
            text = f"offset {first} started after {tenure.started}, and nothing re-opened it"
            self._violate("I1", ledger, text, tenure.started_by, ref)
        elif attempt == 0 and first <= tenure.started_first:
            text = (
                f"offset {first} started as a first attempt after the first attempt of "
                f"{tenure.started_first} in the same epoch"
            )
            self._violate("I1", ledger, text, tenure.started_by, ref)
        elif any(one >= other for one, other in itertools.pairwise(offsets)):
            text = f"a batch is not ascending: {_offsets(offsets)}"
            self._violate("I1", ledger, text, ref)
        if attempt == 0:
            tenure.started_first = max(tenure.started_first, first)
        tenure.started, tenure.started_by = offsets[-1], ref
        tenure.reopened = None

    def _check_messages(
        self,
        ref: int,
        ledger: Ledger,
        stored: StoredQueue,
        tenure: Tenure,
        offsets: Sequence[int],
    ) -> None:
        flags, base, lowest = ledger.flags, ledger.base, offsets[0]
        before, shift = stored.before, stored.base
        batch: set[int] | None = None
        for offset in offsets:
            i = offset - base
            if flags[i] & DONE:
                self._check_repeat(ref, ledger, tenure, offset)
            flags[i] |= STARTED
            earlier = before[offset - shift]
            if earlier < 0 or (earlier >= base and flags[earlier - base] & (DONE | DIVERTED)):
                continue
            if earlier >= lowest:  # in the same call, so done before it, or left out
                batch = set(offsets) if batch is None else batch
                if earlier in batch:
                    continue
            if not ledger.is_settled(earlier):
                text = f"offset {offset} started before offset {earlier} of the same key was done"
                self._violate("I3", ledger, text, stored.refs[earlier - shift], ref)

    def _check_repeat(self, ref: int, ledger: Ledger, tenure: Tenure, offset: int) -> None:
        i = offset - ledger.base
        done_by = ledger.done_by[i]
        cause = ledger.cause_between(ledger.done_in[i], tenure.generation)
        if cause in (Cause.NONE, Cause.HAND_OFF):
            text = f"offset {offset} started again after it was done: {cause.value}"
            self._violate("I5", ledger, text, done_by, ref)
        elif offset < ledger.acked:
            text = f"offset {offset} started again below the committed offset {ledger.acked}"
            self._violate("I5", ledger, text, done_by, ledger.acked_by, ref)

    def _on_end(self, t: int, ref: int, event: Event) -> None:
        ledger = self._ledger(event)
        offsets, done = event["offs"], event["done"]
        ledger.cover(min(offsets), max(offsets))
        ordered = event.get("epoch", 0) > 0
        tenure = self._tenure(t, ref, event, ledger) if ordered else None
        if tenure is not None:
            if tenure.open.pop(offsets[0], None) is None:
                text = f"a listener ended on {_offsets(offsets)} without having started there"
                self._violate("I2", ledger, text, ref)
            if not tenure.open:
                ledger.running.discard(tenure)
            tenure.last_active = t
            tenure.failed.difference_update(offsets[:done])
            if done < len(offsets):
                tenure.failed.update(offsets[done:])
                tenure.reopened = offsets[done]
            # With manual commit a batch counts once the listener says COMMIT (semantics 4.4).
            held = event.get("detail") == "HOLD" or (tenure.held and done < len(offsets))
            tenure.held = bool(held)
            if done > 0 and not held:
                tenure.done_next = max(tenure.done_next, offsets[done - 1] + 1)
        flags, base = ledger.flags, ledger.base
        generation = tenure.generation if tenure is not None else len(ledger.causes) - 1
        for offset in offsets[:done]:
            i = offset - base
            if flags[i] & DONE:
                cause = ledger.cause_between(ledger.done_in[i], generation)
                self._duplicates[cause] += 1
                if tenure in self._change_of:
                    self._change_of[tenure].duplicates += 1
                if generation < ledger.done_in[i]:
                    continue  # a stopped member's late END; the newer one counts
            else:
                flags[i] |= DONE
                ledger.delivered += 1
            ledger.done_by[i] = ref
            ledger.done_in[i] = generation
        ledger.deliveries += max(done, 0)

    def _on_rollback(self, t: int, ref: int, event: Event) -> None:
        ledger = self._ledger(event)
        tenure = self._tenure(t, ref, event, ledger)
        if tenure is ledger.current:
            tenure.generation = ledger.begin_generation(Cause.ROLLBACK)
        _reopen(tenure, max(tenure.acked, ledger.acked))

    def _on_divert(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        stored.add(offsets, keys, ref)
        ledger.cover(min(offsets), max(offsets))
        batch = set(offsets)
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        for offset in offsets:
            earlier = stored.before[offset - stored.base]
            if earlier >= 0 and earlier not in batch and not ledger.is_settled(earlier):
                text = f"offset {offset} was diverted before offset {earlier} of the same key"
                self._violate("I3", ledger, text, stored.refs[earlier - stored.base], ref)
            i = offset - ledger.base
            if not ledger.flags[i] & DIVERTED:
                ledger.flags[i] |= DIVERTED
                ledger.diverted += 1
        if tenure is not None:
            tenure.failed -= batch
            tenure.done_next = max(tenure.done_next, offsets[-1] + 1)

    # -- commits -----------------------------------------------------------------------

    def _on_commit_sent(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._both(event)
        offset = event["off"]
        self._note_start(ledger, offset)
        if event.get("epoch", 0) <= 0:
            ledger.tenures.setdefault(
                (event["p"], 0), Tenure(event["p"], 0, len(ledger.causes) - 1, ref, t)
            ).commits[offset] = (ref, ledger.first_missing(stored, offset), -1)
            return
        tenure = self._tenure(t, ref, event, ledger)
        self._check_lease(t, ref, ledger, tenure, f"a commit of {offset} was sent")
        current = ledger.current
        newer = -1 if current is None or current is tenure else current.granted_by
        tenure.commits[offset] = (ref, ledger.first_missing(stored, offset), newer)

    def _on_commit_ack(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._both(event)
        offset, epoch = event["off"], event.get("epoch", 0)
        by_broker = "client" in event or self._process(event).is_broker
        client = event.get("client", "") if by_broker else event["p"]
        if by_broker:
            self._broker_speaks(event)
            ledger.broker_seen = True
        tenure = ledger.tenures.get((client, epoch))
        if tenure is not None:
            tenure.acked = max(tenure.acked, offset)
        if by_broker != ledger.broker_seen:
            return  # one acknowledgement, told by the broker and then by the client
        self._note_start(ledger, offset)
        sent, missing, newer = ref, -1, -1
        if tenure is not None and offset in tenure.commits:
            sent, missing, newer = tenure.commits.pop(offset)
        elif ledger.started_any:
            missing = ledger.first_missing(stored, offset)
        if missing >= 0 and (ledger.started_any or tenure is not None):
            text = f"offset {offset} is committed, but nobody finished offset {missing}"
            self._violate("I4", ledger, text, stored.refs[missing - stored.base], sent, ref)
        if offset < ledger.acked:
            text = f"{client} moved the committed offset back from {ledger.acked} to {offset}"
            self._violate("I8", ledger, text, ledger.acked_by, ref)
        if by_broker and 0 < epoch < ledger.epoch:
            newer = ledger.epoch_ref
        if newer >= 0:
            text = f"a commit of epoch {epoch} was accepted after a newer epoch was granted"
            self._violate("I8", ledger, text, newer, ref)
        ledger.acked, ledger.acked_by = offset, ref

    def _note_start(self, ledger: Ledger, offset: int) -> None:
        """A group's first commit before its first START says where it begins (semantics 7)."""
        if ledger.start is None and self._starts is None and not ledger.started_any:
            ledger.start = offset

    def _on_reset(self, t: int, ref: int, event: Event) -> None:
        if event.get("group"):
            ledgers = [self._ledger(event)]
        else:
            place = (event.get("topic", ""), event.get("broker", ""), event["queue"])
            ledgers = [each for each in self._ledgers.values() if each.name[1:] == place]
        for ledger in ledgers:
            offset = event["off"]
            if ledger.start is None and self._starts is None and not ledger.started_any:
                ledger.start = offset
            ledger.skipped_to = max(ledger.skipped_to, offset)
            ledger.acked, ledger.acked_by = offset, ref
            tenure = ledger.current
            if tenure is not None:
                tenure.generation = ledger.begin_generation(Cause.RESET)
                _reopen(tenure, offset)
                tenure.acked = offset

    # -- the end -----------------------------------------------------------------------

    def _check_nothing_is_left(self) -> None:
        consumed = {each.name[:2] for each in self._ledgers.values() if each.started_any}
        for group, topic in sorted(consumed):
            for place, stored in self._stored.items():
                if place[0] != topic:
                    continue
                ledger = self._ledgers.get((group, *place)) or self._new_ledger((group, *place))
                missing = ledger.first_missing(stored, stored.base + len(stored.flags))
                if missing >= 0:
                    text = f"the run is over and nobody finished offset {missing}"
                    self._violate("I4", ledger, text, stored.refs[missing - stored.base])

    def _committed(self, ledger: Ledger) -> int:
        stored = self._stored.get(ledger.name[1:])
        if stored is None:
            return 0
        low = max(ledger.start or 0, stored.base)
        if ledger.acked <= low:
            return 0
        return stored.flags[low - stored.base : ledger.acked - stored.base].count(EXISTS)

    def _holdings(self, ledger: Ledger) -> Iterator[Holding]:
        ordered = sorted(ledger.tenures.values(), key=lambda each: each.since)
        for place, tenure in enumerate(ordered):
            if tenure.epoch <= 0:
                continue
            follower = ordered[place + 1].since if place + 1 < len(ordered) else self._last
            until = min(follower, follower if tenure.ended_at is None else tenure.ended_at)
            group, topic, broker, queue = ledger.name
            yield Holding(
                group, topic, broker, queue, tenure.client, tenure.epoch, tenure.since, until
            )

    def _hand_off(self, change: _Change) -> HandOff:
        old, new = change.old, change.new
        process = self._processes.get(old.client, _Process())
        unlocked = old.unlocked if change.cause is Cause.HAND_OFF else None
        left = unlocked is not None and process.closed and process.last_active < unlocked
        kind = {
            Cause.HAND_OFF: HandOffKind.LEAVE if left else HandOffKind.JOIN,
            Cause.CRASH: HandOffKind.CRASH,
            Cause.BROKER: HandOffKind.BROKER,
        }.get(change.cause, HandOffKind.EXPIRY)
        group, topic, broker, queue = change.ledger.name
        quiet = new.first_start is not None and old.last_active is not None
        return HandOff(
            group=group,
            topic=topic,
            broker=broker,
            queue=queue,
            old=old.client,
            new=new.client,
            kind=kind,
            at_ns=change.at,
            unlock_to_lock_ms=None if unlocked is None else (change.at - unlocked) / MS,
            silence_ms=(new.first_start - old.last_active) / MS if quiet else None,  # type: ignore[operator]
            duplicates=change.duplicates,
        )

    # -- small things ------------------------------------------------------------------

    def _stored_queue(self, place: tuple[str, str, int]) -> StoredQueue:
        stored = self._stored.get(place)
        if stored is None:
            stored = self._stored[place] = StoredQueue()
        return stored

    def _ledger(self, event: Event) -> Ledger:
        name = (
            event.get("group", ""),
            event.get("topic", ""),
            event.get("broker", ""),
            event["queue"],
        )
        return self._ledgers.get(name) or self._new_ledger(name)

    def _new_ledger(self, name: QueueName) -> Ledger:
        ledger = self._ledgers[name] = Ledger(name)
        if isinstance(self._starts, int):
            ledger.start = self._starts
        elif self._starts is not None:
            ledger.start = self._starts.get(name)
        return ledger

    def _both(self, event: Event) -> tuple[Ledger, StoredQueue]:
        ledger = self._ledger(event)
        return ledger, self._stored_queue(ledger.name[1:])

    def _done_by(self, ledger: Ledger, offset: int) -> int:
        i = offset - ledger.base
        return ledger.done_by[i] if 0 <= i < len(ledger.done_by) else -1

    def _violate(self, invariant: str, ledger: Ledger, text: str, *refs: int) -> None:
        if invariant not in self._found:
            group, topic, broker, queue = ledger.name
            place = f"group {group!r}, {topic}@{broker}/{queue}"
            self._found[invariant] = (f"{text} [{place}]", tuple(dict.fromkeys(refs)))


def _reopen(tenure: Tenure, to: int) -> None:
    tenure.reopened = 0
    tenure.started = tenure.started_first = -1
    tenure.failed.clear()
    tenure.done_next = to


def _offsets(offsets: Sequence[int]) -> str:
    if len(offsets) == 1:
        return f"offset {offsets[0]}"
    return f"offsets {offsets[0]}..{offsets[-1]}"


def _share_key(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(key and key in other for key in one)
