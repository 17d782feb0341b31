"""Elastic jobs of torch with the real launcher: ranks die, hosts come and go, training goes on.

The hosts are names of this machine, which the test writes into the file that the discovery script
prints. Workers tell what happens to them by their number, which they keep for life.
"""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import LIMIT_SECONDS, launcher, until

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


class Workers:
    """An elastic job, and what its workers say; ends with the `with` block."""

    def __init__(self, folder, hosts, options, command):
        self._folder = Path(folder)
        self._script = self._folder / "discover.sh"
        self._script.write_text(f'#!/bin/sh\ncat "{self._folder}/hosts.txt"\n')
        self._script.chmod(0o755)
        self.offer(hosts)
        self._output = self._folder / "output.txt"
        found = ["--host-discovery-script", str(self._script)]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [launcher(), *options, *found, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SAY_FOLDER": str(folder),
                    "RONDE_FLIGHT_RECORDER_DIR": str(self._folder / "flight"),
                },
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The guardian ends what is left of the job.
        self.process.kill()
        self.process.wait()

    def offer(self, hosts):
        """What the discovery script prints from now on."""
        fresh = self._folder / "hosts.new"
        fresh.write_text("".join(f"{host}\n" for host in hosts))
        fresh.replace(self._folder / "hosts.txt")

    def output(self):
        """What the launcher and the workers have written."""
        return self._output.read_text(errors="replace")

    def said(self, worker, event):
        """All that a worker has said of this kind."""
        file = self._folder / f"{worker}.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def world(self, worker, size):
        """Waits until a worker trains in a world of this size, and gives what it said of it."""

        def found():
            worlds = self.said(worker, "world")
            return worlds and worlds[-1]["size"] == size and worlds[-1]

        return self.until(found, f"worker {worker} in a world of {size}")

    def steps(self, worker, more):
        """Waits for so many more steps of a worker."""
        enough = len(self.said(worker, "step")) + more
        self.until(lambda: len(self.said(worker, "step")) >= enough, f"steps of {worker}")

    def wait(self):
        """The launcher's exit code."""
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.output()}") from None

    def stop(self):
        """Asks the training to end."""
        (self._folder / "stop").touch()

    def until(self, condition, what):
        """Waits for something; fails at once if the job ends before."""

        def holds():
            ended = self.process.poll() is not None
            value = condition()
            assert value or not ended, f"ended before {what}:\n{self.output()}"
            return value

        return until(holds, LIMIT_SECONDS, lambda: f"waiting for {what}:\n{self.output()}")


def test_training_outlives_ranks_and_takes_newcomers_in(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, str(tmp_path / "train.py")]
    options = ["-np", "2", "--min-np", "1", "--max-np", "3"]
    with Workers(tmp_path, ["localhost:2"], options, command) as job:
        first = job.world(0, 2)
        assert len(first["hashes"]) == 1 and first["environment"] == [first["rank"], 2] * 2
        job.steps(0, 5)

        # One dies: the other goes on in its process, and loses the steps since its commit.
        before = job.said(0, "step")[-1]["step"]
        os.kill(job.said(1, "started")[0]["pid"], signal.SIGKILL)
        alone = job.world(0, 1)
        assert alone["rank"] == 0 and alone["step"] >= before - 1
        assert len(job.said(0, "started")) == 1
        job.steps(0, 5)

        # A host comes: the newcomer gets the state of the survivor, momenta included.
        job.offer(["localhost:2", "127.0.0.2:1"])
        together = job.world(2, 2)
        assert len(together["hashes"]) == 1 and together["step"] > alone["step"]
        assert job.world(0, 2)["rank"] == 0 and together["rank"] == 1
        job.steps(2, 5)

        # One is asked to leave: it does, and not a step is lost or done twice.
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
def test_resnet_50_outlives_hosts(tmp_path):
    """The script in Horovod's style on a small folder of images loses a host, and gains one."""
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
            """With how many ranks each epoch has ended."""
            epochs = pattern.findall(job.output())
            assert [int(number) for number, _ in epochs] == list(range(len(epochs)))
            return "".join(size for _, size in epochs)

        job.until(lambda: sizes().startswith("2"), "an epoch of two")
        job.offer(["localhost:1", "127.0.0.3:1"])
        # Until the newcomer is ready, the survivor is alone.
        job.until(lambda: re.match("2+1+2", sizes()), "epochs of one, and of two again")
