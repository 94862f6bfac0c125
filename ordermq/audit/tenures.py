"""Who holds a queue, and how that ends: I6, I7 and I9."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ordermq.audit.history import Event
from ordermq.audit.ledger import Ledger, Tenure
from ordermq.audit.report import Cause, HandOff, HandOffKind, Holding
from ordermq.audit.run import MS, Process, Run, named

# A broker takes `t` when it records a grant, some time after it looked at its own clock, so
# a lease seems to end that much later than it did.
RECORDING_DELAY_NS = 5 * MS


@dataclass(slots=True)
class Change:
    """A hand-off before its end is known."""

    ledger: Ledger
    old: Tenure
    new: Tenure
    cause: Cause
    at: int
    duplicates: int = 0


class TenureRules:
    """Follows LOCK_OK, LOCK_LOST and UNLOCK, of brokers and of clients."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._changes: list[Change] = []
        self.change_of: dict[Tenure, Change] = {}

    def on_lock_ok(self, t: int, ref: int, event: Event) -> None:
        ledger = self._run.ledger(event)
        if "client" in event:
            self._broker_grants(t, ref, event, ledger)
            return
        process = self._run.process(event)
        process.last_active = t
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        if tenure is None or tenure.unlocked is not None:
            tenure = self._begin(t, ref, event, ledger)
        elif tenure.ended is Cause.NONE:
            tenure.loss = self._run.broker_life[ledger.name[2]]
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
            tenure.reopen(max(tenure.acked, ledger.acked))

    def on_lock_lost(self, t: int, ref: int, event: Event) -> None:
        ledger = self._run.ledger(event)
        if "client" in event or self._run.process(event).is_broker:
            return  # the lease it was granted for decides, not what the broker thinks later
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        if tenure is None:  # a loss is told without the epoch
            mine = [each for each in ledger.tenures.values() if each.client == event["p"]]
            tenure = mine[-1] if mine else None
        if tenure is not None and tenure.ended is Cause.NONE:
            broker = self._run.lost_with_broker(tenure, ledger)
            self.end(t, tenure, Cause.BROKER if broker else Cause.LEASE, ref)

    def on_unlock(self, t: int, ref: int, event: Event) -> None:
        ledger = self._run.ledger(event)
        if "client" in event or self._run.process(event).is_broker:
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
            self.end(t, tenure, Cause.LEASE, ref)
            return
        for started, offsets, _ in tenure.open.values():
            text = f"{tenure.client} unlocked while its listener ran on {named(offsets)}"
            self._run.violate("I9", ledger, text, started, ref)
            break
        owed = self._owed(ledger, tenure)
        if owed > max(tenure.acked, ledger.acked):
            text = f"{tenure.client} unlocked without an acknowledged commit of {owed}"
            self._run.violate("I9", ledger, text, self._run.done_by(ledger, owed - 1), ref)
        self.end(t, tenure, Cause.HAND_OFF, ref)

    def tenure_of(self, t: int, ref: int, event: Event, ledger: Ledger) -> Tenure:
        tenure = ledger.tenures.get((event["p"], event.get("epoch", 0)))
        return self._begin(t, ref, event, ledger) if tenure is None else tenure

    def check_lease(self, t: int, ref: int, ledger: Ledger, tenure: Tenure, what: str) -> None:
        if tenure.lease_end is None:
            text = f"{what} of epoch {tenure.epoch}, which {tenure.client} was never granted"
            self._run.violate("I7", ledger, text, ref)
        elif t > tenure.lease_end:
            late = (t - tenure.lease_end) / MS
            text = f"{what} {late:.0f} ms after the lease of epoch {tenure.epoch} ended"
            self._run.violate("I7", ledger, text, tenure.granted_by, ref)
        elif tenure.unlocked is not None:
            text = f"{what} after {tenure.client} had unlocked epoch {tenure.epoch}"
            self._run.violate("I7", ledger, text, tenure.ended_by, ref)

    def ended_by_loss(self, t: int, tenure: Tenure, ledger: Ledger) -> bool:
        """Whether a tenure is over by expiry, crash or broker loss, so that it may overlap."""
        if tenure.ended is Cause.HAND_OFF:
            return False
        if tenure.ended is not Cause.NONE or self._run.lost_with_broker(tenure, ledger):
            return True
        return tenure.lease_end is not None and t >= tenure.lease_end

    def end(self, t: int, tenure: Tenure, cause: Cause, ref: int) -> None:
        tenure.ended, tenure.ended_by, tenure.ended_at = cause, ref, t

    def _broker_grants(self, t: int, ref: int, event: Event, ledger: Ledger) -> None:
        self._run.broker_speaks(event)
        client, epoch = event["client"], event.get("epoch", 0)
        life = self._run.broker_life[ledger.name[2]]
        ledger.broker_seen = True
        # A restarted broker may know no locks, or go on with those it had.
        live = life == ledger.holder_of and t < ledger.holder_until - RECORDING_DELAY_NS
        live = live and ledger.holder != ""
        if live and ledger.holder != client:
            left = (ledger.holder_until - t) / MS
            self._run.violate(
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
            self._run.violate("I6", ledger, text, ledger.epoch_ref, ref)

    def _broker_releases(self, event: Event, ledger: Ledger) -> None:
        if event.get("client", ledger.holder) == ledger.holder:
            ledger.holder = ""

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
        tenure.loss = self._run.broker_life[ledger.name[2]]
        if old is not None and old.client != client:
            change = Change(ledger, old, tenure, cause, t)
            self._changes.append(change)
            self.change_of[tenure] = change
        ledger.tenures[client, epoch] = ledger.current = tenure
        return tenure

    def _why_it_ended(self, old: Tenure, ledger: Ledger) -> Cause:
        if old.ended in (Cause.HAND_OFF, Cause.CRASH):
            return old.ended
        if old.loss != self._run.broker_life[ledger.name[2]]:
            return Cause.BROKER
        return Cause.LEASE

    def _owed(self, ledger: Ledger, tenure: Tenure) -> int:
        """What a release has to commit first."""
        if not ledger.by_key:
            return tenure.watermark()
        # Lanes run ahead of each other; only what has no gap below it can be committed. What an
        # earlier holder did above its own commit comes again, and counts when we have done it.
        stored = self._run.stored_queue(ledger.name[1:])
        owed = max(tenure.acked, ledger.acked, ledger.start or 0)
        end = tenure.watermark()
        while owed < end and ledger.is_passed(stored, owed, tenure.generation):
            owed += 1
        return owed

    def _check_old_lease(self, t: int, ref: int, ledger: Ledger, old: Tenure, client: str) -> None:
        if old.lease_end is None or t >= old.lease_end or self._run.lost_with_broker(old, ledger):
            return
        left = (old.lease_end - t) / MS
        text = f"{client} holds the queue while the lease of {old.client} has {left:.0f} ms to go"
        self._run.violate("I6", ledger, text, old.granted_by, ref)

    def crash(self, t: int, client: str, ref: int) -> None:
        """Whatever this process held or ran is over."""
        for ledger in self._run.ledgers.values():
            for tenure in ledger.tenures.values():
                if tenure.client != client:
                    continue
                tenure.open.clear()
                ledger.running.discard(tenure)
                if tenure.ended is Cause.NONE:
                    self.end(t, tenure, Cause.CRASH, ref)

    def hand_offs(self) -> tuple[HandOff, ...]:
        """Every change of holder, in the order they happened."""
        return tuple(self._hand_off(change) for change in self._changes)

    def holdings(self) -> tuple[Holding, ...]:
        """Every tenure of an ordered group, queue by queue."""
        ledgers = self._run.ledgers.values()
        return tuple(each for ledger in ledgers for each in self._holdings(ledger))

    def _holdings(self, ledger: Ledger) -> Iterator[Holding]:
        ordered = sorted(ledger.tenures.values(), key=lambda each: each.since)
        for place, tenure in enumerate(ordered):
            if tenure.epoch <= 0:
                continue
            follower = ordered[place + 1].since if place + 1 < len(ordered) else self._run.last
            until = min(follower, follower if tenure.ended_at is None else tenure.ended_at)
            group, topic, broker, queue = ledger.name
            yield Holding(
                group, topic, broker, queue, tenure.client, tenure.epoch, tenure.since, until
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
