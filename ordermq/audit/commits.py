"""Stored messages, committed offsets and stored starts: I4, I8 and I16."""

from __future__ import annotations

from collections.abc import Sequence

from ordermq.audit.delivered_offsets import EXISTS, DeliveredOffsets, Ownership, StoredQueue
from ordermq.audit.history import Event
from ordermq.audit.ownership import OwnershipRules
from ordermq.audit.report import Cause
from ordermq.audit.run import Process, Run
from ordermq.model.names import retry_topic


class CommitRules:
    """Checks STORE, COMMIT_SENT, COMMIT_ACK, RESET and POSITION."""

    def __init__(self, run: Run, ownership: OwnershipRules) -> None:
        self._run = run
        self._ownership = ownership
        # By group; the first of each: text, and the events concerned.
        self._moved_back: dict[str, tuple[DeliveredOffsets, str, int, int]] = {}

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
        for progress in self._run.progress_by_queue.values():
            # A commit may be recorded before the STORE of a message that it covers.
            if progress.acked > offsets[0] and progress.name[1:] == place and progress.started_any:
                self._check_late_store(progress, stored, offsets, ref)

    def on_commit_sent(self, t: int, ref: int, event: Event) -> None:
        progress, stored = self._run.both(event)
        offset = event["off"]
        self._note_start(progress, offset)
        if event.get("epoch", 0) <= 0:
            progress.ownerships.setdefault(
                (event["p"], 0), Ownership(event["p"], 0, len(progress.causes) - 1, ref, t)
            ).commits[offset] = (ref, progress.first_missing(stored, offset), -1)
            return
        ownership = self._ownership.ownership_of(t, ref, event, progress)
        self._ownership.check_lease(t, ref, progress, ownership, f"a commit of {offset} was sent")
        current = progress.current
        newer = -1 if current is None or current is ownership else current.granted_by
        ownership.commits[offset] = (ref, progress.first_missing(stored, offset), newer)

    def on_commit_ack(self, t: int, ref: int, event: Event) -> None:
        progress, stored = self._run.both(event)
        offset, epoch = event["off"], event.get("epoch", 0)
        by_broker = "client" in event or self._run.process(event).is_broker
        client = event.get("client", "") if by_broker else event["p"]
        if by_broker:
            self._run.broker_speaks(event)
            progress.broker_seen = True
        ownership = progress.ownerships.get((client, epoch))
        if ownership is not None:
            ownership.acked = max(ownership.acked, offset)
        if by_broker != progress.broker_seen:
            return  # one acknowledgement, recorded by the broker and then by the client
        self._note_start(progress, offset)
        sent, missing, newer = ref, -1, -1
        if ownership is not None and offset in ownership.commits:
            sent, missing, newer = ownership.commits.pop(offset)
        elif progress.started_any:
            missing = progress.first_missing(stored, offset)
        if missing >= 0 and (progress.started_any or ownership is not None):
            text = f"offset {offset} is committed, but offset {missing} was not finished"
            self._run.violate("I4", progress, text, stored.refs[missing - stored.base], sent, ref)
        if ownership is not None and ownership.released_by_commit:
            # The next owner may have committed before this answer was recorded.
            offset = max(offset, progress.acked)
        if offset < progress.acked:
            text = f"{client} moved the committed offset back from {progress.acked} to {offset}"
            self._moved_back.setdefault(progress.name[0], (progress, text, progress.acked_by, ref))
        if by_broker and 0 < epoch < progress.epoch:
            newer = progress.epoch_ref
        if newer >= 0:
            text = f"a commit of epoch {epoch} was accepted after a newer epoch was granted"
            self._run.violate("I8", progress, text, newer, ref)
        progress.acked, progress.acked_by = offset, ref

    def on_reset(self, t: int, ref: int, event: Event) -> None:
        if event.get("group"):
            progress_by_queue = [self._run.progress(event)]
        else:  # the topic was deleted
            place = (event.get("topic", ""), event.get("broker", ""), event["queue"])
            self._run.stored_queue(place).forget()
            progress_by_queue = [
                each for each in self._run.progress_by_queue.values() if each.name[1:] == place
            ]
        for progress in progress_by_queue:
            offset = event["off"]
            if progress.start is None and self._run.starts is None and not progress.started_any:
                progress.start = offset
            progress.skipped_to = max(progress.skipped_to, offset)
            progress.acked, progress.acked_by = offset, ref
            ownership = progress.current
            if ownership is not None:
                ownership.generation = progress.begin_generation(Cause.RESET)
                ownership.reopen(offset)
                ownership.acked = offset

    def on_position(self, t: int, ref: int, event: Event) -> None:
        self._run.process(event).positions.add(self._run.progress(event).name)

    def check_starts_are_stored(self) -> None:
        for process in self._run.processes.values():
            self.check_starts_are_stored_by(process)

    def check_starts_are_stored_by(self, process: Process) -> None:
        """Check one incarnation of a process, at its end, and forget it."""
        # One that records no position at all is of an older version, or reads a queue whose
        # positions somebody else keeps.
        if process.positions:
            for name, ref in process.blind_starts.items():
                text = "a listener got the first messages before the queue's start was stored"
                self._run.violate("I16", self._run.progress_by_queue[name], text, ref)
        process.positions.clear()
        process.blind_starts.clear()

    def check_commits_only_grow(self) -> None:
        # Asked at the end. Members of a concurrent group hold no locks, so that one that leaves
        # may commit after the next owner, and the group may show that it is one only later.
        for group, (progress, text, *refs) in self._moved_back.items():
            if group not in self._run.unlocked_groups:
                self._run.violate("I8", progress, text, *refs)

    def check_nothing_is_left(self) -> None:
        progress_by_queue = self._run.progress_by_queue.values()
        consumed = {each.name[:2] for each in progress_by_queue if each.started_any}
        # Messages that a concurrent group sends back are redelivered in its retry topic.
        failing = {each.name[0] for each in progress_by_queue if each.is_unlocked and each.diverted}
        consumed |= {(group, retry_topic(group)) for group in failing}
        for group, topic in sorted(consumed):
            for place, stored in self._run.stored.items():
                if place[0] != topic:
                    continue
                progress = self._run.progress_by_queue.get(
                    (group, *place)
                ) or self._run.new_progress((group, *place))
                missing = progress.first_missing(stored, stored.base + len(stored.flags))
                if missing >= 0:
                    text = f"the run has ended and offset {missing} was not finished"
                    self._run.violate("I4", progress, text, stored.refs[missing - stored.base])

    def committed(self, progress: DeliveredOffsets) -> int:
        stored = self._run.stored.get(progress.name[1:])
        if stored is None:
            return 0
        low = max(progress.start or 0, stored.base)
        if progress.acked <= low:
            return 0
        return stored.flags[low - stored.base : progress.acked - stored.base].count(EXISTS)

    def _check_late_store(
        self, progress: DeliveredOffsets, stored: StoredQueue, offsets: Sequence[int], ref: int
    ) -> None:
        for offset in offsets:
            if offset >= progress.acked:
                return
            is_required = stored.flags[offset - stored.base] == EXISTS
            if is_required and not progress.is_settled(offset):
                text = f"offset {progress.acked} is committed, but offset {offset} was not finished"
                self._run.violate("I4", progress, text, ref, progress.acked_by)

    def _note_start(self, progress: DeliveredOffsets, offset: int) -> None:
        """Take a group's first commit before its first START as its first offset
        (docs/internals/semantics.md#pull-loop)."""
        if progress.start is None and self._run.starts is None and not progress.started_any:
            progress.start = offset
