"""What listeners are given, in which order: I1, I2, I3 and I5."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ordermq.audit.history import Event
from ordermq.audit.ledger import DIVERTED, DONE, PARKED, STARTED, Ledger, StoredQueue, Tenure
from ordermq.audit.report import Cause
from ordermq.audit.run import Run, named
from ordermq.audit.tenures import TenureRules


class BatchRules:
    """Follows START, END, ROLLBACK and DIVERT."""

    def __init__(self, run: Run, tenures: TenureRules) -> None:
        self._run = run
        self._tenures = tenures
        self.duplicates: Counter[str] = Counter()  # by cause

    def on_start(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._run.both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        process = self._run.process(event)
        process.last_active = t
        ledger.started_any = True
        stored.add(offsets, keys, ref)
        ledger.cover(min(offsets), max(offsets))
        if event.get("epoch", 0) <= 0:  # concurrent consumers hold nothing
            ledger.is_unlocked = True
            for offset in offsets:
                ledger.flags[offset - ledger.base] |= STARTED
            return
        tenure = self._tenures.tenure_of(t, ref, event, ledger)
        if event.get("lane"):
            ledger.by_key = True
            self._check_lanes(ref, ledger, tenure, offsets, event["lane"])
        self._tenures.check_lease(t, ref, ledger, tenure, f"a listener started on {named(offsets)}")
        self._check_serial(t, ref, ledger, tenure, offsets, keys)
        if not ledger.by_key:
            self._check_queue_order(ref, ledger, tenure, offsets, event.get("attempt", 0))
        self._check_messages(ref, ledger, stored, tenure, offsets)
        if tenure.first_start is None:
            tenure.first_start = t
        tenure.last_active = t
        tenure.open[offsets[0]] = (ref, offsets, keys)
        ledger.running.add(tenure)

    def on_end(self, t: int, ref: int, event: Event) -> None:
        ledger = self._run.ledger(event)
        offsets, done = event["offs"], event["done"]
        ledger.cover(min(offsets), max(offsets))
        ordered = event.get("epoch", 0) > 0
        tenure = self._tenures.tenure_of(t, ref, event, ledger) if ordered else None
        if tenure is not None:
            if tenure.open.pop(offsets[0], None) is None:
                text = f"a listener ended on {named(offsets)} without having started there"
                self._run.violate("I2", ledger, text, ref)
            if not tenure.open:
                ledger.running.discard(tenure)
            tenure.last_active = t
            tenure.failed.difference_update(offsets[:done])
            if done < len(offsets):
                tenure.failed.update(offsets[done:])
                tenure.reopened = offsets[done]
            # With manual commit a batch counts once the listener says COMMIT
            # (docs/internals/semantics.md#listener-results).
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
                if ledger.is_unlocked and cause is Cause.NONE:
                    cause = Cause.UNLOCKED
                self.duplicates[cause] += 1
                if tenure in self._tenures.change_of:
                    self._tenures.change_of[tenure].duplicates += 1
                if generation < ledger.done_in[i]:
                    continue  # a stopped member's late END; the newer one counts
            else:
                flags[i] |= DONE
                ledger.delivered += 1
            ledger.done_by[i] = ref
            ledger.done_in[i] = generation
        ledger.deliveries += max(done, 0)

    def on_rollback(self, t: int, ref: int, event: Event) -> None:
        ledger = self._run.ledger(event)
        tenure = self._tenures.tenure_of(t, ref, event, ledger)
        if tenure is ledger.current:
            tenure.generation = ledger.begin_generation(Cause.ROLLBACK)
        tenure.reopen(max(tenure.acked, ledger.acked))

    def on_divert(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._run.both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        stored.add(offsets, keys, ref)
        ledger.cover(min(offsets), max(offsets))
        batch = set(offsets)
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        for offset in offsets:
            earlier = stored.before[offset - stored.base]
            ordered = not ledger.is_unlocked
            if ordered and earlier >= 0 and earlier not in batch and not ledger.is_settled(earlier):
                text = f"offset {offset} was diverted before offset {earlier} of the same key"
                self._run.violate("I3", ledger, text, stored.refs[earlier - stored.base], ref)
            i = offset - ledger.base
            if event.get("detail") == "PARKED":
                ledger.flags[i] |= PARKED
            if not ledger.flags[i] & DIVERTED:
                ledger.flags[i] |= DIVERTED
                ledger.diverted += 1
        if tenure is not None:
            tenure.failed -= batch
            tenure.done_next = max(tenure.done_next, offsets[-1] + 1)

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
                if other is not tenure and self._tenures.ended_by_loss(t, other, ledger):
                    continue
                text = (
                    f"{tenure.client} (epoch {tenure.epoch}) started {named(offsets)} while "
                    f"{other.client} (epoch {other.epoch}) ran {named(running)}"
                )
                self._run.violate("I2", ledger, text, started, ref)

    def _check_lanes(
        self, ref: int, ledger: Ledger, tenure: Tenure, offsets: Sequence[int], most: int
    ) -> None:
        running = sum(len(each) for _, each, _ in tenure.open.values())
        if running + len(offsets) > most:
            text = f"{named(offsets)} started beside {running} others; at most {most} may run"
            self._run.violate("I2", ledger, text, ref)

    def _check_queue_order(
        self, ref: int, ledger: Ledger, tenure: Tenure, offsets: Sequence[int], attempt: int
    ) -> None:
        first = offsets[0]
        reopened = tenure.reopened is not None and first >= tenure.reopened
        if first < tenure.started and not reopened:
            text = f"offset {first} started after {tenure.started}, and nothing re-opened it"
            self._run.violate("I1", ledger, text, tenure.started_by, ref)
        elif attempt == 0 and first <= tenure.started_first:
            text = (
                f"offset {first} started as a first attempt after the first attempt of "
                f"{tenure.started_first} in the same epoch"
            )
            self._run.violate("I1", ledger, text, tenure.started_by, ref)
        elif any(one >= other for one, other in itertools.pairwise(offsets)):
            text = f"a batch is not ascending: {named(offsets)}"
            self._run.violate("I1", ledger, text, ref)
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
            if flags[i] & DONE and not flags[i] & PARKED:  # a mark in the log may be lost
                self._check_repeat(ref, ledger, tenure, offset)
            flags[i] |= STARTED
            earlier = before[offset - shift]
            known = flags[earlier - base] if earlier >= base else 0
            if earlier >= 0 and known & PARKED and not known & DONE:
                text = f"offset {offset} started before offset {earlier} of the same, parked key"
                self._run.violate("I3", ledger, text, stored.refs[earlier - shift], ref)
                continue
            if earlier < 0 or known & (DONE | DIVERTED):
                continue
            if earlier >= lowest:  # in the same call, so done before it, or left out
                batch = set(offsets) if batch is None else batch
                if earlier in batch:
                    continue
            if not ledger.is_settled(earlier):
                text = f"offset {offset} started before offset {earlier} of the same key was done"
                self._run.violate("I3", ledger, text, stored.refs[earlier - shift], ref)

    def _check_repeat(self, ref: int, ledger: Ledger, tenure: Tenure, offset: int) -> None:
        i = offset - ledger.base
        done_by = ledger.done_by[i]
        cause = ledger.cause_between(ledger.done_in[i], tenure.generation)
        ahead = ledger.by_key and offset >= ledger.acked  # of a lane that had not got so far
        if cause is Cause.NONE or (cause is Cause.HAND_OFF and not ahead):
            text = f"offset {offset} started again after it was done: {cause.value}"
            self._run.violate("I5", ledger, text, done_by, ref)
        elif offset < ledger.acked:
            text = f"offset {offset} started again below the committed offset {ledger.acked}"
            self._run.violate("I5", ledger, text, done_by, ledger.acked_by, ref)


def _share_key(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(key and key in other for key in one)
