"""The plan of an instance: port, settings and Java options of each part."""

from __future__ import annotations

import argparse
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from console import CommandError
from elections import BROKER, replicated
from proxy import PROXY, proxy_plan, with_proxy

PORTS = range(20_000, 32_000)  # below what systems hand out to outgoing connections
# A limit, not a size. Where 256 MiB were used up, the threads of a broker's timers waited for
# memory, and messages whose leases had ended came minutes later, or not at all.
_DIRECT_MIB = 1024
BROKER_SETTINGS = {  # small sizes, for a laptop; --set and --properties override them
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": "67108864",
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "diskMaxUsedSpaceRatio": "99",
}


def plan_parts(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the plan of each part by its name; chooses the ports."""
    ports = free_ports()
    heap, of_proxies = options.heap, proxy_settings_of(options)
    broker_java = [f"-Xms{heap // 2}m", f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={_DIRECT_MIB}m"]
    name_server_port = next(ports)
    name_server = f"127.0.0.1:{name_server_port}"
    plan: dict[str, dict[str, Any]] = {
        "name-server": {
            "main": "org.apache.rocketmq.namesrv.NamesrvStartup",
            "port": name_server_port,
            "java": ["-Xms64m", "-Xmx128m"],
            "settings": {"listenPort": str(name_server_port)},
        }
    }
    if options.elections:
        plan |= replicated(plan["name-server"], folder, options.elections, ports, broker_java)
        for of_part in plan.values():
            if of_part["main"] == BROKER:
                given = settings_of(options)
                of_part["settings"] = BROKER_SETTINGS | of_part["settings"] | given
    for letter in () if options.elections else "abcdefgh"[: options.brokers]:
        for slave in (False, True) if options.slave else (False,):
            port = next(ports)
            name = f"broker-{letter}"
            part = f"{name}-slave" if slave else name
            settings = {
                **BROKER_SETTINGS,
                "brokerName": name,
                "brokerId": "1" if slave else "0",
                "brokerRole": "SLAVE" if slave else "ASYNC_MASTER",
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "namesrvAddr": name_server,
                "storePathRootDir": str(folder / part / "store"),
                "storePathCommitLog": str(folder / part / "store" / "commitlog"),
                **settings_of(options),
            }
            plan[part] = {
                "main": BROKER,
                "port": port,
                "java": broker_java,
                "settings": settings,
            }
            if options.proxy == "local":
                plan[part] = with_proxy(
                    plan[part], next(ports), next(ports), name_server, of_proxies
                )
    if options.proxy == "cluster":
        plan[PROXY] = proxy_plan(next(ports), next(ports), name_server, heap, of_proxies)
    for name, of_part in plan.items():
        own = [option_for(name, option) for option in options.java]
        of_part["java"] = [*of_part["java"], *filter(None, own)]
        of_part["env"] = dict(each.split("=", 1) for each in options.env)
    return plan


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    lines = [line for file in options.properties for line in file.read_text().splitlines()]
    told = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return dict(_pair(line, "autoCreateTopicEnable=false") for line in [*told, *options.set])


def proxy_settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return settings of proxies, whose file is JSON: numbers and booleans are none of text."""
    if options.proxy_set and not options.proxy:
        raise CommandError("--proxy-set needs --proxy")
    given = dict(_pair(line, "enableBatchAck=true") for line in options.proxy_set)
    return {name: _json_value(text) for name, text in given.items()}


def _pair(line: str, example: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise CommandError(f"{line!r}: expected a setting, for example {example}")
    return name.strip(), value.strip()


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def option_for(part: str, option: str) -> str:
    """Return a --java option without its part; empty if it is for another part."""
    if option.startswith("-"):
        return option
    name, _, own = option.partition(":")
    return own if name == part else ""


def free_ports() -> Iterator[int]:
    """Yield ports p with p-2 (a broker's VIP port), p and p+1 (replication) free."""
    taken: set[int] = set()
    while True:
        port = random.choice(PORTS)
        wanted = {port - 2, port - 1, port, port + 1}
        if taken.isdisjoint(wanted) and all(is_free(number) for number in wanted):
            taken |= wanted
            yield port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
