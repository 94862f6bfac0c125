"""Settings of the embedded broker."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ordermq.config.checks import (
    DAY_MS,
    require_choice,
    require_flags,
    require_paths,
    require_range,
    require_server_name,
)
from ordermq.errors import ConfigError
from ordermq.value import Value


class Durability(StrEnum):
    """Point at which the embedded broker acknowledges a write."""

    FSYNC = "fsync"  # on disk
    OS = "os"  # with the operating system: survives kill -9, not a power failure


_KINDS = ("Topic", "Group", "Cluster")
_ACTIONS = frozenset({"ALL", "PUB", "SUB", "CREATE", "UPDATE", "DELETE", "GET", "LIST"})


class AccessPolicy(Value):
    """One thing that an account of the embedded broker may do, or may not.

    Args:
        resource: `Topic:orders`, `Group:billing` or `Cluster:DefaultCluster`; a name that ends in
            `*` stands for all that begin so, and `*` alone for every resource.
        actions: any of PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST, or ALL; a list, or one text
            with commas.
        decision: ALLOW or DENY.
    Raises: ConfigError: a word that is none of these.
    """

    resource: str
    actions: Sequence[str]
    decision: str = "ALLOW"

    def __post_init__(self) -> None:
        given = self.actions.split(",") if isinstance(self.actions, str) else self.actions
        actions = tuple(str(action).strip().upper() for action in given)
        object.__setattr__(self, "actions", actions)
        object.__setattr__(self, "decision", str(self.decision).upper())
        kind, colon, name = str(self.resource).partition(":")
        if self.resource != "*" and (kind not in _KINDS or not colon or not name):
            raise ConfigError(
                f"AccessPolicy.resource={self.resource!r}: expected one like 'Topic:orders', "
                "'Group:bill*', 'Cluster:*', or '*'"
            )
        if not actions or not _ACTIONS.issuperset(actions):
            raise ConfigError(
                f"AccessPolicy.actions={self.actions!r}: expected any of "
                f"{', '.join(sorted(_ACTIONS))}"
            )
        if self.decision not in ("ALLOW", "DENY"):
            raise ConfigError(f"AccessPolicy.decision={self.decision!r}: expected ALLOW or DENY")

    @property
    def is_denial(self) -> bool:
        """True if it forbids."""
        return self.decision == "DENY"

    @property
    def specificity(self) -> tuple[bool, bool, int]:
        """Rank among policies: kinds above none, whole names above beginnings, long above short."""
        _, _, name = self.resource.partition(":")
        return self.resource != "*", not self.resource.endswith("*"), len(name)

    def matches(self, kind: str, name: str, action: str) -> bool:
        """Return True if it says something about an action to a resource."""
        if action not in self.actions and "ALL" not in self.actions:
            return False
        if self.resource == "*":
            return True
        own_kind, _, own_name = self.resource.partition(":")
        if own_name.endswith("*"):
            return own_kind == kind and name.startswith(own_name[:-1])
        return own_kind == kind and name == own_name


class BrokerConfig(Value, kw_only=True):
    """The embedded broker."""

    # Name of the broker in routes and message queues; up to 100 letters, digits and any of . _ | -
    broker_name: str = "embedded"
    # Name of its cluster, for admin tools and in the topic of replies; likewise, without a dot.
    cluster_name: str = "DefaultCluster"
    # Acknowledge a write after "fsync", or already when the "os" has it.
    durability: Durability = Durability.FSYNC
    # Check the whole database before serving if it was not closed in order; about 1 s per GB.
    check_after_crash: bool = True
    # A queue lock that is not renewed for this long may be taken by another member.
    # 100 ms..1 day.
    lock_max_live_ms: int = 60_000
    # Create a topic with the first message sent to it.
    auto_create_topics: bool = True
    # Most queues of a topic created by its first message. 1..65535.
    default_queue_count: int = 8
    # Time without heartbeat after which a member is removed. 10 ms..1 day.
    client_expiry_ms: int = 120_000
    # Time between checks for expired members and locks. 10 ms..1 day.
    client_scan_interval_ms: int = 10_000
    # Longest time between checks of held pulls; clients set how long one is held. 10 ms..1 day.
    pull_recheck_interval_ms: int = 5_000
    # Largest message body in bytes. 1..16000000.
    max_message_bytes: int = 4_194_304
    # Longest frame in bytes; a longer one closes the connection. 1024..2^30.
    max_frame_bytes: int = 16_777_216
    # Most connections at the same time; fewer if `ulimit -n` allows fewer. 1..2^20.
    max_connections: int = 4_096
    # Most connections of one IP address. 1..2^20.
    max_connections_per_address: int = 1_024
    # Silence of a client after which its connection is closed; 0: never. 0 ms..1 day.
    idle_close_ms: int = 120_000
    # Time in which a frame must be complete once it has begun. 10 ms..1 day.
    frame_timeout_ms: int = 60_000
    # Bytes of unfinished frames of all connections together, at least one frame; beyond it the
    # connection with most of them is closed. 0..2^40.
    max_unfinished_bytes: int = 134_217_728
    # With accounts: longest frame of a connection before its first good signature; the largest
    # message should fit, because a producer's first request may be a send. 1024..2^30.
    max_unsigned_frame_bytes: int = 4_259_840
    # Bytes of answers that wait for one client to read them; beyond it the connection is closed.
    # 4194304..2^40.
    max_unsent_bytes: int = 67_108_864
    # Time in which a client must read something of its answers. 10 ms..1 day.
    reader_timeout_ms: int = 60_000
    # Most messages in one pull response, whatever the client asks for. 1..65535.
    max_pull_messages: int = 1_024
    # Most bytes in one pull response, likewise. 1..16000000.
    max_pull_bytes: int = 1_048_576
    # Newest messages of a queue among which the broker looks for a copy that a producer sent
    # again, so that it is stored once; 0: every copy is stored, as RocketMQ does. 0..2^20.
    duplicate_window: int = 4_096
    # Writes joined into one transaction of the store. 1..2^20.
    group_commit_max: int = 4_096
    # Retries of a message by a group before its dead-letter topic. 0..2^31.
    retry_max_times: int = 16
    # Age at which messages are deleted; 0: never (RocketMQ: 72 hours). 0 ms..3650 days.
    retention_ms: int = 0
    # Size of the store above which the oldest messages are deleted; 0: no limit. 0..2^62.
    retention_bytes: int = 0
    # Time between checks of both limits. 10 ms..1 day.
    retention_interval_ms: int = 60_000
    # Longest delay of a timed message. 1000 ms..3650 days.
    timer_max_delay_ms: int = 3 * DAY_MS
    # Age of a half message at which its producer is first asked for its state. 1 ms..1 day.
    transaction_timeout_ms: int = 6_000
    # Time between such checks. 10 ms..1 day.
    transaction_check_interval_ms: int = 30_000
    # Inconclusive checks after which the broker stops asking. 1..1000.
    transaction_check_max: int = 15
    # Age at which it also stops if no producer was there to be asked. 1 ms..365 days.
    transaction_max_age_ms: int = 3 * DAY_MS
    # A group without committed offset starts at offset 0 in a queue that still has its first
    # message, as with RocketMQ's broker (rmq#9083). False: consume_from_where alone decides.
    new_groups_start_at_zero: bool = True
    # Deprecated name of new_groups_start_at_zero.
    young_queues_from_zero: bool = False
    # Secret keys by access key; not empty: only requests signed by one of these accounts are
    # served (docs/internals/protocol.md#signed-requests).
    accounts: Mapping[str, str] = field(default_factory=dict, repr=False)
    # What accounts may do, by access key, as lists of AccessPolicy; an account that is not named
    # here may do everything (docs/security.md#policies).
    policies: Mapping[str, Sequence[AccessPolicy]] = field(default_factory=dict)
    # Server certificate (PEM). Enables TLS: other connections are refused.
    tls_certificate: str = ""
    # Key (PEM) of tls_certificate; empty: it is in the same file.
    tls_key: str = ""
    # CA bundle (PEM). Requires client certificates that it verifies.
    tls_client_ca_file: str = ""

    def __post_init__(self) -> None:
        require_flags(self)
        if self.young_queues_from_zero:
            warnings.warn(
                "BrokerConfig.young_queues_from_zero is deprecated: use new_groups_start_at_zero",
                DeprecationWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "new_groups_start_at_zero", True)
            # Taken back: else `replace` of this config would warn again, and two configs that
            # mean the same would differ.
            object.__setattr__(self, "young_queues_from_zero", False)
        require_server_name(self, "broker_name", "._|-")
        # No dot: it is a part of the topic of replies.
        require_server_name(self, "cluster_name", "_|-")
        require_paths(self, "tls_certificate", "tls_key", "tls_client_ca_file")
        for name in ("accounts", "policies"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"BrokerConfig.{name}: expected a dict by access key")
        for name in ("tls_key", "tls_client_ca_file"):
            if getattr(self, name) and not self.tls_certificate:
                raise ConfigError(f"BrokerConfig.{name} is given without tls_certificate")
        if not all(
            isinstance(text, str) and text for pair in self.accounts.items() for text in pair
        ):
            raise ConfigError("BrokerConfig.accounts: expected access keys and their secret keys")
        for access_key, policies in self.policies.items():
            if access_key not in self.accounts:
                raise ConfigError(f"BrokerConfig.policies: {access_key!r} is none of its accounts")
            if not all(isinstance(each, AccessPolicy) for each in policies):
                raise ConfigError(
                    f"BrokerConfig.policies[{access_key!r}]: expected a list of AccessPolicy"
                )
        require_choice(self, durability=Durability)
        require_range(
            self,
            lock_max_live_ms=(100, DAY_MS),
            default_queue_count=(1, 65_535),
            client_expiry_ms=(10, DAY_MS),
            client_scan_interval_ms=(10, DAY_MS),
            pull_recheck_interval_ms=(10, DAY_MS),
            max_message_bytes=(1, 16_000_000),
            max_frame_bytes=(1_024, 1 << 30),
            max_connections=(1, 1 << 20),
            max_connections_per_address=(1, 1 << 20),
            idle_close_ms=(0, DAY_MS),
            frame_timeout_ms=(10, DAY_MS),
            max_unfinished_bytes=(0, 1 << 40),
            max_unsigned_frame_bytes=(1_024, 1 << 30),
            max_unsent_bytes=(4_194_304, 1 << 40),
            reader_timeout_ms=(10, DAY_MS),
            max_pull_messages=(1, 65_535),
            max_pull_bytes=(1, 16_000_000),
            duplicate_window=(0, 1 << 20),
            group_commit_max=(1, 1 << 20),
            retry_max_times=(0, 1 << 31),
            retention_ms=(0, 3_650 * DAY_MS),
            retention_bytes=(0, 1 << 62),
            retention_interval_ms=(10, DAY_MS),
            timer_max_delay_ms=(1_000, 3_650 * DAY_MS),
            transaction_timeout_ms=(1, DAY_MS),
            transaction_check_interval_ms=(10, DAY_MS),
            transaction_check_max=(1, 1_000),
            transaction_max_age_ms=(1, 365 * DAY_MS),
        )
