"""Log lines about brokers that fail: one WARNING per outage, then one summary per 30 s."""

from __future__ import annotations

import logging
from collections import Counter

from ordermq.clock import Clock
from ordermq.errors import BrokerError
from ordermq.model.log_fields import log_fields

_log = logging.getLogger("ordermq.client")
_SUMMARY_INTERVAL_MS = 30_000
# Without a failure for this long an outage is over, also if no response ended it: sends and pulls
# pass by `Connections.request`, and a refused heartbeat is next tried after 30 s.
_FORGET_MS = 2 * _SUMMARY_INTERVAL_MS


class _Outage:
    """Failures of one address since its last response, or refusals of one kind of request."""

    def __init__(self, began_ms: int, reported_ms: int) -> None:
        self.began_ms = began_ms
        self.reported_ms = reported_ms
        self.failed_ms = began_ms
        self.failures = 0
        self.last_error: object = None
        self.unreported: Counter[str] = Counter()


class Outages:
    """Outages of the servers that one client talks to; on the I/O thread.

    A dead broker fails every queue it holds, several times a second. Its failures are counted
    here and reported together, so that one broker cannot fill the log of a whole process.

    Refused requests are counted apart, per address and action: a broker that refuses one of them
    answers all others, so its refusals do not end with the next response.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ongoing: dict[str, _Outage] = {}  # by address, or "address action" for refusals
        self._last_report_ms: dict[str, int] = {}

    def failed(
        self, address: str, action: str, error: object, *, meanwhile: str = "retrying"
    ) -> None:
        """Count a failure; log the first one of an outage, and a summary each 30 s after it.

        Args:
            address: of the server, or the broker's name if no route has its address.
            action: the request that failed, in one or two words, as `heartbeat`.
            meanwhile: what the client does about it.
        """
        now_ms = self._clock.now_ms()
        key = f"{address} {action}" if isinstance(error, BrokerError) else address
        outage = self.ongoing.get(key)
        if outage is None or now_ms - outage.failed_ms > _FORGET_MS:
            # A broker that answers now and then begins an outage each time. The interval is
            # kept across those, or a flapping broker would log a WARNING for each flap.
            reported_ms = self._last_report_ms.get(key, now_ms - _SUMMARY_INTERVAL_MS)
            outage = self.ongoing[key] = _Outage(now_ms, reported_ms)
        outage.failed_ms = now_ms
        outage.failures += 1
        outage.last_error = error
        outage.unreported[action] += 1
        if now_ms - outage.reported_ms < _SUMMARY_INTERVAL_MS:
            return
        if outage.failures == 1:
            _log.warning(
                "%s: %s failed: %s; %s, further failures are reported every %d s",
                address,
                action,
                error,
                meanwhile,
                _SUMMARY_INTERVAL_MS // 1_000,
                extra=log_fields(broker=address),
            )
        else:
            counts = ", ".join(
                f"{name} {count}" for name, count in sorted(outage.unreported.items())
            )
            _log.warning(
                "%s: still failing after %d s: %d failures (%s); last error: %s",
                address,
                (now_ms - outage.began_ms) // 1_000,
                outage.unreported.total(),
                counts,
                error,
                extra=log_fields(broker=address),
            )
        # No timer: while the outage lasts, retries come by several times a second.
        outage.unreported.clear()
        outage.reported_ms = self._last_report_ms[key] = now_ms

    def last_error(self, address: str) -> object:
        """Return the last failure of an address in its outage, not of a refusal; None without."""
        outage = self.ongoing.get(address)
        return None if outage is None else outage.last_error

    def forget(self, address: str) -> None:
        """Drop what is kept of an address that is not used any more."""
        for kept in (self.ongoing, self._last_report_ms):
            for key in [key for key in kept if key.partition(" ")[0] == address]:
                del kept[key]

    def answered(self, address: str) -> None:
        """End the address's outage, if there is one: it answered a request."""
        outage = self.ongoing.pop(address, None)
        if outage is not None:
            _log.info(
                "%s: answers again after %d s and %d failures",
                address,
                (self._clock.now_ms() - outage.began_ms) // 1_000,
                outage.failures,
            )
