"""Measures how long a job takes to recover after a rank was killed: `python bench/recovery.py`.

A job trains one of the networks, one of its ranks is killed with SIGKILL, and the time until the
next finished step is measured. Ronde continues with the surviving ranks, from the last commit;
torchrun restarts all workers, which load the checkpoint that rank 0 has written, in memory, after
every step. Rounds of both alternate.
"""

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from figures import save
from job import launcher as horovodrun
from networks import NETWORKS
from record import RESULTS, processor
from torch import nn

LIMIT_SECONDS = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="cnn", choices=NETWORKS)
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    parser.add_argument("--as", dest="part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        torch.set_num_threads(1)
        PARTS[options.part](options)
        return
    figures = recovery(options)
    text = table(figures, options)
    print(text, end="")
    if options.save:
        stem = RESULTS / f"recovery-{processor()}"
        stem.with_suffix(".md").write_text(text)
        save(stem.with_suffix(".json"), figures)


def recovery(options):
    """Seconds from the kill to a finished step, by launcher."""
    seconds = {"horovodrun": [], "torchrun": []}
    for number in range(options.rounds):
        for name in sorted(seconds, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory(dir=memory()) as folder:
                seconds[name].append(kill_one(name, Path(folder), options))
            print(f"round {number}: {name} {seconds[name][-1]:.2f} s", file=sys.stderr)
    return seconds


def kill_one(name, folder, options):
    command = [*launcher(name, options), __file__, "--as", PART_OF[name]]
    command += ["--folder", str(folder), "--model", options.model]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            victims = await_steps(folder, options.ranks, job)
            moment = time.monotonic()
            os.kill(victims[-1], signal.SIGKILL)
            return await_next(folder, moment, job) - moment
        finally:
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(20)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()


def await_steps(folder, ranks, job):
    """Waits until each rank has made five steps; returns their process ids in rank order."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and job.poll() is None:
        made = [entry for entry in diary(folder) if entry[3] >= 5]
        pids = {rank: pid for _, _, rank, _, pid in made}
        if len(pids) == ranks:
            return [pids[rank] for rank in sorted(pids)]
        time.sleep(0.05)
    sys.exit(f"no steps: {(folder / 'log').read_text()[-2000:]}")


def await_next(folder, moment, job):
    """Waits for the first step of the next world after `moment`; returns when it was finished."""
    end = time.monotonic() + LIMIT_SECONDS
    world = max(entry[1] for entry in diary(folder))
    while time.monotonic() < end and job.poll() is None:
        later = [entry[0] for entry in diary(folder) if entry[1] > world and entry[0] > moment]
        if later:
            return min(later)
        time.sleep(0.02)
    sys.exit(f"no recovery: {(folder / 'log').read_text()[-2000:]}")


def diary(folder):
    """All finished steps: time, world, rank, number, process."""
    entries = []
    for path in folder.glob("steps-*"):
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) == 5:
                entries.append((float(parts[0]), *map(int, parts[1:])))
    return entries


def launcher(name, options):
    ranks = str(options.ranks)
    if name == "torchrun":
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return [*run, "--nproc-per-node", ranks, "--max-restarts", "3"]
    elastic = ["-np", ranks, "--min-np", "1", "-H", f"localhost:{ranks}"]
    return [horovodrun(), *elastic, sys.executable]


def note(folder, world, rank, step):
    with (folder / f"steps-{os.getpid()}").open("a") as file:
        file.write(f"{time.monotonic()} {world} {rank} {step} {os.getpid()}\n")


def train_ours(options):
    """Trains forever with `hvd.elastic`."""
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    model, inputs, targets = NETWORKS[options.model]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, world=0)

    @hvd.elastic.run
    def train(state):
        state.world += 1
        while True:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            state.step += 1
            note(options.folder, state.world, hvd.rank(), state.step)
            state.commit()

    train(state)


def train_theirs(options):
    """Trains forever with DistributedDataParallel and a checkpoint after every step."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    world = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # In the launcher's own store gloo would find the addresses of dead ranks.
    store = dist.FileStore(str(options.folder / f"store-{world}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(1)
    model, inputs, targets = NETWORKS[options.model]()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step, kept = 0, options.folder / "kept"
    if kept.exists():
        saved = torch.load(kept, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        step += 1
        note(options.folder, world, dist.get_rank(), step)
        if dist.get_rank() == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "step": step}, kept.with_suffix(".new"))
            kept.with_suffix(".new").replace(kept)


def table(figures, options):
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    lines = [
        "# Going on after a rank was killed",
        "",
        f"{processor()}, {cores} cores, load {load:.1f} at the end, {versions}.",
        f"{options.ranks} ranks, the network `{options.model}`. Made by `bench/recovery.py`.",
        "",
        "From SIGKILL of one rank to the next finished step, seconds:",
        "",
        "| launcher | rounds | median | least | most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, seconds in figures.items():
        row = [statistics.median(seconds), min(seconds), max(seconds)]
        values = " | ".join(f"{value:.2f}" for value in row)
        lines.append(f"| {name} | {len(seconds)} | {values} |")
    return "\n".join(lines) + "\n"


def memory():
    """A folder in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


PARTS = {"ours": train_ours, "theirs": train_theirs}
PART_OF = {"horovodrun": "ours", "torchrun": "theirs"}


if __name__ == "__main__":
    main()
