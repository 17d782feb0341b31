"""Starting, interrupting and ending jobs: exit codes, signals, leftovers, foreign connections."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from jobs import Job, until

pytestmark = pytest.mark.timeout(60)


def test_a_successful_job_exits_with_zero(tmp_path):
    script = """
    hvd.init()
    print("sum", hvd.allreduce(torch.tensor([RANK + 1.0]), op=hvd.Sum).item())
    """
    with Job(tmp_path, 2, script) as job:
        assert job.wait() == 0, job.output()
        assert job.output().count("sum 3.0") == 2
        job.assert_nothing_left()


def test_every_rank_has_the_jobs_cookie(tmp_path):
    with Job(tmp_path, 2, "hvd.init()") as job:
        cookies = {event["job"] for event in job.hear("started")}
        assert len(cookies) == 1
        assert all(cookies)
        assert job.wait() == 0, job.output()


WAIT_FOR_EVER = """
hvd.init()
hvd.barrier()
say("waiting")
if RANK == 0:
    signal.pause()
hvd.allreduce(torch.ones(3))
"""


def test_interrupting_the_launcher_ends_everything(tmp_path):
    with Job(tmp_path, 2, WAIT_FOR_EVER) as job:
        job.hear("waiting")
        job.launcher.send_signal(signal.SIGINT)
        assert job.wait(10) == 128 + signal.SIGINT, job.output()
        job.assert_nothing_left()


def test_terminating_the_launcher_ends_everything(tmp_path):
    with Job(tmp_path, 2, WAIT_FOR_EVER) as job:
        job.hear("waiting")
        job.launcher.terminate()
        assert job.wait(10) == 128 + signal.SIGTERM, job.output()
        job.assert_nothing_left()


def test_killing_the_launcher_leaves_no_orphans(tmp_path):
    with Job(tmp_path, 2, WAIT_FOR_EVER) as job:
        job.hear("waiting")
        job.launcher.kill()
        job.launcher.wait()
        job.assert_nothing_left()


def test_an_interrupt_ends_a_waiting_call(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    if RANK == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            hvd.allreduce(torch.ones(3), name="never")
        except KeyboardInterrupt:
            say("interrupted", after=time.monotonic() - start)
    hvd.barrier()
    """
    with Job(tmp_path, 2, script) as job:
        (interrupted,) = job.hear("interrupted", [0], limit=20)
        assert interrupted["after"] < 2.0
        assert job.wait() == 0, job.output()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_joining_and_leaving_two_hundred_times_leaks_nothing(tmp_path, transport):
    script = """
    def open_now():
        with open("/proc/self/maps") as maps:
            shared = sum("memfd:" in line or "/dev/shm" in line for line in maps)
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mappings": shared,
        }

    def turn():
        hvd.init()
        assert hvd.allreduce(torch.ones(100), op=hvd.Sum)[0] == 2
        hvd.shutdown()

    def settled():
        # A joined thread may still be listed for a moment.
        last = None
        while last != (last := open_now()):
            time.sleep(0.1)
        return last

    turn()
    before = settled()
    for _ in range(200):
        turn()
    say("done", before=before, after=settled())
    """
    objects = set(os.listdir("/dev/shm"))
    with Job(tmp_path, 2, script, env={"RONDE_TRANSPORT": transport}) as job:
        for event in job.hear("done"):
            assert event["before"] == event["after"]
        assert job.wait() == 0, job.output()
        assert set(os.listdir("/dev/shm")) <= objects
        job.assert_nothing_left()


def test_other_threads_may_query_while_one_joins_and_leaves(tmp_path):
    script = """
    hvd.init()
    over = threading.Event()

    def ask():
        while not over.is_set():
            hvd.is_initialized()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    for _ in range(10):
        hvd.shutdown()
        hvd.init()
    over.set()
    thread.join()
    say("done")
    """
    with Job(tmp_path, 2, script) as job:
        job.hear("done", limit=30)
        assert job.wait() == 0, job.output()


