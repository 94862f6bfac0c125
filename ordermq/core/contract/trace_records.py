"""Records of message traces, as Java's clients write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ordermq.core.contract.message_codec import MessageRun

TRACE_MOST_BYTES = 128_000  # of one trace message, about; as Java's AsyncTraceDispatcher
TRACE_MOST_KEY_BYTES = 16_000  # of one trace message, about: they must fit into its properties


class TraceRecords(Protocol):
    """Records of traces (`ordermq.remoting.trace`) that wait to be sent; any thread.

    They are gathered to the trace messages that they are sent in: texts, and the words that a
    trace message is found by, which are the ids and keys of the traced messages.

    Args:
        most: of records that wait; those of a call that do not fit are dropped together.
        enough: that wait; then `on_enough` is called, once until the next `take`.
        on_dropped: called with the number of records that are dropped.
    """

    def __init__(
        self,
        most: int,
        enough: int,
        on_enough: Callable[[], object],
        on_dropped: Callable[[int], object],
    ) -> None: ...

    @property
    def waiting(self) -> int:
        """Number of records that wait."""

    def add(self, text: str, message_id: str, keys: str | None) -> None:
        """Add a record, with the id and the keys of its message."""

    def add_begun(self, messages: MessageRun, group: bytes, request_id: str, at_ms: int) -> int:
        """Add that a listener call began, for each message that is traced. O(property bytes).

        Args: request_id: of the call, in all of its records.
        Returns: the number of the trace message, for `add_ended`; -1 if nothing was added, as the
            caller has to read what a message has in another way.
        """

    def add_ended(
        self,
        messages: MessageRun,
        group: bytes,
        request_id: str,
        begun_in: int,
        cost_ms: int,
        is_success: bool,
        code: int,
        at_ms: int,
    ) -> bool:
        """Add that it ended; False: as -1 of `add_begun`.

        Args:
            begun_in: what `add_begun` has returned.
            code: ordinal of Java's ConsumeReturnType.
        """

    def add_published(
        self,
        batch: Sequence[Any],
        receipts: Sequence[Sequence[Any]],
        head: bytes,
        host: bytes,
        is_success: bool,
        now_ms: int,
    ) -> bool:
        """Add that the messages of a request were stored.

        Args:
            batch: of `PendingFields`.
            receipts: of each; empty for those without a record.
            head: of each record, from behind its time to its id.
            host: the address of the broker.
        Returns: False: nothing was added, for a message is not an ordinary one.
        """

    def take(self) -> tuple[bytes, bytes, int] | None:
        """Remove the oldest trace message: its text, its words, and its number of records.

        Words are separated by blanks, and may be there twice.
        """


class TraceRules(Protocol):
    """The traces of one listener's calls: what is written natively, and who writes the rest."""

    @property
    def records(self) -> TraceRecords: ...
    @property
    def group(self) -> bytes:
        """Group of the records."""

    @property
    def one_id(self) -> Callable[[], str]:
        """Makes the id of a call."""

    @property
    def wall_ms(self) -> Callable[[], int]:
        """Returns the time, ms since 1970."""

    @property
    def success(self) -> object:
        """A result of a call whose end is recorded natively, if the call has no `ack_index`."""

    @property
    def other_success(self) -> object:
        """Another one."""

    @property
    def timeout_ms(self) -> int:
        """A call that took this or more has not simply succeeded."""

    @property
    def on_begin(self) -> Callable[[Any, str, int], object]:
        """Is given messages, id and time of a call whose begin cannot be recorded natively."""

    @property
    def on_end(self) -> Callable[[Any, Any, object, BaseException | None, int, str], object]:
        """Is given messages, context, result, error, ns and id of a call that did not simply
        succeed, or whose end cannot be recorded natively. The result of the call is its result,
        unless there was an error, which is raised again.
        """


class TracedListener(Protocol):
    """A listener whose calls are traced."""

    def __init__(self, listener: Callable[[Any, Any], Any], rules: TraceRules) -> None: ...

    def __call__(self, messages: Any, context: Any) -> Any: ...
