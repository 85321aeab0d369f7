"""The work queue, rule by rule."""

from kvgrove_operator.work_queue import Pace, WorkQueue

PACE = Pace(between=1.0, first_backoff=2.0, longest_backoff=8.0, attempts=3, keys=3)


def queue(jitter: float = 0.0) -> WorkQueue[str]:
    return WorkQueue(jitter=lambda: jitter, pace=PACE)


def test_many_events_for_one_object_are_one_piece_of_work() -> None:
    work = queue()
    for moment in range(5):
        work.add("a", float(moment))
    assert work.take(5.0) == "a"
    assert work.take(5.0) is None


def test_what_is_added_while_it_is_worked_on_is_looked_at_again() -> None:
    work = queue()
    work.add("a", 0.0)
    assert work.take(0.0) == "a"
    work.add("a", 0.1)
    assert work.take(10.0) is None  # one worker at a time
    work.done("a", 0.2)
    assert work.take(1.1) is None  # at most one look a second
    assert work.take(1.2) == "a"


def test_ops_06_retries_are_bounded_and_the_next_event_heals() -> None:
    work = queue()
    work.add("a", 0.0)
    now = 0.0
    for attempt in (1, 2, 3):
        due = work.next_due()
        assert due is not None
        now = due
        assert work.take(now) == "a"
        trouble = work.failed("a", now, "no")
        assert trouble.attempts == attempt
    assert trouble.exhausted
    assert work.next_due() is None  # it is not tried for ever
    assert work.trouble("a") == trouble
    work.add("a", now + 100)
    assert work.take(now + 100) == "a"
    work.done("a", now + 100)
    assert work.trouble("a") is None


def test_events_do_not_shorten_a_backoff() -> None:
    work = queue(jitter=0.5)
    work.add("a", 0.0)
    work.take(0.0)
    work.failed("a", 0.0, "no")
    work.add("a", 0.5)
    assert work.next_due() == 1.5  # half of the first backoff, and half of the other half


def test_a_backoff_doubles_up_to_its_bound() -> None:
    work: WorkQueue[str] = WorkQueue(jitter=lambda: 0.0, pace=Pace(first_backoff=2.0, longest_backoff=5.0, attempts=9))
    work.add("a", 0.0)
    waits = []
    now = 0.0
    for _ in range(4):
        assert work.take(now) == "a"
        work.failed("a", now, "no")
        due = work.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [1.0, 2.0, 2.5, 2.5]


def test_ops_11_what_everybody_waits_for_comes_before_what_is_due_for_longer() -> None:
    work: WorkQueue[str] = WorkQueue(jitter=lambda: 0.0, pace=Pace(between=1.0), first=("plan",))
    for key in "abc":
        work.add(key, 0.0)
    work.add("plan", 5.0)
    assert work.next_due() == 0.0
    assert work.take(4.0) == "a"  # it is not due yet
    assert [work.take(5.0) for _ in range(4)] == ["plan", "b", "c", None]
    work.add("plan", 5.5)  # once more, as soon as it is done and has rested
    work.done("plan", 6.0)
    work.done("a", 6.0)
    assert work.next_due() == 7.0
    assert work.take(7.0) == "plan"


def test_ops_11_what_comes_first_leaves_the_others_half_of_the_time() -> None:
    work: WorkQueue[str] = WorkQueue(jitter=lambda: 0.0, pace=Pace(between=1.0), first=("plan",))
    for key in ("plan", "a"):
        work.add(key, 0.0)
    assert [work.take(0.0), work.take(0.0)] == ["plan", "a"]
    for key in ("plan", "a"):
        work.add(key, 3.0)
        work.done(key, 10.0)
    assert [work.take(11.0), work.take(11.0)] == ["a", None]
    assert work.next_due() == 20.0


def test_a_full_queue_refuses_and_counts() -> None:
    work = queue()
    for key in "abcd":
        work.add(key, 0.0)
    assert (len(work), work.refused) == (3, 1)


def test_an_earlier_time_wins() -> None:
    work = queue()
    work.add("a", 0.0, delay=9.0)
    work.add("a", 0.0, delay=4.0)
    work.add("a", 0.0, delay=7.0)
    assert work.next_due() == 4.0