def test_a_thread_may_wait_while_another_shuts_down(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    def submit():
        return hvd.allreduce_async(torch.ones(20_000_000), name="large")
    def wait(start):
        # Complete if rank 0 still took part, otherwise an error; never partial, never a crash.
        try:
            say("done", whole=bool(hvd.synchronize(start()).eq(1).all()))
        except hvd.HorovodInternalError:
            say("done", whole=None)
    if RANK == 0:
        handle = submit()
        thread = threading.Thread(target=wait, args=[lambda: handle])
        thread.start()
        hvd.shutdown()
        thread.join()
    else:
        wait(submit)
    """
    with Job(tmp_path, 2, script) as job:
        assert all(done["whole"] in (True, None) for done in job.hear("done"))
        assert job.wait() == 0, job.output()


def test_the_interpreter_may_exit_with_work_in_flight(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    handles = [hvd.allreduce_async_(torch.ones(1000), name=f"{RANK}.{n}") for n in range(100)]
    both = [hvd.allreduce_async_(torch.ones(100_000), name=f"both.{n}") for n in range(10)]
    # A rank that submits after the other has left gets an error, which is not tested here.
    hvd.barrier()
    say("leaving")
    """
    with Job(tmp_path, 2, script) as job:
        leaving = max(event["time"] for event in job.hear("leaving"))
        assert job.wait(10) == 0, job.output()
        assert time.monotonic() - leaving < 5.0
        job.assert_nothing_left()


def test_the_interpreter_may_exit_while_other_threads_reduce(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()

    # Torch crashes if a daemon thread runs its code at interpreter exit, so the thread only waits
    # there.
    tensor = torch.ones(2_000_000)

    def reduce_for_ever():
        try:
            while True:
                hvd.allreduce_(tensor, name="shared")
                going.set()
        except (hvd.HorovodInternalError, ValueError):
            pass

    going = threading.Event()
    threading.Thread(target=reduce_for_ever, daemon=True).start()
    going.wait()
    say("leaving")
    """
    with Job(tmp_path, 2, script) as job:
        leaving = max(event["time"] for event in job.hear("leaving"))
        assert job.wait(10) == 0, job.output()
        assert time.monotonic() - leaving < 5.0
        job.assert_nothing_left()


def test_forked_children_do_not_disturb_the_world(tmp_path):
    script = """
    hvd.init()
    for turn in range(5):
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        hvd.allreduce_(torch.ones(1000), op=hvd.Sum)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        hvd.allreduce_(torch.ones(1000), op=hvd.Sum)

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.tensor(float(index))

    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)
    for batch in loader:
        hvd.allreduce_(batch)
    say("done")
    """
    with Job(tmp_path, 2, script) as job:
        job.hear("done")
        assert job.wait() == 0, job.output()
        job.assert_nothing_left()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_unauthenticated_connections_to_every_port_do_not_disturb_training(tmp_path, transport):
    script = """
    hvd.init()
    tensor = torch.ones(10_000)
    go_on = torch.ones(1, dtype=torch.int64)
    steps = 0
    while hvd.broadcast(go_on, 0):
        assert hvd.allreduce(tensor, op=hvd.Sum, name="gradient").eq(2).all()
        steps += 1
        if steps == 5:
            say("training")
        if RANK == 0 and os.path.exists(os.path.join(os.environ["SAY_FOLDER"], "stop")):
            go_on.zero_()
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(tensor, op=hvd.Sum).eq(2).all()
    say("done", steps=steps)
    """
    with Job(tmp_path, 2, script, env={"RONDE_TRANSPORT": transport}) as job:
        job.hear("training")
        ports = listening_ports(job.left())
        assert ports, "a job listens at least for its rendezvous"
        connections = []
        for address in ports:
            for greeting in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100_000, os.urandom(4096)):
                for _ in range(3):
                    with suppress(OSError):
                        connection = socket.create_connection(address, timeout=2)
                        connections.append(connection)
                        connection.sendall(greeting)
        assert connections
        (tmp_path / "stop").touch()
        job.hear("done")
        assert job.wait() == 0, job.output()
        for connection in connections:
            connection.close()
        job.assert_nothing_left()


def listening_ports(pids):
    """The addresses on which these processes listen for TCP connections."""
    addresses = set()
    for pid in pids:
        inodes = set()
        with suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(os.readlink(descriptor))
            for family, table in (("127.0.0.1", "tcp"), ("::1", "tcp6")):
                for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                        addresses.add((family, int(fields[1].rpartition(":")[2], 16)))
    return sorted(addresses)


def test_a_stall_is_reported_with_the_late_rank(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    try:
        if RANK == 0:
            hvd.allreduce(torch.ones(3), name="lonely")
        else:
            while not os.path.exists(os.path.join(os.environ["SAY_FOLDER"], "stop")):
                time.sleep(0.01)
            hvd.allreduce(torch.ones(3), name="lonely")
    finally:
        say("done")
    """
    with Job(tmp_path, 2, script, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}) as job:
        until(
            lambda: "1: [allreduce.lonely]" in job.output(),
            20,
            lambda: f"no report:\n{job.output()}",
        )
        (tmp_path / "stop").touch()
        job.hear("done")
        assert job.wait() == 0, job.output()
