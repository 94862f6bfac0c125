"""Batches given to listeners, and their order: I1, I2, I3 and I5."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ordermq.audit.delivered_offsets import (
    DIVERTED,
    DONE,
    DROPPED,
    PARKED,
    STARTED,
    TOLD,
    DeliveredOffsets,
    Ownership,
    StoredQueue,
)
from ordermq.audit.history import Event
from ordermq.audit.ownership import OwnershipRules
from ordermq.audit.report import Cause
from ordermq.audit.run import Run, named


class BatchRules:
    """Checks TAKE_OVER, START, END, ROLLBACK, DIVERT and DROP."""

    def __init__(self, run: Run, ownership: OwnershipRules) -> None:
        self._run = run
        self._ownership = ownership
        self.duplicates: Counter[str] = Counter()  # by cause

    def on_take_over(self, t: int, ref: int, event: Event) -> None:
        """Count what an owner had begun before the offset that its database has as done.

        It may have been killed, or have lost the connection, between the commit and its END.
        """
        progress = self._run.progress(event)
        ownership = self._ownership.ownership_of(t, ref, event, progress)
        flags, base = progress.flags, progress.base
        for i in range(max(progress.floor - base, 0), min(event["off"] - base, len(flags))):
            if flags[i] & (STARTED | DONE) == STARTED:
                flags[i] |= DONE | TOLD
                progress.done_by[i] = ref
                progress.done_in[i] = ownership.generation
                progress.delivered += 1
                progress.deliveries += 1

    def on_start(self, t: int, ref: int, event: Event) -> None:
        progress, stored = self._run.both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        process = self._run.process(event)
        process.last_active = t
        progress.started_any = True
        if progress.name not in process.positions:
            process.blind_starts.setdefault(progress.name, ref)
        stored.add(offsets, keys, ref)
        progress.cover(min(offsets), max(offsets))
        if event.get("epoch", 0) <= 0:  # concurrent consumers hold no lock
            progress.is_unlocked = True
            self._run.unlocked_groups.add(progress.name[0])
            for offset in offsets:
                progress.flags[offset - progress.base] |= STARTED
            return
        ownership = self._ownership.ownership_of(t, ref, event, progress)
        if event.get("lane"):
            progress.by_key = True
            self._check_lanes(ref, progress, ownership, offsets, event["lane"])
        self._ownership.check_lease(
            t, ref, progress, ownership, f"a listener started on {named(offsets)}"
        )
        self._check_serial(t, ref, progress, ownership, offsets, keys)
        if not progress.by_key:
            self._check_queue_order(ref, progress, ownership, offsets, event.get("attempt", 0))
        self._check_messages(ref, progress, stored, ownership, offsets)
        if ownership.first_start is None:
            ownership.first_start = t
        ownership.last_active = t
        ownership.open[offsets[0]] = (ref, offsets, keys)
        progress.running.add(ownership)

    def on_end(self, t: int, ref: int, event: Event) -> None:
        progress = self._run.progress(event)
        offsets, done = event["offs"], event["done"]
        progress.cover(min(offsets), max(offsets))
        ordered = event.get("epoch", 0) > 0
        ownership = self._ownership.ownership_of(t, ref, event, progress) if ordered else None
        if ownership is not None:
            if ownership.open.pop(offsets[0], None) is None:
                text = f"a listener ended on {named(offsets)} without having started there"
                self._run.violate("I2", progress, text, ref)
            if not ownership.open:
                progress.running.discard(ownership)
            ownership.last_active = t
            ownership.failed.difference_update(offsets[:done])
            if done < len(offsets):
                ownership.failed.update(offsets[done:])
                ownership.reopened = offsets[done]
            # With manual commit a batch counts once the listener says COMMIT
            # (docs/internals/semantics.md#listener-results).
            held = event.get("detail") == "HOLD" or (ownership.held and done < len(offsets))
            ownership.held = bool(held)
            if done > 0 and not held:
                ownership.done_next = max(ownership.done_next, offsets[done - 1] + 1)
        flags, base = progress.flags, progress.base
        generation = ownership.generation if ownership is not None else len(progress.causes) - 1
        for offset in offsets[:done]:
            i = offset - base
            if flags[i] & TOLD and generation < progress.done_in[i]:
                flags[i] ^= TOLD  # recorded late, by the owner that had done it
                progress.deliveries -= 1
                continue
            if flags[i] & DONE:
                cause = progress.cause_between(progress.done_in[i], generation)
                if progress.is_unlocked and cause is Cause.NONE:
                    cause = Cause.UNLOCKED
                self.duplicates[cause] += 1
                change = self._ownership.change_of.get(ownership) if ownership else None
                # Counted by its cause: a queue that was handed over in order repeats nothing of it,
                # but it may repeat what a broker's restart or a reset before it has brought back.
                if change is not None and change.cause is cause:
                    change.duplicates += 1
                if generation < progress.done_in[i]:
                    continue  # late END of a previous owner; the newer one counts
            else:
                flags[i] |= DONE
                progress.delivered += 1
            progress.done_by[i] = ref
            progress.done_in[i] = generation
        progress.deliveries += max(done, 0)

    def on_rollback(self, t: int, ref: int, event: Event) -> None:
        progress = self._run.progress(event)
        ownership = self._ownership.ownership_of(t, ref, event, progress)
        if ownership is progress.current:
            ownership.generation = progress.begin_generation(Cause.ROLLBACK)
        ownership.reopen(max(ownership.acked, progress.acked))

    def on_divert(self, t: int, ref: int, event: Event) -> None:
        progress, stored = self._run.both(event)
        offsets, keys = event["offs"], event.get("keys") or ()
        stored.add(offsets, keys, ref)
        progress.cover(min(offsets), max(offsets))
        batch = set(offsets)
        ownership = progress.ownerships.get((event["p"], event.get("epoch", 0)))
        for offset in offsets:
            earlier = progress.before_in_key(stored, offset)
            ordered = not progress.is_unlocked
            if (
                ordered
                and earlier >= 0
                and earlier not in batch
                and not progress.is_settled(earlier)
            ):
                text = f"offset {offset} was diverted before offset {earlier} of the same key"
                self._run.violate("I3", progress, text, stored.refs[earlier - stored.base], ref)
            i = offset - progress.base
            if event.get("detail") == "PARKED":
                progress.flags[i] |= PARKED
            if not progress.flags[i] & DIVERTED:
                progress.flags[i] |= DIVERTED
                progress.diverted += 1
        if ownership is not None:
            ownership.failed -= batch
            ownership.done_next = max(ownership.done_next, offsets[-1] + 1)

    def on_drop(self, t: int, ref: int, event: Event) -> None:
        progress, stored = self._run.both(event)
        offsets = event["offs"]
        stored.add(offsets, (), ref)
        progress.cover(min(offsets), max(offsets))
        for offset in offsets:
            i = offset - progress.base
            # Each owner that pulls a copy drops it, until it is committed.
            progress.dropped += not progress.flags[i] & DROPPED
            progress.flags[i] |= DROPPED

    def _check_serial(
        self,
        t: int,
        ref: int,
        progress: DeliveredOffsets,
        ownership: Ownership,
        offsets: Sequence[int],
        keys: Sequence[str | None],
    ) -> None:
        for other in progress.running:
            for started, running, running_keys in other.open.values():
                if progress.by_key and not _share_key(keys, running_keys):
                    continue
                if other is not ownership and self._ownership.ended_by_loss(t, other, progress):
                    continue
                text = (
                    f"{ownership.client} (epoch {ownership.epoch}) started {named(offsets)} while "
                    f"{other.client} (epoch {other.epoch}) ran {named(running)}"
                )
                self._run.violate("I2", progress, text, started, ref)

    def _check_lanes(
        self,
        ref: int,
        progress: DeliveredOffsets,
        ownership: Ownership,
        offsets: Sequence[int],
        most: int,
    ) -> None:
        running = sum(len(each) for _, each, _ in ownership.open.values())
        if running + len(offsets) > most:
            text = f"{named(offsets)} started while {running} others ran; at most {most} may run"
            self._run.violate("I2", progress, text, ref)

    def _check_queue_order(
        self,
        ref: int,
        progress: DeliveredOffsets,
        ownership: Ownership,
        offsets: Sequence[int],
        attempt: int,
    ) -> None:
        first = offsets[0]
        reopened = ownership.reopened is not None and first >= ownership.reopened
        if first < ownership.started and not reopened:
            text = f"offset {first} started after {ownership.started}, and nothing re-opened it"
            self._run.violate("I1", progress, text, ownership.started_by, ref)
        elif attempt == 0 and first <= ownership.started_first:
            text = (
                f"offset {first} started as a first attempt after the first attempt of "
                f"{ownership.started_first} in the same epoch"
            )
            self._run.violate("I1", progress, text, ownership.started_by, ref)
        elif any(one >= other for one, other in itertools.pairwise(offsets)):
            text = f"a batch is not ascending: {named(offsets)}"
            self._run.violate("I1", progress, text, ref)
        if attempt == 0:
            ownership.started_first = max(ownership.started_first, first)
        ownership.started, ownership.started_by = offsets[-1], ref
        ownership.reopened = None

    def _check_messages(
        self,
        ref: int,
        progress: DeliveredOffsets,
        stored: StoredQueue,
        ownership: Ownership,
        offsets: Sequence[int],
    ) -> None:
        flags, base, lowest = progress.flags, progress.base, offsets[0]
        before, shift = stored.before, stored.base  # read here: this runs for every message
        batch: set[int] | None = None
        for offset in offsets:
            i = offset - base
            if flags[i] & DONE and not flags[i] & PARKED:  # a mark in the log may be lost
                self._check_repeat(ref, progress, ownership, offset)
            flags[i] |= STARTED
            earlier = before[offset - shift]
            known = flags[earlier - base] if earlier >= base else 0
            if known & DROPPED:
                earlier = progress.before_in_key(stored, offset)
                known = flags[earlier - base] if earlier >= base else 0
            if earlier >= 0 and known & PARKED and not known & DONE:
                text = f"offset {offset} started before offset {earlier} of the same, parked key"
                self._run.violate("I3", progress, text, stored.refs[earlier - shift], ref)
                continue
            if earlier < 0 or known & (DONE | DIVERTED):
                continue
            if earlier >= lowest:  # in the same call, so done before it, or left out
                batch = set(offsets) if batch is None else batch
                if earlier in batch:
                    continue
            if not progress.is_settled(earlier):
                text = f"offset {offset} started before offset {earlier} of the same key was done"
                self._run.violate("I3", progress, text, stored.refs[earlier - shift], ref)

    def _check_repeat(
        self, ref: int, progress: DeliveredOffsets, ownership: Ownership, offset: int
    ) -> None:
        i = offset - progress.base
        done_by = progress.done_by[i]
        cause = progress.cause_between(progress.done_in[i], ownership.generation)
        ahead = progress.by_key and offset >= progress.acked  # of a lane that had not got so far
        if cause is Cause.NONE or (cause is Cause.HAND_OFF and not ahead):
            text = f"offset {offset} started again after it was done: {cause.value}"
            self._run.violate("I5", progress, text, done_by, ref)
        elif offset < progress.acked:
            text = f"offset {offset} started again below the committed offset {progress.acked}"
            self._run.violate("I5", progress, text, done_by, progress.acked_by, ref)


def _share_key(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return any(key and key in other for key in one)
