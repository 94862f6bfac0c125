"""Receipts of the half messages of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from ordermq.model.receipts import SendReceipt
from ordermq.model.status import TransactionState


@dataclass(slots=True, unsafe_hash=True, repr=False)
class TransactionReceipt(SendReceipt):
    """Receipt of a half message, with the state that was reported to the broker.

    `queue_offset` and `offset_message_id` are those of the half message; `message_queue` is the
    queue of the message once it is committed.
    """

    state: TransactionState = TransactionState.UNKNOWN

    def _state(self) -> str:
        return f"{self.status.value} {self.state.value}"

    @property
    def transaction_id(self) -> str:
        """Id of the transaction at the broker, equal to the message's id."""
        return self.message_id
