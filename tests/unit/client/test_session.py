"""Identity that clients tell (docs/internals/protocol.md#identifiers)."""

from __future__ import annotations

import re

import pytest

from ordermq.client.session import new_client_id
from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError

HERE = ("127.0.0.1:9876",)


def test_a_client_id_is_new_each_time_unless_it_is_named() -> None:
    config = RemotingConfig()
    first, second = new_client_id(config, HERE), new_client_id(config, HERE)
    assert re.fullmatch(r"127\.0\.0\.1@\d+#[0-9a-f]+", first)
    assert first != second
    assert new_client_id(config, HERE, "worker-1") == "127.0.0.1@worker-1"


def test_a_producers_id_has_its_name_and_is_new_each_time() -> None:
    config = RemotingConfig(unit_name="east")
    first, second = (new_client_id(config, HERE, "shop", is_producer=True) for _ in range(2))
    assert re.fullmatch(r"127\.0\.0\.1@shop#\d+#[0-9a-f]+@east", first)
    assert first != second


def test_javas_default_name_is_kept_by_broadcasting_members_only() -> None:
    config = RemotingConfig()
    assert new_client_id(config, HERE, "DEFAULT") != "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, "DEFAULT", is_broadcasting=True) == "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, is_broadcasting=True) == "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, "a", is_broadcasting=True) == "127.0.0.1@a"


def test_unit_and_address_are_part_of_it() -> None:
    config = RemotingConfig(unit_name="east", client_ip="10.0.0.7")
    assert new_client_id(config, HERE, "a") == "10.0.0.7@a@east"


def test_the_address_is_the_local_one_on_the_way_to_the_name_server() -> None:
    assert new_client_id(RemotingConfig(), ["[::1]:9876"], "a") in {"::1@a", "127.0.0.1@a"}
    assert new_client_id(RemotingConfig(), ["no-such-host.invalid:9876"], "a") == "127.0.0.1@a"


@pytest.mark.parametrize("name", ["", "a@b", "../a", "a b", "a\\b", "a\nb", "a" * 121])
def test_an_instance_name_that_would_make_another_id_or_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="instance_name"):
        new_client_id(RemotingConfig(), HERE, name)
    with pytest.raises(ConfigError, match="instance_name"):
        new_client_id(RemotingConfig(), HERE, name, is_broadcasting=True)


@pytest.mark.parametrize("address", ["a@b", "10.0.0.7/8", "10.0.0.7 "])
def test_an_address_that_would_make_another_id_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="client_ip"):
        RemotingConfig(client_ip=address)
