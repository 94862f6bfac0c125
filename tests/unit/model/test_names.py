"""Legal names (docs/internals/protocol.md#names-and-permissions)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import pytest

from ordermq.errors import ConfigError
from ordermq.model.names import (
    check_group,
    check_instance,
    check_sendable_topic,
    check_topic,
    dead_letter_topic,
    retry_topic,
    unwrapped,
    wrapped,
)


class Name(str, Enum):  # noqa: UP042 - what is meant: formatted, it is its name
    """As many programs keep their topics."""

    ORDERS = "orders"
    SHOP = "shop"


@pytest.mark.parametrize("name", ["a", "A-z_09|%", "%RETRY%g", "x" * 127])
def test_a_legal_topic_passes_unchanged(name: str) -> None:
    assert check_topic(name) == name == check_sendable_topic(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a.b", "订单", "a\n", "x" * 128, None, 5])
def test_any_other_topic_is_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="topic name"):
        check_topic(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"])
def test_system_topics_can_be_read_but_not_sent_to(name: str) -> None:
    assert check_topic(name) == name
    with pytest.raises(ConfigError, match="is a system topic of the broker"):
        check_sendable_topic(name)


def test_a_group_is_as_long_as_its_retry_topic_allows() -> None:
    longest = "g" * 120
    assert check_group(longest) == longest
    assert check_topic(retry_topic(longest)) == "%RETRY%" + longest
    assert check_topic(dead_letter_topic(longest)) == "%DLQ%" + longest
    with pytest.raises(ConfigError, match=r"121 characters: expected 1\.\.120"):
        check_group(longest + "g")


def test_a_retry_topic_has_room_for_the_names_of_a_group_and_a_topic() -> None:
    longest = retry_topic(f"{'g' * 120}_{'t' * 127}")
    assert check_topic(longest) == longest
    with pytest.raises(ConfigError, match=r"256 characters: expected 1\.\.255"):
        check_topic(longest + "t")


@pytest.mark.parametrize("name", ["DEFAULT_PRODUCER", "DEFAULT_CONSUMER"])
def test_reserved_groups_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        check_group(name)


@pytest.mark.parametrize("check", [check_topic, check_sendable_topic, check_group, check_instance])
def test_a_name_of_an_enum_is_its_value(check: Callable[[str], str]) -> None:
    checked = check(Name.ORDERS)
    assert (type(checked), f"{checked}") == (str, "orders")
    assert type(check("orders")) is str, "whichever of the two is asked for first"


def test_names_of_an_enum_are_wrapped_as_their_values() -> None:
    assert wrapped(Name.SHOP, Name.ORDERS) == "shop%orders"
    assert wrapped(Name.SHOP, retry_topic(Name.ORDERS)) == "%RETRY%shop%orders"
    assert wrapped(Name.SHOP, "shop%orders") == "shop%orders"
    assert unwrapped(Name.SHOP, "shop%orders") == "orders"
