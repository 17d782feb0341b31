"""What training programs do besides collectives: load data, resume, get interrupted."""

import pytest
from jobs import Job

pytestmark = pytest.mark.timeout(60)

LOADING = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        # Data loaders seed random numbers and assign files by these.
        assert hvd.is_initialized() and hvd.size() == 2
        assert (hvd.rank(), hvd.local_rank()) == (RANK, RANK)
        return torch.tensor([float(index)])


def main():
    hvd.init()
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=2, num_workers=1, multiprocessing_context=os.environ["METHOD"]
    )
    handle = hvd.allreduce_async(torch.ones(100_000), name="while.workers.start", op=hvd.Sum)
    total = 0.0
    for batch in loader:
        total += hvd.allreduce(batch, op=hvd.Sum).sum().item()
    say("done", total=total, reduced=hvd.synchronize(handle).eq(2).all().item())


# A spawned worker imports this file too.
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_load_while_the_engine_runs(tmp_path, method):
    with Job(tmp_path, 2, LOADING, env={"METHOD": method}) as job:
        for done in job.hear("done"):
            assert done["total"] == 2 * sum(range(8))
            assert done["reduced"]
        assert job.wait() == 0, job.output()
        job.assert_nothing_left()


WAITING = """
def interrupt(call):
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    try:
        timer.start()
        call()
    except KeyboardInterrupt:
        return time.monotonic() - start
    finally:
        timer.join()
    return None


def flag(name):
    return os.path.join(os.environ["SAY_FOLDER"], name)


def wait_for(name):
    while not os.path.exists(flag(name)):
        time.sleep(0.01)


hvd.init()
# After this barrier rank 1 submits nothing, so every call below waits on rank 0.
hvd.barrier()
if RANK == 1:
    wait_for("again")
    hvd.allreduce(torch.ones(3), name="again", op=hvd.Sum)
    wait_for("stop")
    sys.exit(0)

model = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
model(torch.ones(1, 3)).sum().backward()
ones = torch.ones(4)
handle = hvd.allreduce_async(torch.ones(3), name="again", op=hvd.Sum)
calls = {
    "allreduce": lambda: hvd.allreduce(ones),
    "allreduce_": lambda: hvd.allreduce_(ones.clone()),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([ones, ones.double()]),
    "allgather": lambda: hvd.allgather(ones),
    "grouped_allgather": lambda: hvd.grouped_allgather([ones, ones]),
    "broadcast": lambda: hvd.broadcast(ones, 1),
    "broadcast_parameters": lambda: hvd.broadcast_parameters({"ones": ones}, 1),
    "broadcast_object": lambda: hvd.broadcast_object(None, 1),
    "alltoall": lambda: hvd.alltoall(ones),
    "reducescatter": lambda: hvd.reducescatter(ones),
    "synchronize": lambda: hvd.synchronize(handle),
    "step": optimizer.step,
    "SyncBatchNorm": lambda: hvd.SyncBatchNorm(3)(torch.ones(2, 3)),
    "barrier": hvd.barrier,
}
after = {name: interrupt(call) for name, call in calls.items()}
open(flag("again"), "w").close()
say("again", value=hvd.synchronize(handle).tolist())
after["join"] = interrupt(hvd.join)
say("interrupted", after=after)
open(flag("stop"), "w").close()
"""


def test_every_waiting_call_can_be_interrupted(tmp_path):
    with Job(tmp_path, 2, WAITING) as job:
        (interrupted,) = job.hear("interrupted", [0], limit=40)
        late = {
            name: seconds
            for name, seconds in interrupted["after"].items()
            if seconds is None or seconds > 2.0
        }
        assert not late
        assert len(interrupted["after"]) == 15
        # A handle outlives the interrupted wait for it.
        assert job.said(0, "again")["value"] == [2.0, 2.0, 2.0]
        job.wait()
        job.assert_nothing_left()


TRAINING = """
STEPS, ROWS = 5, 12


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def train(model, optimizer, steps, rank, size):
    for step in steps:
        whole = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step))
        own = whole[rank * ROWS // size : (rank + 1) * ROWS // size]
        optimizer.zero_grad()
        (model(own) - own[:, :2].sin()).square().mean().backward()
        optimizer.step()


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def alone(steps):
    model = network()
    train(model, torch.optim.Adam(model.parameters(), lr=0.01), range(steps), 0, 1)
    return flat(model)


def assert_all_have(model, expected):
    assert torch.allclose(flat(model), expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(hvd.broadcast(flat(model), 0), flat(model))


hvd.init()
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
"""
CHECKPOINT = """
path = os.environ["CHECKPOINT"]
first = 0
if RANK == 0 and os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
first = hvd.broadcast_object(first)
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
train(model, optimizer, range(first, first + STEPS), RANK, hvd.size())
assert_all_have(model, alone(first + STEPS))
if RANK == 0:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**saved, "step": first + STEPS}, path)
say("done", step=first + STEPS)
"""


def test_training_resumes_from_a_checkpoint_on_another_number_of_ranks(tmp_path):
    env = {"CHECKPOINT": str(tmp_path / "checkpoint.pt")}
    for turn, size in enumerate((2, 3)):
        folder = tmp_path / str(size)
        folder.mkdir()
        with Job(folder, size, TRAINING, CHECKPOINT, env=env) as job:
            assert job.wait() == 0, job.output()
            assert [done["step"] for done in job.hear("done")] == [5 * (turn + 1)] * size
