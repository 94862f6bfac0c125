"""Owners of queues, their leases, and changes of owner: I6, I7 and I9."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ordermq.audit.delivered_offsets import DeliveredOffsets, Ownership
from ordermq.audit.history import Event
from ordermq.audit.report import Cause, HandOff, HandOffKind, Holding
from ordermq.audit.run import MS, Process, Run, named
from ordermq.events import BY_COMMIT


@dataclass(slots=True)
class Change:
    """A change of owner whose figures are not complete yet."""

    progress: DeliveredOffsets
    old: Ownership
    new: Ownership
    cause: Cause
    at: int
    duplicates: int = 0


class OwnershipRules:
    """Checks LOCK_OK, LOCK_LOST and UNLOCK, of brokers and of clients."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._changes: list[Change] = []
        self.change_of: dict[Ownership, Change] = {}

    def on_lock_ok(self, t: int, ref: int, event: Event) -> None:
        progress = self._run.progress(event)
        if "client" in event:
            self._broker_grants(t, ref, event, progress)
            return
        process = self._run.process(event)
        process.last_active = t
        ownership = progress.ownerships.get((event["p"], event.get("epoch", 0)))
        if ownership is None or ownership.unlocked is not None:
            if self._is_late(t, event, progress):
                self._note_late(t, ref, event, progress)
                return
            ownership = self._begin(t, ref, event, progress)
        elif ownership.ended is Cause.NONE:
            ownership.loss = self._run.broker_life[progress.name[2]]
        ownership.lease_ns = event.get("lease_ms", 0) * MS
        ownership.tells_renewals = ownership.lease_end is not None
        end = event.get("sent", t) + ownership.lease_ns
        if ownership.lease_end is None or end > ownership.lease_end:
            ownership.lease_end = end
            ownership.granted_by = ref
        if ownership is progress.current and ownership.ended is not Cause.NONE:
            # Given up by the member and granted again before the broker's lock expired: the epoch
            # is the same, but the member starts again at the committed offset.
            ownership.generation = progress.begin_generation(ownership.ended)
            ownership.ended, ownership.ended_at = Cause.NONE, None
            ownership.reopen(max(ownership.acked, progress.acked))

    def on_lock_lost(self, t: int, ref: int, event: Event) -> None:
        progress = self._run.progress(event)
        if "client" in event or self._run.process(event).is_broker:
            return  # the granted lease decides, not when the broker notices its end
        ownership = progress.ownerships.get((event["p"], event.get("epoch", 0)))
        if ownership is None:  # a loss may be recorded without the epoch
            own = [each for each in progress.ownerships.values() if each.client == event["p"]]
            ownership = own[-1] if own else None
        if ownership is not None and ownership.ended is Cause.NONE:
            broker = self._run.lost_with_broker(ownership, progress)
            self.end(t, ownership, Cause.BROKER if broker else Cause.LEASE, ref)

    def on_unlock(self, t: int, ref: int, event: Event) -> None:
        progress = self._run.progress(event)
        if "client" in event or self._run.process(event).is_broker:
            self._broker_releases(event, progress)
            return
        ownership = progress.ownerships.get((event["p"], event.get("epoch", 0)))
        if ownership is None:
            return
        ownership.unlocked = t
        if ownership.ended is not Cause.NONE:
            return
        if ownership.lease_end is not None and t > ownership.lease_end:
            # The lease ended before: there is nothing left that an unlock could protect.
            self.end(t, ownership, Cause.LEASE, ref)
            return
        for started, offsets, _ in ownership.open.values():
            text = f"{ownership.client} unlocked while its listener ran on {named(offsets)}"
            self._run.violate("I9", progress, text, started, ref)
            break
        required = self._required_commit(progress, ownership)
        committed = max(ownership.acked, progress.acked)
        if event.get("detail") == BY_COMMIT:
            ownership.released_by_commit = True
            committed = max([committed, *ownership.commits])
        if required > committed:
            text = f"{ownership.client} unlocked without an acknowledged commit of {required}"
            self._run.violate("I9", progress, text, self._run.done_by(progress, required - 1), ref)
        self.end(t, ownership, Cause.HAND_OFF, ref)

    def ownership_of(self, t: int, ref: int, event: Event, progress: DeliveredOffsets) -> Ownership:
        ownership = progress.ownerships.get((event["p"], event.get("epoch", 0)))
        return self._begin(t, ref, event, progress) if ownership is None else ownership

    def check_lease(
        self, t: int, ref: int, progress: DeliveredOffsets, ownership: Ownership, what: str
    ) -> None:
        if ownership.lease_end is None:
            text = f"{what} of epoch {ownership.epoch}, which {ownership.client} was never granted"
            self._run.violate("I7", progress, text, ref)
        elif t > ownership.lease_end:
            late = (t - ownership.lease_end) / MS
            text = f"{what} {late:.0f} ms after the lease of epoch {ownership.epoch} ended"
            self._run.violate("I7", progress, text, ownership.granted_by, ref)
        elif ownership.unlocked is not None:
            text = f"{what} after {ownership.client} had unlocked epoch {ownership.epoch}"
            self._run.violate("I7", progress, text, ownership.ended_by, ref)

    def ended_by_loss(self, t: int, ownership: Ownership, progress: DeliveredOffsets) -> bool:
        """Return True if it ended by expiry, crash or loss of the broker, so it may overlap."""
        if ownership.ended is Cause.HAND_OFF:
            return False
        if ownership.ended is not Cause.NONE or self._run.lost_with_broker(ownership, progress):
            return True
        return ownership.lease_end is not None and t >= ownership.lease_end

    def end(self, t: int, ownership: Ownership, cause: Cause, ref: int) -> None:
        ownership.ended, ownership.ended_by, ownership.ended_at = cause, ref, t

    def _broker_grants(self, t: int, ref: int, event: Event, progress: DeliveredOffsets) -> None:
        self._run.broker_speaks(event)
        client, epoch = event["client"], event.get("epoch", 0)
        life = self._run.broker_life[progress.name[2]]
        progress.broker_seen = True
        # The lease runs from the decision; `t` comes when the grant is durable, any time later.
        decided = event.get("decided", t)
        # A restarted broker has either lost its locks or restored them.
        live = life == progress.holder_of and decided < progress.holder_until
        live = live and progress.holder != ""
        if live and progress.holder != client:
            left = (progress.holder_until - decided) / MS
            self._run.violate(
                "I6",
                progress,
                f"the broker granted the queue to {client} while the lease of {progress.holder} "
                f"had {left:.0f} ms to go",
                progress.holder_ref,
                ref,
            )
        renewed = progress.holder == client and progress.holder_epoch == epoch
        ownership = progress.ownerships.get((client, epoch))
        if renewed and ownership is not None:
            ownership.loss = life
            if ownership.lease_end is not None and not ownership.tells_renewals:
                ownership.lease_end = max(ownership.lease_end, t + ownership.lease_ns)
        if not renewed:
            self._check_epoch_rises(progress, client, epoch, ref)
            progress.epoch, progress.epoch_ref = max(epoch, progress.epoch), ref
        progress.holder, progress.holder_epoch, progress.holder_ref = client, epoch, ref
        progress.holder_of = life
        progress.holder_until = decided + event.get("lease_ms", 0) * MS

    def _check_epoch_rises(
        self, progress: DeliveredOffsets, client: str, epoch: int, ref: int
    ) -> None:
        if 0 < epoch <= progress.epoch:
            text = f"{client} got epoch {epoch}, not above {progress.epoch} of the owner before"
            self._run.violate("I6", progress, text, progress.epoch_ref, ref)

    def _broker_releases(self, event: Event, progress: DeliveredOffsets) -> None:
        if event.get("client", progress.holder) == progress.holder:
            progress.holder = ""

    def _begin(self, t: int, ref: int, event: Event, progress: DeliveredOffsets) -> Ownership:
        client, epoch = event["p"], event.get("epoch", 0)
        old = progress.current
        generation = len(progress.causes) - 1
        cause = Cause.NONE
        if old is not None:
            cause = self._why_it_ended(old, progress)
            held = cause is Cause.HAND_OFF and old.held
            if old.ended is Cause.NONE and old.client != client and not progress.broker_seen:
                self._check_old_lease(t, ref, progress, old, client)
            generation = progress.begin_generation(Cause.ROLLBACK if held else cause)
        # An unlock that a broker's end has swallowed left the lock where it was: its owner gets it
        # again, and no new owner needs an epoch of its own.
        is_same = old is not None and (old.client, old.epoch) == (client, epoch)
        if not progress.broker_seen and not is_same:
            self._check_epoch_rises(progress, client, epoch, ref)
            progress.epoch, progress.epoch_ref = max(epoch, progress.epoch), ref
        ownership = Ownership(client, epoch, generation, ref, t)
        ownership.loss = self._run.broker_life[progress.name[2]]
        if old is not None and old.client != client:
            change = Change(progress, old, ownership, cause, t)
            self._changes.append(change)
            self.change_of[ownership] = change
        progress.ownerships[client, epoch] = progress.current = ownership
        return ownership

    def _is_late(self, t: int, event: Event, progress: DeliveredOffsets) -> bool:
        """Return True for a grant that was over when it was recorded, while another member has one.

        A process that was stopped in between records it afterwards. It holds nothing by it, and the
        other one was granted the queue after that.
        """
        current = progress.current
        end = event.get("sent", t) + event.get("lease_ms", 0) * MS
        return current is not None and current.client != event["p"] and end <= t

    def _note_late(self, t: int, ref: int, event: Event, progress: DeliveredOffsets) -> None:
        """Note a grant that was over: what is done under it is done after its lease (I7)."""
        client, epoch = event["p"], event.get("epoch", 0)
        ownership = Ownership(client, epoch, len(progress.causes) - 1, ref, t)
        ownership.lease_ns = event.get("lease_ms", 0) * MS
        ownership.lease_end = event.get("sent", t) + ownership.lease_ns
        ownership.loss = self._run.broker_life[progress.name[2]]
        progress.ownerships[client, epoch] = ownership
        self.end(ownership.lease_end, ownership, Cause.LEASE, ref)
        other = progress.current
        # A broker that restarted may have lost the lease before the other member was granted one.
        may_be_lost = self._run.broker_life[progress.name[2]] > 1
        if other is not None and other.since < ownership.lease_end and not may_be_lost:
            left = (ownership.lease_end - other.since) / MS
            text = (
                f"{other.client} was granted the queue while the lease of {client} had "
                f"{left:.0f} ms to go"
            )
            self._run.violate("I6", progress, text, other.granted_by, ref)

    def _why_it_ended(self, old: Ownership, progress: DeliveredOffsets) -> Cause:
        if old.waits_for_release and old.ended is not Cause.CRASH:
            # The commit that was to release the queue may not have reached the broker.
            return Cause.LEASE
        if old.ended in (Cause.HAND_OFF, Cause.CRASH):
            return old.ended
        if old.loss != self._run.broker_life[progress.name[2]]:
            return Cause.BROKER
        return Cause.LEASE

    def _required_commit(self, progress: DeliveredOffsets, ownership: Ownership) -> int:
        """Return the offset that a release must have committed."""
        if not progress.by_key:
            return ownership.watermark()
        # Keys run ahead of each other, and only offsets without a gap below can be committed. What
        # an earlier owner finished above its own commit is redelivered, and counts once this one
        # has finished it.
        stored = self._run.stored_queue(progress.name[1:])
        required = max(ownership.acked, progress.acked, progress.start or 0)
        end = ownership.watermark()
        while required < end and progress.is_passed(stored, required, ownership.generation):
            required += 1
        return required

    def _check_old_lease(
        self, t: int, ref: int, progress: DeliveredOffsets, old: Ownership, client: str
    ) -> None:
        if old.lease_end is None or t >= old.lease_end or self._run.lost_with_broker(old, progress):
            return
        left = (old.lease_end - t) / MS
        text = f"{client} holds the queue while the lease of {old.client} has {left:.0f} ms to go"
        self._run.violate("I6", progress, text, old.granted_by, ref)

    def crash(self, t: int, client: str, ref: int) -> None:
        """End everything that this process held or ran."""
        for progress in self._run.progress_by_queue.values():
            for ownership in progress.ownerships.values():
                if ownership.client != client:
                    continue
                ownership.open.clear()
                progress.running.discard(ownership)
                if ownership.ended is Cause.NONE or ownership.waits_for_release:
                    self.end(t, ownership, Cause.CRASH, ref)

    def hand_offs(self) -> tuple[HandOff, ...]:
        """Return every change of owner, in order of time."""
        return tuple(self._hand_off(change) for change in self._changes)

    def holdings(self) -> tuple[Holding, ...]:
        """Return every ownership of an ordered group, queue by queue."""
        progress_by_queue = self._run.progress_by_queue.values()
        return tuple(each for progress in progress_by_queue for each in self._holdings(progress))

    def _holdings(self, progress: DeliveredOffsets) -> Iterator[Holding]:
        ordered = sorted(progress.ownerships.values(), key=lambda each: each.since)
        for place, ownership in enumerate(ordered):
            if ownership.epoch <= 0:
                continue
            follower = ordered[place + 1].since if place + 1 < len(ordered) else self._run.last
            until = min(follower, follower if ownership.ended_at is None else ownership.ended_at)
            group, topic, broker, queue = progress.name
            yield Holding(
                group,
                topic,
                broker,
                queue,
                ownership.client,
                ownership.epoch,
                ownership.since,
                until,
            )

    def _hand_off(self, change: Change) -> HandOff:
        old, new = change.old, change.new
        process = self._run.processes.get(old.client, Process())
        unlocked = old.unlocked if change.cause is Cause.HAND_OFF else None
        left = unlocked is not None and process.closed and process.last_active < unlocked
        kind = {
            Cause.HAND_OFF: HandOffKind.LEAVE if left else HandOffKind.JOIN,
            Cause.CRASH: HandOffKind.CRASH,
            Cause.BROKER: HandOffKind.BROKER,
        }.get(change.cause, HandOffKind.EXPIRY)
        group, topic, broker, queue = change.progress.name
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
