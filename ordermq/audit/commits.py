"""What is stored and what is committed: I4 and I8."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.audit.history import Event
from ordermq.audit.ledger import EXISTS, Ledger, StoredQueue, Tenure
from ordermq.audit.report import Cause
from ordermq.audit.run import Run
from ordermq.audit.tenures import TenureRules
from ordermq.model.names import retry_topic


class CommitRules:
    """Follows STORE, COMMIT_SENT, COMMIT_ACK and RESET."""

    def __init__(self, run: Run, tenures: TenureRules) -> None:
        self._run = run
        self._tenures = tenures

    def on_store(self, t: int, ref: int, event: Event) -> None:
        self._run.broker_speaks(event)
        place = (event.get("topic", ""), event.get("broker", ""), event["queue"])
        stored = self._run.stored_queue(place)
        offsets, keys = event["offs"], event.get("keys") or ()
        foreign = None
        tags = event.get("tags")
        if self._run.tags is not None and tags:
            foreign = [tag not in self._run.tags for tag in tags]
        stored.add(offsets, keys, ref, foreign)
        stored.stored += len(offsets)
        for ledger in self._run.ledgers.values():
            # A commit may be recorded before a message it covers: nobody may be left behind.
            if ledger.acked > offsets[0] and ledger.name[1:] == place and ledger.started_any:
                self._check_late_store(ledger, stored, offsets, ref)

    def on_commit_sent(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._run.both(event)
        offset = event["off"]
        self._note_start(ledger, offset)
        if event.get("epoch", 0) <= 0:
            ledger.tenures.setdefault(
                (event["p"], 0), Tenure(event["p"], 0, len(ledger.causes) - 1, ref, t)
            ).commits[offset] = (ref, ledger.first_missing(stored, offset), -1)
            return
        tenure = self._tenures.tenure_of(t, ref, event, ledger)
        self._tenures.check_lease(t, ref, ledger, tenure, f"a commit of {offset} was sent")
        current = ledger.current
        newer = -1 if current is None or current is tenure else current.granted_by
        tenure.commits[offset] = (ref, ledger.first_missing(stored, offset), newer)

    def on_commit_ack(self, t: int, ref: int, event: Event) -> None:
        ledger, stored = self._run.both(event)
        offset, epoch = event["off"], event.get("epoch", 0)
        by_broker = "client" in event or self._run.process(event).is_broker
        client = event.get("client", "") if by_broker else event["p"]
        if by_broker:
            self._run.broker_speaks(event)
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
            self._run.violate("I4", ledger, text, stored.refs[missing - stored.base], sent, ref)
        # Nothing keeps the members of a concurrent group apart: the one that leaves may commit
        # after the one that came.
        if offset < ledger.acked and not ledger.is_unlocked:
            text = f"{client} moved the committed offset back from {ledger.acked} to {offset}"
            self._run.violate("I8", ledger, text, ledger.acked_by, ref)
        if by_broker and 0 < epoch < ledger.epoch:
            newer = ledger.epoch_ref
        if newer >= 0:
            text = f"a commit of epoch {epoch} was accepted after a newer epoch was granted"
            self._run.violate("I8", ledger, text, newer, ref)
        ledger.acked, ledger.acked_by = offset, ref

    def on_reset(self, t: int, ref: int, event: Event) -> None:
        if event.get("group"):
            ledgers = [self._run.ledger(event)]
        else:
            place = (event.get("topic", ""), event.get("broker", ""), event["queue"])
            ledgers = [each for each in self._run.ledgers.values() if each.name[1:] == place]
        for ledger in ledgers:
            offset = event["off"]
            if ledger.start is None and self._run.starts is None and not ledger.started_any:
                ledger.start = offset
            ledger.skipped_to = max(ledger.skipped_to, offset)
            ledger.acked, ledger.acked_by = offset, ref
            tenure = ledger.current
            if tenure is not None:
                tenure.generation = ledger.begin_generation(Cause.RESET)
                tenure.reopen(offset)
                tenure.acked = offset

    def check_nothing_is_left(self) -> None:
        ledgers = self._run.ledgers.values()
        consumed = {each.name[:2] for each in ledgers if each.started_any}
        # What a concurrent group sends back comes again in its retry topic.
        failing = {each.name[0] for each in ledgers if each.is_unlocked and each.diverted}
        consumed |= {(group, retry_topic(group)) for group in failing}
        for group, topic in sorted(consumed):
            for place, stored in self._run.stored.items():
                if place[0] != topic:
                    continue
                ledger = self._run.ledgers.get((group, *place)) or self._run.new_ledger(
                    (group, *place)
                )
                missing = ledger.first_missing(stored, stored.base + len(stored.flags))
                if missing >= 0:
                    text = f"the run is over and nobody finished offset {missing}"
                    self._run.violate("I4", ledger, text, stored.refs[missing - stored.base])

    def committed(self, ledger: Ledger) -> int:
        stored = self._run.stored.get(ledger.name[1:])
        if stored is None:
            return 0
        low = max(ledger.start or 0, stored.base)
        if ledger.acked <= low:
            return 0
        return stored.flags[low - stored.base : ledger.acked - stored.base].count(EXISTS)

    def _check_late_store(
        self, ledger: Ledger, stored: StoredQueue, offsets: Sequence[int], ref: int
    ) -> None:
        for offset in offsets:
            if offset >= ledger.acked:
                return
            owed = stored.flags[offset - stored.base] == EXISTS
            if owed and not ledger.is_settled(offset):
                text = f"offset {ledger.acked} is committed, but nobody finished offset {offset}"
                self._run.violate("I4", ledger, text, ref, ledger.acked_by)

    def _note_start(self, ledger: Ledger, offset: int) -> None:
        """A group's first commit before its first START says where it begins
        (docs/internals/semantics.md#pull-loop)."""
        if ledger.start is None and self._run.starts is None and not ledger.started_any:
            ledger.start = offset
