"""Is every byte counted once, under what it is for, and do totals survive forgotten steps?"""

import threading

from thinwire.comm.ledger import Ledger, LedgerRow


def counted() -> Ledger:
    ledger = Ledger()
    for step, tag, num_bytes, peer in ((0, "theta", 8, 1), (0, "kv-forward", 100, 1), (1, "kv-forward", 50, 2)):
        ledger.count(operation="send", tag=tag, step=step, num_bytes=num_bytes, peer=peer)
    return ledger


def test_totals_sum_over_what_is_not_given() -> None:
    ledger = counted()
    assert ledger.total() == 158
    assert ledger.total(tag="kv-forward") == 150
    assert ledger.total(operation="send", step=0) == 108
    assert ledger.total(tag="kv-forward", step=1) == 50
    assert ledger.total(operation="other") == 0
    assert ledger.by_tag() == {"theta": 8, "kv-forward": 150}


def test_rows_join_messages_of_one_kind() -> None:
    ledger = counted()
    ledger.count(operation="send", tag="theta", step=0, num_bytes=4, peer=1)
    assert ledger.rows()[1] == LedgerRow("send", "kv-forward", 1, 2, 50, 1)
    assert ledger.rows()[2] == LedgerRow("send", "theta", 0, 1, 12, 2)


def test_forgotten_steps_stay_in_the_totals() -> None:
    ledger = counted()
    ledger.forget_steps(before=1)
    assert [row.step for row in ledger.rows()] == [1]
    assert (ledger.total(), ledger.total(tag="theta"), ledger.total(step=0)) == (158, 8, 0)


def test_threads_lose_no_message() -> None:
    ledger = Ledger()

    def work() -> None:
        for _ in range(1000):
            ledger.count(operation="send", tag="sync", step=0, num_bytes=1, peer=0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total() == 4000
