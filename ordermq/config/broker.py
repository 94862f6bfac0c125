"""Settings of the embedded broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ordermq.config.checks import (
    DAY_MS,
    number,
    require_choice,
    require_flags,
    require_paths,
    require_ranges,
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
    lock_max_live_ms: int = number(60_000, 100, DAY_MS)
    # Create a topic with the first message sent to it.
    auto_create_topics: bool = True
    # Most queues of a topic created by its first message.
    default_queue_count: int = number(8, 1, 65_535)
    # Time without heartbeat after which a member is removed.
    client_expiry_ms: int = number(120_000, 10, DAY_MS)
    # Time between checks for expired members and locks.
    client_scan_interval_ms: int = number(10_000, 10, DAY_MS)
    # Longest time between checks of held pulls; clients set how long one is held.
    pull_recheck_interval_ms: int = number(5_000, 10, DAY_MS)
    # Largest message body in bytes.
    max_message_bytes: int = number(4_194_304, 1, 16_000_000)
    # Longest frame in bytes; a longer one closes the connection.
    max_frame_bytes: int = number(16_777_216, 1_024, 1 << 30)
    # Most connections at the same time; fewer if `ulimit -n` allows fewer.
    max_connections: int = number(4_096, 1, 1 << 20)
    # Most connections of one IP address.
    max_connections_per_address: int = number(1_024, 1, 1 << 20)
    # Silence of a client after which its connection is closed; 0: never.
    idle_close_ms: int = number(120_000, 0, DAY_MS)
    # Time in which a frame must be complete once it has begun.
    frame_timeout_ms: int = number(60_000, 10, DAY_MS)
    # Bytes of unfinished frames of all connections together, at least one frame; beyond it the
    # connection with most of them is closed.
    max_unfinished_bytes: int = number(134_217_728, 0, 1 << 40)
    # With accounts: longest frame of a connection before its first good signature; the largest
    # message should fit, because a producer's first request may be a send.
    max_unsigned_frame_bytes: int = number(4_259_840, 1_024, 1 << 30)
    # Bytes of answers that wait for one client to read them; beyond it the connection is closed.
    max_unsent_bytes: int = number(67_108_864, 4_194_304, 1 << 40)
    # Time in which a client must read something of its answers.
    reader_timeout_ms: int = number(60_000, 10, DAY_MS)
    # Most messages in one pull response, whatever the client asks for.
    max_pull_messages: int = number(1_024, 1, 65_535)
    # Most bytes in one pull response, likewise.
    max_pull_bytes: int = number(1_048_576, 1, 16_000_000)
    # Newest messages of a queue among which the broker looks for a copy that a producer sent
    # again, so that it is stored once; 0: every copy is stored, as RocketMQ does.
    duplicate_window: int = number(4_096, 0, 1 << 20)
    # Writes joined into one transaction of the store.
    group_commit_max: int = number(4_096, 1, 1 << 20)
    # Retries of a message by a group before its dead-letter topic.
    retry_max_times: int = number(16, 0, 1 << 31)
    # Age at which messages are deleted; 0: never (RocketMQ: 72 hours).
    retention_ms: int = number(0, 0, 3_650 * DAY_MS)
    # Size of the store above which the oldest messages are deleted; 0: no limit.
    retention_bytes: int = number(0, 0, 1 << 62)
    # Time between checks of both limits.
    retention_interval_ms: int = number(60_000, 10, DAY_MS)
    # Longest delay of a timed message.
    timer_max_delay_ms: int = number(3 * DAY_MS, 1_000, 3_650 * DAY_MS)
    # Age of a half message at which its producer is first asked for its state.
    transaction_timeout_ms: int = number(6_000, 1, DAY_MS)
    # Time between such checks.
    transaction_check_interval_ms: int = number(30_000, 10, DAY_MS)
    # Inconclusive checks after which the broker stops asking.
    transaction_check_max: int = number(15, 1, 1_000)
    # Age at which it also stops if no producer was there to be asked.
    transaction_max_age_ms: int = number(3 * DAY_MS, 1, 365 * DAY_MS)
    # A group without committed offset starts at offset 0 in a queue that still has its first
    # message, as with RocketMQ's broker (rmq#9083). False: consume_from_where alone decides.
    new_groups_start_at_zero: bool = True
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
        require_ranges(self)
