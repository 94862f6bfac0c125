"""Differences between two members of a group, in words, and who asks whom."""

from __future__ import annotations

import pytest

from ordermq.consumer.group.subscriptions import differences, neighbour_of
from ordermq.remoting.bodies import MemberSubscriptions, member_subscriptions_from_body

RETRY = "%RETRY%g"


def wishes(is_orderly: bool | None = True, **subscriptions: str) -> MemberSubscriptions:
    return MemberSubscriptions(subscriptions, is_orderly)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wishes(orders="*"), wishes(orders="*")),
        (wishes(orders="*"), wishes(orders="")),
        (wishes(orders="a || b"), wishes(orders="b||a ")),
        (wishes(orders="*"), MemberSubscriptions({"orders": "*", RETRY: "*"}, True)),
        (wishes(orders="*"), wishes(None, orders="*")),
    ],
)
def test_members_that_want_the_same_agree(
    ours: MemberSubscriptions, theirs: MemberSubscriptions
) -> None:
    assert differences(ours, theirs, RETRY) == []


def test_each_difference_is_named_with_what_is_here_and_there() -> None:
    ours = wishes(orders="a", prices="*")
    theirs = wishes(False, orders="a || b", stock="*")
    assert differences(ours, theirs, RETRY) == [
        "topic orders is subscribed with 'a' here and subscribed with 'a || b'",
        "topic prices is subscribed with '*' here and not subscribed",
        "topic stock is not subscribed here and subscribed with '*'",
        "listening is orderly here and concurrently",
    ]


@pytest.mark.parametrize(
    ("here", "there", "twice"),
    [
        ((True, True), (True, True), ""),
        ((False, True), (False, True), ""),
        ((True, False), (False, False), ""),
        ((None, True), (True, True), ""),
        ((True, True), (None, True), ""),
        ((True, True), (False, True), "in order here and without order"),
        ((False, True), (True, True), "without order here and in order"),
        ((True, True), (True, False), "by pop here and by pulls"),
        ((False, False), (True, True), "by pulls here and by pop"),
    ],
)
def test_ways_that_do_not_know_of_each_other_consume_twice(
    here: tuple[bool | None, bool], there: tuple[bool | None, bool], twice: str
) -> None:
    ours, theirs = (MemberSubscriptions({"orders": "*"}, *way) for way in (here, there))
    found = [each for each in differences(ours, theirs, RETRY) if "twice" in each]
    assert found == ([f"each message is consumed twice, {twice}"] if twice else [])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(["b"], None), (["a", "c"], None), (["a", "b"], "a"), (["a", "b", "c"], "c"), ([], None)],
)
def test_the_neighbour_is_the_next_member_in_a_ring(ids: list[str], expected: str | None) -> None:
    assert neighbour_of("b", ids) == expected


def test_what_java_says_of_itself_is_read() -> None:
    body = (
        b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:{"locked":true}},'
        b'"properties":{"PROP_CONSUMEORDERLY":"true"},"subscriptionSet":['
        b'{"subString":"a || b","topic":"orders"}]}'
    )
    assert member_subscriptions_from_body(body) == wishes(True, orders="a || b")
