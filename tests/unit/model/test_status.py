"""Receipts of messages that lie back to back."""

from __future__ import annotations

import pytest

from ordermq.model.message_queue import MessageQueue
from ordermq.model.receipts import SendReceipt, SendReceipts
from ordermq.model.status import SendStatus

QUEUE = MessageQueue("T", "broker-a", 3)
OK = SendStatus.SEND_OK


def test_receipts_are_a_sequence_with_one_per_message() -> None:
    receipts = SendReceipts(QUEUE, 10, ["a", "b", "c"], ["x", "y", "z"], OK, "handle")
    expected = [
        SendReceipt(QUEUE, 10, "a", "x", OK, "handle"),
        SendReceipt(QUEUE, 11, "b", "y", OK, "handle"),
        SendReceipt(QUEUE, 12, "c", "z", OK, "handle"),
    ]
    assert list(receipts) == expected
    assert len(receipts) == 3
    for at in range(-3, 3):
        assert receipts[at] == expected[at]
    assert receipts[1:] == expected[1:]
    assert receipts[::-1] == expected[::-1]
    assert expected[1] in receipts
    assert list(reversed(receipts)) == expected[::-1]
    assert repr(receipts) == f"<3 receipts of {QUEUE} from 10>"


@pytest.mark.parametrize("position", [2, -3])
def test_there_is_no_receipt_past_the_last(position: int) -> None:
    receipts = SendReceipts(QUEUE, 10, ["a", "b"], ["x", "y"], OK, None)
    with pytest.raises(IndexError):
        receipts[position]
