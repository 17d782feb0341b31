"""The errors of the survivors and the launcher when a rank fails, leaves or never joins.

Every survivor must get an error that names the rank within two seconds; no process may be left.
"""

import os
import signal
import time

import pytest
from jobs import Job

pytestmark = pytest.mark.timeout(60)

# The documented limit, in seconds, between a failure and the error on every other rank.
PROMISE = 2.0

TRAIN = """
def train(tensor, before_step=lambda step: None):
    try:
        for step in range(1_000_000):
            before_step(step)
            hvd.allreduce_(tensor, name="gradient")
            if step == 3:
                say("training")
    except hvd.HorovodInternalError as error:
        say("failed", text=str(error))
        raise
"""


def assert_survivors_name(job, lost, since, ranks):
    for event in job.hear("failed", ranks):
        assert event["time"] - since < PROMISE, (event, since)
        assert f"rank {lost}" in event["text"], event


def last_lines(job):
    return "\n".join(job.output().strip().splitlines()[-12:])


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_rank_that_raises_is_named_with_its_exception(tmp_path, transport):
    script = """
    hvd.init()
    def before(step):
        if step == 5 and RANK == 1:
            say("raising")
            raise ValueError("boom")
    train(torch.ones(1000), before)
    """
    with Job(tmp_path, 2, TRAIN, script, env={"RONDE_TRANSPORT": transport}) as job:
        (raising,) = job.hear("raising", [1])
        assert_survivors_name(job, 1, raising["time"], [0])
        assert job.wait() == 1
        assert "rank 1" in last_lines(job)
        assert "ValueError: boom" in last_lines(job)
        job.assert_nothing_left()


def test_an_error_in_a_data_loader_worker_is_reported_with_its_cause(tmp_path):
    script = """
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if RANK == 1 and index == 3:
                raise ValueError(f"sample {index} is broken")
            return torch.ones(2)
    hvd.init()
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=2, num_workers=1):
        hvd.allreduce(batch)
    """
    with Job(tmp_path, 2, script) as job:
        assert job.wait() == 1
        lines = last_lines(job).splitlines()
        first = next(n for n, line in enumerate(lines) if line.startswith("error: "))
        assert "rank 1 (localhost, slot 1) raised ValueError: Caught ValueError" in lines[first]
        assert lines[first + 1] == "  ValueError: sample 3 is broken"
        assert "in __getitem__: raise ValueError(" in lines[first + 2]
        assert lines[first + 3].startswith("  process ")
        assert lines[first + 4] == "  rank 0 failed because of it"


def test_the_job_ends_with_the_failing_ranks_own_code(tmp_path):
    script = """
    hvd.init()
    def before(step):
        if step == 5 and RANK == 1:
            say("leaving")
            sys.exit(3)
    train(torch.ones(1000), before)
    """
    with Job(tmp_path, 2, TRAIN, script) as job:
        (leaving,) = job.hear("leaving", [1])
        assert_survivors_name(job, 1, leaving["time"], [0])
        assert job.wait() == 3
        assert "rank 1" in last_lines(job)
        job.assert_nothing_left()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("elements", [100, 4_000_000])
def test_a_killed_rank_ends_the_calls_of_all_others(tmp_path, transport, elements):
    script = f"""
    hvd.init()
    train(torch.ones({elements}))
    """
    with Job(tmp_path, 4, TRAIN, script, env={"RONDE_TRANSPORT": transport}) as job:
        job.hear("training")
        killed = time.monotonic()
        os.kill(job.pids()[2], signal.SIGKILL)
        assert_survivors_name(job, 2, killed, [0, 1, 3])
        # The launcher knows how the rank ended; its report outranks a closed connection.
        assert all("SIGKILL" in event["text"] for event in job.hear("failed", [0, 1, 3]))
        job.assert_nothing_left()
        assert job.wait() == 128 + signal.SIGKILL
        assert "rank 2" in last_lines(job)


def test_a_killed_rank_ends_the_calls_of_ranks_that_wait_for_it(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    if RANK == 2:
        say("training")
        signal.pause()
    say("training")
    train(torch.ones(10))
    """
    with Job(tmp_path, 4, TRAIN, script) as job:
        job.hear("training")
        killed = time.monotonic()
        os.kill(job.pids()[2], signal.SIGKILL)
        assert_survivors_name(job, 2, killed, [0, 1, 3])
        job.assert_nothing_left()


@pytest.mark.parametrize("way", ["pass", "os._exit(0)", "hvd.shutdown()"])
def test_a_rank_that_finishes_early_does_not_block_the_others(tmp_path, way):
    script = f"""
    hvd.init()
    hvd.barrier()
    if RANK == 1:
        say("leaving")
        {way}
    else:
        train(torch.ones(10))
    """
    with Job(tmp_path, 2, TRAIN, script) as job:
        (leaving,) = job.hear("leaving", [1])
        assert_survivors_name(job, 1, leaving["time"], [0])
        assert job.wait() != 0
        job.assert_nothing_left()


@pytest.mark.parametrize("way", ["pass", "os._exit(0)", "sys.exit(4)"])
def test_a_rank_that_never_joins_does_not_block_the_others(tmp_path, way):
    script = f"""
    if RANK == 1:
        say("leaving")
        {way}
    else:
        try:
            say("joining")
            hvd.init()
        except Exception as error:
            say("failed", text=str(error))
            raise
    """
    with Job(tmp_path, 3, script) as job:
        (leaving,) = job.hear("leaving", [1])
        joining = [event["time"] for event in job.hear("joining", [0, 2])]
        assert_survivors_name(job, 1, max([leaving["time"], *joining]), [0, 2])
        assert job.wait() != 0
        assert "rank 1" in last_lines(job)
        job.assert_nothing_left()


def test_later_calls_fail_with_the_same_error(tmp_path):
    script = """
    hvd.init()
    hvd.barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    texts = []
    for call in (
        lambda: hvd.allreduce(torch.ones(3)),
        lambda: hvd.allgather(torch.ones(3)),
        lambda: hvd.broadcast(torch.ones(3), 0),
        lambda: hvd.barrier(),
        lambda: hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(3)])),
    ):
        try:
            call()
        except hvd.HorovodInternalError as error:
            texts.append(str(error))
    say("failed", text=" ".join(texts), errors=len(texts))
    """
    with Job(tmp_path, 2, script) as job:
        (failed,) = job.hear("failed", [0])
        assert failed["errors"] == 5
        assert "rank 1" in failed["text"]


def test_a_backward_pass_over_torch_distributed_ends_when_a_rank_dies(tmp_path):
    script = """
    torch.distributed.init_process_group("ronde")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    try:
        for step in range(1_000_000):
            loss = model(torch.ones(2, 3)).sum()
            if step == 5 and RANK == 1:
                # The other rank waits for the future of a gradient, or is about to.
                say("dying")
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
    except RuntimeError as error:
        say("failed", text=str(error))
        raise
    """
    with Job(tmp_path, 2, script) as job:
        (dying,) = job.hear("dying", [1])
        assert_survivors_name(job, 1, dying["time"], [0])
        assert job.wait() == 137
        job.assert_nothing_left()
