import threading

from bench.guard import Guard


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def test_a_guard_ends_the_process_that_does_not_get_on_and_says_where_it_stands(capsys, monkeypatch):
    monkeypatch.setattr("bench.guard.GRACE", 0.0)
    ended = threading.Event()
    statuses = []
    clock = Clock()
    guard = Guard(3, 0.02, lambda status: (statuses.append(status), ended.set()), clock)
    guard.note = lambda: "rank 5 has not come to it"
    guard.at("allreduce, 8 bytes")
    assert not ended.wait(0.2)  # the clock stands still, so no time has passed
    clock.time = 0.03
    assert ended.wait(10)
    assert statuses == [1]
    text = capsys.readouterr().err
    assert "rank 3 has not got on for 0.02 s with: allreduce, 8 bytes (rank 5 has not come to it)" in text
    assert "test_a_guard_ends_the_process" in text  # the stack of the main thread


def test_a_sign_of_life_puts_the_end_off():
    clock = Clock()
    guard = Guard(0, 0.0, now=clock)
    guard.limit = 10.0
    guard.at("one")
    clock.time = 9.0
    guard.alive()
    clock.time = 18.0
    assert not guard._expired()
    clock.time = 20.0
    assert guard._expired()


def test_a_guard_at_rest_or_not_begun_ends_nothing():
    clock = Clock()
    guard = Guard(0, 0.0, now=clock)
    guard.limit = 1.0
    clock.time = 100.0
    assert not guard._expired()
    guard.at("one")
    guard.rest()
    clock.time = 200.0
    assert not guard._expired()


def test_no_limit_no_thread():
    before = threading.active_count()
    Guard(0, 0.0)
    assert threading.active_count() == before
