"""Rejected: a message that an application gave up, and the failure policy that moves it away."""

from __future__ import annotations

from dataclasses import replace

from ordermq.consumer.dispatch.failure_policy import FailurePolicy, Retry, matches


class Rejected(Exception):
    """A message was rejected: no retry can mend it.

    Raised to the consumer, whose failure policy moves the message to the dead-letter topic.
    """


def with_rejections(policy: FailurePolicy | None) -> FailurePolicy:
    """Return the policy of an ordered consumer, which moves rejected messages at once."""
    given = Retry() if policy is None else policy
    others = given.dead_letter_on

    def is_hopeless(error: BaseException) -> bool:
        return isinstance(error, Rejected) or matches(others, error)

    return replace(given, dead_letter_on=is_hopeless)
