"""Elastic states and the loop around a function, with scripted failures and no framework."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.elastic import ObjectState, State, notification_manager, run_fn
from horovod.common.exceptions import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    WorkerRemovedError,
)
from horovod.runner.elastic.worker import HostUpdateResult


def lost():
    """The error of a rank that was killed."""
    text = "lost rank 1 (node-b, slot 0): was killed"
    return HorovodInternalError(text, ranks=[1], hosts=["node-b"], cause="signal")


class Launcher:
    """Scripts what the native module does in an elastic job."""

    def __init__(self, monkeypatch, is_elastic=True):
        self.reported = []
        self.news = queue.Queue()
        self.numbers = []
        monkeypatch.setattr(_native, "is_elastic", lambda: is_elastic)
        monkeypatch.setattr(_native, "elastic_reached", self.reported.append)
        monkeypatch.setattr(_native, "elastic_departing", self.reported.append)
        monkeypatch.setattr(_native, "elastic_update", self._update)

    def _update(self, seen, timeout):
        self.numbers.append(seen)
        try:
            return self.news.get(timeout=min(timeout, 0.05))
        except queue.Empty:
            return None


@pytest.fixture
def launcher(monkeypatch):
    return Launcher(monkeypatch)


def same(value):
    return value


class Recorder(ObjectState):
    """A state that records the calls it gets."""

    def __init__(self, **values):
        self.calls = []
        super().__init__(same, lambda: 0, **values)

    def save(self):
        self.calls.append("save")
        super().save()

    def restore(self):
        self.calls.append("restore")
        super().restore()

    def sync(self):
        self.calls.append("sync")
        super().sync()

    def reset(self):
        self.calls.append("reset")


def scripted(state, *outcomes):
    """Runs a function with these outcomes, one per call; returns its result and the resets."""
    left = list(outcomes)
    resets = []

    def func(given):
        assert given is state
        state.calls.append("func")
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    result = run_fn(func, lambda: resets.append(1))(state)
    assert not left
    return result, len(resets)


def test_values_are_attributes_that_return_to_the_last_commit(launcher):
    state = ObjectState(same, lambda: 0, epoch=1, name="a")
    state.epoch, state.name = 2, "b"
    state.commit()
    state.epoch, state.name = 3, "c"
    state.restore()
    assert (state.epoch, state.name) == (2, "b")


def test_ranks_get_the_values_that_rank_0_saved():
    state = ObjectState(lambda _: {"epoch": 7}, lambda: 1, epoch=1)
    state.epoch = 3
    state.sync()
    assert state.epoch == 7
    state.epoch = 8
    state.restore()
    assert state.epoch == 7


def test_the_base_state_leaves_its_methods_to_subclasses():
    state = State(same, lambda: 0)
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()


def test_a_function_that_returns_is_called_once(launcher):
    state = Recorder(epoch=0)
    assert scripted(state, "done") == ("done", 0)
    assert state.calls == ["sync", "func"]
    assert launcher.reported == ["state"]


def test_a_lost_rank_restores_the_commit_and_rejoins(launcher, capsys):
    state = Recorder(epoch=0)
    assert scripted(state, lost(), 5) == (5, 1)
    assert state.calls == ["sync", "func", "restore", "reset", "sync", "func"]
    # The launcher has already reported it.
    assert capsys.readouterr().err == ""


def test_added_hosts_get_the_current_values_and_removed_hosts_skip_the_sync(launcher):
    class Agreeing(Recorder):
        def _is_needed(self, own):
            return own

    state = Agreeing(epoch=0)
    outcome = scripted(
        state, HostsUpdatedInterrupt(skip_sync=False), HostsUpdatedInterrupt(skip_sync=True), 5
    )
    assert outcome == (5, 2)
    again = ["save", "reset"]
    assert state.calls == ["sync", "func", *again, "sync", "func", *again, "func"]
    assert launcher.reported == ["state"] * 3


def test_values_are_sent_if_any_rank_needs_them(launcher):
    class HasNewRank(Recorder):
        def _is_needed(self, own):
            return True

    state = HasNewRank(epoch=0)
    scripted(state, HostsUpdatedInterrupt(skip_sync=True), 5)
    assert state.calls.count("sync") == 2


def test_live_values_are_sent_after_an_interrupt_between_two_commits(launcher):
    sent = []
    state = ObjectState(lambda values: sent.append(values) or values, lambda: 0, batch=0)

    def func(state):
        if state.batch == 3:
            return state.batch
        state.batch = 3
        raise HostsUpdatedInterrupt

    assert run_fn(func, lambda: None)(state) == 3
    assert sent == [{"batch": 0}, {"batch": 3}]


def test_a_failure_in_sync_or_in_a_callback_repeats_the_loop(launcher):
    class Unlucky(Recorder):
        failures = 2

        def sync(self):
            super().sync()
            if self.failures:
                self.failures -= 1
                raise lost()

    state = Unlucky(epoch=0)
    unlucky = [lost()]

    def callback():
        if unlucky:
            raise unlucky.pop()

    state.register_reset_callbacks([callback])
    assert scripted(state, 5) == (5, 3)
    assert state.calls.count("restore") == 3
    assert state.calls[-2:] == ["sync", "func"]


def test_callbacks_run_in_order_after_reset(launcher):
    state = Recorder(epoch=0)
    state.register_reset_callbacks([lambda: state.calls.append("first")])
    state.register_reset_callbacks([lambda: state.calls.append("second")])
    state.on_reset()
    assert state.calls == ["reset", "first", "second"]


def test_rejoining_is_retried_a_limited_number_of_times(monkeypatch):
    # Nothing else sleeps where no update can arrive.
    Launcher(monkeypatch, is_elastic=False)
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    left = [HorovodInternalError("the launcher is gone")] * 3
    state = Recorder(epoch=0)

    def reset():
        if left:
            raise left.pop()

    def func(state):
        if state.calls.count("func") == 0:
            state.calls.append("func")
            raise lost()
        return 5

    assert run_fn(func, reset)(state) == 5
    left.extend([HorovodInternalError("the launcher is gone")] * 100)
    state.calls.clear()
    with pytest.raises(HorovodInternalError, match="the launcher is gone"):
        run_fn(func, reset)(state)
    assert pauses == [0.05, 0.1, 0.2, 0.05, 0.1, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("error", [RuntimeError("x"), ValueError("lost rank 1")], ids=repr)
def test_a_framework_error_counts_as_a_loss_if_the_world_has_ended(launcher, monkeypatch, error):
    """Whatever its message: graphs and compiled programs pass on only a text."""
    foreign = (type(error),)
    calls = []

    def func(state):
        calls.append("func")
        if len(calls) < 2:
            raise error
        return "done"

    with pytest.raises(type(error)):
        run_fn(func, lambda: None, foreign)(Recorder(epoch=0))
    calls.clear()
    monkeypatch.setattr(_native, "last_loss", lost)
    with pytest.raises(type(error)):
        run_fn(func, lambda: None, (KeyError,))(Recorder(epoch=0))
    calls.clear()
    state = Recorder(epoch=0)
    assert run_fn(func, lambda: None, foreign)(state) == "done"
    assert state.calls.count("restore") == 1


def test_our_text_in_an_error_does_not_make_it_a_loss(launcher):
    error = RuntimeError("HorovodAllreduce: lost rank 1\nHorovod has been shut down.")
    state = Recorder(epoch=0)
    with pytest.raises(RuntimeError, match="lost rank 1"):
        scripted(state, error, 5)
    assert "restore" not in state.calls


def test_an_error_other_than_a_loss_is_printed(launcher, monkeypatch, capsys):
    monkeypatch.setattr(_native, "is_initialized", lambda: True)
    monkeypatch.setattr(_native, "rank", lambda: 3)
    scripted(Recorder(epoch=0), HorovodInternalError("Mismatched shapes of `x`"), 5)
    assert capsys.readouterr().err == "horovod: rank 3 restarting: Mismatched shapes of `x`\n"


def test_other_exceptions_propagate(launcher):
    state = Recorder(epoch=0)
    with pytest.raises(ZeroDivisionError):
        scripted(state, ZeroDivisionError())
    assert state not in notification_manager._listeners


def test_a_host_update_interrupts_all_ranks_once(launcher):
    state = ObjectState(same, lambda: 0, epoch=0)
    state.check_host_updates()
    state.on_hosts_updated(1, HostUpdateResult.removed)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync and state._last_updated_timestamp == 1
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.check_host_updates()
    for time_of, what in ((2, HostUpdateResult.removed), (3, HostUpdateResult.added)):
        state.on_hosts_updated(time_of, what)
    assert not state._host_messages.empty()
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync


def test_a_new_world_drops_old_host_updates_and_keeps_its_own(launcher, monkeypatch):
    state = ObjectState(same, lambda: 0, epoch=0)
    state.on_hosts_updated(1, HostUpdateResult.added)
    state.on_reset()
    state.check_host_updates()
    monkeypatch.setattr(_basics, "joined_at", 100.0)
    # The former rank 0 was on a host whose clock is ahead.
    state._last_updated_timestamp = 500.0
    state.on_hosts_updated(99.0, HostUpdateResult.removed)
    state.on_hosts_updated(101.0, HostUpdateResult.added)
    state.on_reset()
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync


def test_the_first_commit_of_each_world_is_reported(launcher, monkeypatch):
    state = ObjectState(same, lambda: 0, epoch=0)
    for world in (1, 1, 2, 2):
        monkeypatch.setattr(_basics, "worlds", world)
        state.commit()
    assert launcher.reported == ["commit", "commit"]


def test_host_updates_reach_the_running_state(launcher):
    state = ObjectState(same, lambda: 0, batch=0)

    def func(state):
        launcher.news.put((4, 2))
        while state.batch < 10_000:
            state.batch += 1
            state.check_host_updates()
            if state._last_updated_timestamp:
                return "met again"
            time.sleep(0.001)
        return "no update arrived"

    assert run_fn(func, lambda: None)(state) == "met again"
    assert 0 < time.time() - state._last_updated_timestamp < 60
    thread = notification_manager._thread
    if thread is not None:
        thread.join(10)
    assert notification_manager._thread is None
    assert {0, 4} <= set(launcher.numbers)


class Hearing(ObjectState):
    """A state that counts the host updates it gets."""

    notices = 0

    def on_hosts_updated(self, timestamp, update_res):
        super().on_hosts_updated(timestamp, update_res)
        assert update_res == HostUpdateResult.added
        self.notices += 1


def test_a_host_update_arrives_at_once_and_the_interrupt_when_its_ranks_are_ready(launcher):
    def func(state):
        if state.met:
            return "done"
        launcher.news.put((1, 4))
        wait_until(lambda: state.notices == 1)
        for _ in range(3):
            state.commit()
        launcher.news.put((2, 2))
        wait_until(lambda: state.notices == 2)
        state.met = True
        state.commit()
        raise AssertionError("the ranks must meet")

    state = Hearing(same, lambda: 0, met=False)
    assert run_fn(func, lambda: None)(state) == "done"


def test_a_script_that_waits_for_the_update_is_interrupted_at_its_next_commit(launcher):
    def func(state):
        if state.met:
            return "done"
        launcher.news.put((1, 4))
        # Horovod's own tests wait like this.
        wait_until(lambda: not state._host_messages.empty())
        state.met = True
        state.commit()
        raise AssertionError("the ranks must meet")

    state = Hearing(same, lambda: 0, met=False)
    assert run_fn(func, lambda: None)(state) == "done"


def test_updates_of_the_previous_world_are_requested_again(launcher, monkeypatch):
    reported = []

    class Listener:
        def on_hosts_updated(self, timestamp, update_res):
            reported.append(update_res)

    def update(seen, timeout):
        launcher.numbers.append(seen)
        if len(launcher.numbers) == 1:
            # The world changes during a wait for updates of the old one.
            _basics.worlds += 1
            return (3, 1)
        return (1, 2) if seen == 0 else time.sleep(0.01)

    monkeypatch.setattr(_basics, "worlds", 5)
    monkeypatch.setattr(_native, "elastic_update", update)
    listener = Listener()
    notification_manager.register_listener(listener)
    wait_until(lambda: reported)
    thread = notification_manager._thread
    notification_manager.remove_listener(listener)
    thread.join(10)
    assert reported == [HostUpdateResult.added] and launcher.numbers[:2] == [0, 0]


def test_without_a_launcher_there_is_no_listener_thread(monkeypatch):
    Launcher(monkeypatch, is_elastic=False)
    before = signal.getsignal(signal.SIGTERM)

    def func(state):
        assert notification_manager._thread is None
        assert signal.getsignal(signal.SIGTERM) is before
        return "done"

    assert run_fn(func, lambda: None)(ObjectState(same, lambda: 0)) == "done"


def test_sigterm_announces_the_departure_and_calls_the_programs_handler(launcher):
    calls = []

    def own(number, frame):
        calls.append(number)

    former = signal.signal(signal.SIGTERM, own)
    try:
        state = Recorder(epoch=0)

        def func(state):
            if "func" not in state.calls:
                state.calls.append("func")
                os.kill(os.getpid(), signal.SIGTERM)
                wait_until(lambda: calls)
                raise HostsUpdatedInterrupt
            return 5

        assert run_fn(func, lambda: launcher.reported.append("joined"))(state) == 5
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, former)
    assert calls == [signal.SIGTERM]
    # If this worker joins another world, it announces its departure again.
    reason = "it was sent SIGTERM"
    assert launcher.reported == ["state", reason, "joined", reason, "state"]


def test_sigterm_ends_a_forked_child_as_usual(launcher):
    def func(state):
        # Python loses signals that arrive while a child starts, so the child says when it is ready.
        parent, child = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            parent.close()
            child.send(b"here")
            # Returns when the signal arrives or the parent is gone.
            child.recv(1)
            os._exit(0)
        with parent, child:
            assert parent.recv(4) == b"here"
            os.kill(pid, signal.SIGTERM)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert run_fn(func, lambda: None)(Recorder(epoch=0)) == -signal.SIGTERM
    assert launcher.reported == ["state"]


def test_run_works_outside_the_main_thread(launcher):
    before = signal.getsignal(signal.SIGTERM)
    results = []
    state = Recorder(epoch=0)
    thread = threading.Thread(target=lambda: results.append(scripted(state, "done")))
    thread.start()
    thread.join(20)
    assert results == [("done", 0)] and signal.getsignal(signal.SIGTERM) is before


TWICE = """
import os, signal, sys, time
from horovod import _native
for name in ("is_elastic", "elastic_reached", "elastic_departing"):
    setattr(_native, name, lambda *_: True)
