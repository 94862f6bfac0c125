"""Identity that clients tell (docs/internals/protocol.md#identifiers)."""

from __future__ import annotations

import os
import re

import pytest

from ordermq.client.session import new_client_id
from ordermq.config import RemotingConfig
from ordermq.errors import ConfigError
from ordermq.model import identifiers

HERE = ("127.0.0.1:9876",)


def test_a_client_id_is_new_each_time_whatever_its_name() -> None:
    config = RemotingConfig(unit_name="east")
    for name, shown in ((None, ""), ("DEFAULT", ""), ("shop", "shop#")):
        ids = {new_client_id(config, HERE, name) for _ in range(1_000)}
        assert len(ids) == 1_000
        assert all(
            re.fullmatch(rf"127\.0\.0\.1@{shown}{os.getpid()}#[0-9a-f]+@east", each) for each in ids
        )


def test_clients_with_one_process_id_clock_and_name_have_ids_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in containers, where every process id is 1, on one host."""
    monkeypatch.setattr(identifiers.os, "getpid", lambda: 1)
    monkeypatch.setattr(identifiers.time, "time_ns", lambda: 1_795_000_000_000_000_000)
    config = RemotingConfig(client_ip="10.0.0.7")
    ids = {new_client_id(config, HERE, name) for name in ("till", None) for _ in range(1_000)}
    assert len(ids) == 2_000


def test_javas_default_name_is_kept_by_broadcasting_members_only() -> None:
    config = RemotingConfig()
    assert new_client_id(config, HERE, "DEFAULT") != "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, "DEFAULT", is_broadcasting=True) == "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, is_broadcasting=True) == "127.0.0.1@DEFAULT"
    assert new_client_id(config, HERE, "a", is_broadcasting=True) == "127.0.0.1@a"


def test_unit_and_address_are_part_of_it() -> None:
    config = RemotingConfig(unit_name="east", client_ip="10.0.0.7")
    assert re.fullmatch(r"10\.0\.0\.7@a#.*@east", new_client_id(config, HERE, "a"))
    assert new_client_id(config, HERE, "a", is_broadcasting=True) == "10.0.0.7@a@east"


def test_the_address_is_the_local_one_on_the_way_to_the_name_server() -> None:
    def address(server: str) -> str:
        return new_client_id(RemotingConfig(), [server], "a").partition("@")[0]

    assert address("[::1]:9876") in {"::1", "127.0.0.1"}
    assert address("no-such-host.invalid:9876") == "127.0.0.1"


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
