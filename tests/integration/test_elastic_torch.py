"""Elastic torch jobs with the real launcher: training survives lost ranks and changing hosts.

The module `workers` starts the jobs and reads the workers' events.
"""

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import LIMIT_SECONDS
from workers import Workers

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "09-elastic"
pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 8)

TRAIN = """
import hashlib, json, os, sys, time
from pathlib import Path

import torch
import horovod.torch as hvd

FOLDER = Path(os.environ["SAY_FOLDER"])
WORKER = os.environ["RONDE_WORKER"]


def say(event, **facts):
    line = json.dumps({"event": event, "time": time.monotonic(), **facts})
    with (FOLDER / f"{WORKER}.jsonl").open("a") as file:
        file.write(line + "\\n")


def digest():
    tensors = [*model.state_dict().values()]
    for gathered in optimizer.state_dict()["state"].values():
        tensors.extend(gathered.values())
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def place_in_a_child():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes([hvd.rank(), hvd.size()]))
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return list(pipe.read())


say("started", pid=os.getpid())
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(int(WORKER))
model = torch.nn.Linear(20, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0)


@hvd.elastic.run
def train(state):
    hashes = hvd.allgather_object(digest())
    names = ("HOROVOD_RANK", "HOROVOD_SIZE", "RANK", "WORLD_SIZE")
    environment = [int(os.environ[name]) for name in names]
    say(
        "world",
        rank=hvd.rank(),
        size=hvd.size(),
        in_child=place_in_a_child(),
        step=state.step,
        hashes=sorted(set(hashes)),
        environment=environment,
    )
    while True:
        optimizer.zero_grad()
        model(torch.full((4, 20), 1.0 + hvd.rank())).square().mean().backward()
        optimizer.step()
        state.step += 1
        say("step", step=state.step)
        stop = torch.tensor(float((FOLDER / "stop").exists()))
        if hvd.allreduce(stop, op=hvd.Max, name="stop"):
            return
        time.sleep(0.02)
        state.commit()


train(state)
say("done", step=state.step, hashes=sorted(set(hvd.allgather_object(digest()))))
"""


def test_training_survives_lost_ranks_and_accepts_new_ones(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, str(tmp_path / "train.py")]
    options = ["-np", "2", "--min-np", "1", "--max-np", "3"]
    with Workers(tmp_path, ["localhost:2"], options, command) as job:
        first = job.world(0, 2)
        assert len(first["hashes"]) == 1 and first["environment"] == [first["rank"], 2] * 2
        job.steps(0, 5)

        # One dies: the other continues in its process and loses the steps since its commit.
        before = job.said(0, "step")[-1]["step"]
        os.kill(job.said(1, "started")[0]["pid"], signal.SIGKILL)
        alone = job.world(0, 1)
        assert alone["rank"] == 0 and alone["step"] >= before - 1
        # Child processes of a rank see the new world too.
        assert first["in_child"] == [first["rank"], 2] and alone["in_child"] == [0, 1]
        assert len(job.said(0, "started")) == 1
        job.steps(0, 5)

        # A host is added: the new rank gets the state of the survivor, including momenta.
        job.offer(["localhost:2", "127.0.0.2:1"])
        together = job.world(2, 2)
        assert len(together["hashes"]) == 1 and together["step"] > alone["step"]
        assert job.world(0, 2)["rank"] == 0 and together["rank"] == 1
        job.steps(2, 5)

        # One rank gets SIGTERM: it leaves, and no step is lost or repeated.
        os.kill(job.said(2, "started")[0]["pid"], signal.SIGTERM)
        again = job.world(0, 1)
        steps = [each["step"] for each in job.said(0, "step") if each["time"] > together["time"]]
        assert steps == list(range(steps[0], steps[0] + len(steps))), steps
        assert again["step"] == job.said(2, "step")[-1]["step"]
        job.steps(0, 5)

        job.stop()
        assert job.wait() == 0, job.output()
        (done,) = job.said(0, "done")
        assert len(done["hashes"]) == 1
        assert "has been removed from elastic job" in job.output()


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_resnet_50_survives_changing_hosts(tmp_path):
    """A Horovod-style script on a small folder of images loses a host and gains another."""
    images = tmp_path / "images"
    subprocess.run(
        [sys.executable, str(EXAMPLE / "make_images.py"), str(images), "4", "1"], check=True
    )
    command = [sys.executable, str(EXAMPLE / "imagenet_resnet50.py")]
    command += ["--train-dir", str(images / "train"), "--val-dir", str(images / "validation")]
    command += ["--image-size", "64", "--batch-size", "2", "--base-lr", "0.001"]
    command += ["--batches-per-commit", "2", "--batches-per-host-check", "1"]
    command += ["--checkpoint-format", ""]
    pattern = re.compile(r"epoch (\d+): (\d) ranks, loss [\d.]+, accuracy [\d.]+")
    options = ["-np", "2", "--min-np", "1"]
    with Workers(tmp_path, ["localhost:1", "127.0.0.2:1"], options, command) as job:

        def sizes():
            """The number of ranks at the end of each epoch."""
            epochs = pattern.findall(job.output())
            assert [int(number) for number, _ in epochs] == list(range(len(epochs)))
            return "".join(size for _, size in epochs)

        job.until(lambda: sizes().startswith("2"), "an epoch of two")
        job.offer(["localhost:1", "127.0.0.3:1"])
        # The survivor trains alone until the new rank is ready.
        job.until(lambda: re.match("2+1+2", sizes()), "epochs of one, and of two again")