_native.elastic_update = lambda seen, timeout: time.sleep(timeout)
from horovod.common.elastic import ObjectState, run_fn

def func(state):
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)

run_fn(func, lambda: None)(ObjectState(lambda value: value, lambda: 0))
"""


def test_a_second_sigterm_ends_the_process_at_once():
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=50, check=False
    )
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "still here\n"), result.stderr
    assert time.monotonic() - started < 25


def test_a_removed_worker_exits_with_a_message_and_code_0(launcher, monkeypatch, capsys):
    text = "node-b[1] has been removed from elastic job: its host is gone"

    def init(*_):
        raise WorkerRemovedError(text)

    monkeypatch.setattr(_native, "init", init)
    with pytest.raises(SystemExit) as caught:
        run_fn(removed_later, _basics.rejoin)(ObjectState(same, lambda: 0))
    assert caught.value.code == 0
    assert capsys.readouterr().err == text + "\n"


def removed_later(state):
    raise HostsUpdatedInterrupt(skip_sync=True)


def test_the_environment_describes_the_current_world(launcher, monkeypatch):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    for name in (*(f"HOROVOD_{name}" for name in names), "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "7")
    for name, number in zip(names, range(1, 7)):
        monkeypatch.setattr(_native, name.lower(), lambda number=number: number)
    _basics._update_environment()
    assert [os.environ[f"HOROVOD_{name}"] for name in names] == list("123456")
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == list("124")
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


LATE = """
import numpy as np
import horovod.raw as hvd
from horovod.common.process_sets import global_process_set

hvd.init()
assert (hvd.rank(), hvd.size(), hvd.is_initialized()) == (1, 2, True)
assert global_process_set.included() and global_process_set.size() == 2
try:
    hvd.allreduce(np.ones(1))
except ValueError as error:
    assert "could not be reached" in str(error), error
else:
    raise AssertionError("no launcher can be reached here")
hvd.shutdown()
assert not hvd.is_initialized()
"""


def test_a_late_worker_joins_at_its_first_collective():
    """Until then it reports its expected rank and size, and connects to no one."""
    env = {
        **os.environ,
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "RONDE_WORKER": "3",
        "RONDE_LATECOMER": "1",
        "RONDE_RENDEZVOUS": "127.0.0.1:9",
        "RONDE_JOB_KEY": "00" * 32,
    }
    subprocess.run([sys.executable, "-c", LATE], env=env, check=True, timeout=50)
