"""Tag expressions (docs/internals/protocol.md#tags)."""

from __future__ import annotations

import pytest

from ordermq.errors import ConfigError
from ordermq.model.subscription import Subscription


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * ", "a || *"])
def test_no_expression_and_a_star_subscribe_to_all_messages(expression: str | None) -> None:
    assert Subscription.parse("T", expression, 7) == Subscription("T", "*", (), 7)
    assert Subscription.parse("T", expression, 7).tag_hashes == ()


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("a", ("a",)),
        ("TagA || TagB", ("TagA", "TagB")),
        (" b||a ||b||", ("b", "a")),
        ("|| a b ||", ("a b",)),
        ("订单", ("订单",)),
    ],
)
def test_tags_are_trimmed_and_kept_once_each_in_their_order(
    expression: str, tags: tuple[str, ...]
) -> None:
    assert Subscription.parse("T", expression, 0).tags == tags


def test_a_subscription_has_the_hashes_of_its_tags() -> None:
    assert Subscription.parse("T", "TagA||TagB", 0).tag_hashes == (2_598_919, 2_598_920)


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("a,b", "a || b"),
        ("a, b ,c", "a || b || c"),
        ("a && b", "a || b"),
        ("a|b", "a || b"),
        ("a || b|c", "a || b || c"),
    ],
)
def test_tags_joined_otherwise_are_refused_with_the_form_that_works(
    expression: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Subscription.parse("T", expression, 0)
    assert f"write {meant!r}" in str(caught.value)
    assert Subscription.parse("T", meant, 0).tags == tuple(meant.split(" || "))


@pytest.mark.parametrize("expression", [["a", "b"], 5])
def test_an_expression_that_is_no_text_is_refused_by_its_type(expression: object) -> None:
    with pytest.raises(ConfigError, match=f"not a {type(expression).__name__}"):
        Subscription.parse("T", expression, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", [["orders", "bills"], ("orders",), b"orders", None])
def test_a_topic_that_is_no_text_is_refused_by_its_type(topic: object) -> None:
    with pytest.raises(ConfigError, match=f"one topic as a str, not a {type(topic).__name__}"):
        Subscription.of(topic, "*", None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_of_nothing_but_separators_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="contains no tag"):
        Subscription.parse("T", expression, 0)


@pytest.mark.parametrize(
    "expression",
    [
        "amount > 50",
        "amount>50",
        "amount >= 5 AND TAGS = 'paid'",
        "region = 'x'",
        "a is not null",
        "TAGS in ('a', 'b')",
        "paid || amount < 3",
        "red or blue",
    ],
)
def test_a_condition_in_place_of_tags_is_refused_and_says_where_it_belongs(expression: str) -> None:
    with pytest.raises(ConfigError, match="looks like a condition: write sql="):
        Subscription.parse("T", expression, 1)


@pytest.mark.parametrize("tag", ["type=1", "a b", "order-paid", "band", "a->b", "in", "订单", "IS"])
def test_a_tag_that_only_resembles_a_condition_is_a_tag(tag: str) -> None:
    assert Subscription.parse("T", tag, 1).tags == (tag,)
