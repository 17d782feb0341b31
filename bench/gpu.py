"""Compares collectives and training steps on GPUs with torch's NCCL: `python bench/gpu.py`.

Every rank uses its own GPU, or shares one. Ours and torch's take turns in the same run, and each
goes first in turn. A figure is the time per call or step on the slowest rank; `host` is the time
until a call returns, while the GPU is still at work. The parts:

- `collectives`: an allreduce of 4 KB to 256 MB, and the gradients of ResNet-50 and BERT: as one
  group (ours), and in flat buckets of 25 MiB, as DistributedDataParallel does (torch's);
- `training`: a step of each network with mixed precision, and whether all ranks have the same
  parameters after 200 steps;
- `host`: the path through host memory, next to plain copies from and to pinned memory;
- `kill`: how long after `kill -9` of a rank the others have their error and a free GPU;
- `elastic`: the same in an elastic job, until the others have made their next step.
"""

import argparse
import hashlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from job import described, launcher, machine, spelled
from record import RESULTS
from torch.nn.parallel import DistributedDataParallel

import horovod.torch as hvd

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)
# Few enough that neither waits for the GPU to have room for more.
CALLS = 20
BUCKET = 25 << 20
PARTS = ("collectives", "training", "host", "kill", "elastic")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "HOROVOD_RANK" in os.environ:
        rank_main(options)
        return
    pages = [run(part, options) for part in options.parts]
    if options.save:
        stem = RESULTS / f"gpu-{named(torch.cuda.get_device_name())}-{options.ranks}"
        stem.with_suffix(".md").write_text(f"# GPUs: {options.ranks} ranks\n\n" + "".join(pages))


def run(part, options):
    """Runs a part in a job of its own; returns what rank 0 has printed."""
    with tempfile.TemporaryDirectory() as scratch:
        env = dict(os.environ)
        if part == "host":
            # There is no such file, so there is no NCCL.
            env["RONDE_NCCL"] = f"{scratch}/none.so"
        elastic = ["--min-np", "1", "--max-np", str(options.ranks)] if part == "elastic" else []
        command = [launcher(), "-np", str(options.ranks), *elastic, sys.executable, __file__]
        command += ["--parts", part, "--rounds", str(options.rounds), "--scratch", scratch]
        job = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        # A job with a killed rank fails.
        if job.returncode != 0 and part != "kill":
            sys.exit(job.stdout + job.stderr)
        page = "".join(file.read_text() for file in sorted(Path(scratch).glob("page*")))
    print(page, end="", flush=True)
    return page


def rank_main(options):
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    (part,) = options.parts
    lines = globals()[part](options)
    if lines:
        file = options.scratch / f"page{hvd.rank()}"
        file.write_text("\n".join([*lines, "", ""]))


def heading(title):
    gpu, nccl = torch.cuda.get_device_name(), hvd.nccl_built()
    version = f"{nccl // 10000}.{nccl // 100 % 100}.{nccl % 100}" if nccl else "not used"
    shared = "which they share" if hvd.local_size() > torch.cuda.device_count() else "one each"
    return [
        f"## {title}",
        "",
        f"{hvd.size()} ranks, {gpu}, {shared}; {described(machine())}; torch {torch.__version__}, "
        f"NCCL {version}.",
        "",
    ]


def collectives(options):
    torch_group()
    lines = heading("Collectives, median (middle 80 %)")
    lines += [
        "| what | ours, µs | torch's, µs | torch's / ours | host, ours | host, torch's |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for size in SIZES:
        tensor = torch.zeros(size // 4, device="cuda")

        def ours(tensor=tensor, name=f"size.{size}"):
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)

        def theirs(tensor=tensor):
            dist.all_reduce(tensor)

        lines.append(compared(short(size), (ours, theirs), options.rounds, CALLS))
    for name, network in (("ResNet-50", resnet), ("BERT", bert)):
        gradients = [torch.zeros_like(each) for each in network()[0].parameters()]
        buckets = list(in_buckets(gradients))

        def ours(gradients=gradients, name=name):
            hvd.grouped_allreduce_(gradients, name=name)

        def theirs(buckets=buckets):
            for bucket in buckets:
                reduce_bucket(bucket)

        count = sum(each.numel() for each in gradients)
        what = f"{len(gradients)} gradients of {name}, {short(4 * count)}"
        lines.append(compared(what, (ours, theirs), options.rounds, 3))
    dist.destroy_process_group()
    return lines if hvd.rank() == 0 else None


def training(options):
    torch_group()
    lines = heading("Training steps with mixed precision, median (middle 80 %)")
    lines += [
        "| network | ours, ms | DistributedDataParallel, ms | its time / ours | equal parameters |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, network in (("ResNet-50", resnet), ("BERT", bert)):
        model, ours = stepper(network, our_optimizer)
        _, theirs = stepper(network, data_parallel)
        own, other = alternating((ours, theirs), options.rounds, 3, synchronize=True)
        for _ in range(200):
            ours()
        equal = "yes" if len(set(hvd.allgather_object(digest(model)))) == 1 else "NO"
        ratio = statistics.median(b / a for a, b in zip(own, other))
        cells = [name, spelled(own, 1e3, 1), spelled(other, 1e3, 1), f"{ratio:.3f}", equal]
        lines.append(f"| {' | '.join(cells)} |")
    dist.destroy_process_group()
    return lines if hvd.rank() == 0 else None


def host(options):
    lines = heading("Through host memory, median")
    lines += [
        "| size | GB/s | pinned copies, there and back | allreduce in host memory |",
        "| --- | --- | --- | --- |",
    ]
    for size in SIZES[2:]:
        tensor = torch.zeros(size // 4, device="cuda")
        pinned = torch.empty(size // 4, pin_memory=True)
        plain = torch.zeros(size // 4)

        def ours(tensor=tensor, name=f"host.{size}"):
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)

        def copies(tensor=tensor, pinned=pinned):
            pinned.copy_(tensor, non_blocking=True)
            tensor.copy_(pinned, non_blocking=True)

        def in_host_memory(tensor=plain, name=f"plain.{size}"):
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)

        ways = (ours, copies, in_host_memory)
        taken = alternating(ways, options.rounds, 3, synchronize=True)
        rates = [statistics.median(size / each / 1e9 for each in way) for way in taken]
        lines.append(f"| {short(size)} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")
    return lines if hvd.rank() == 0 else None


def kill(options):
    tensor = torch.zeros(1 << 20, device="cuda")
    last, clock = hvd.size() - 1, options.scratch / "killed"
    try:
        for step in itertools.count():
            hvd.allreduce_(tensor, name="x")
            if step == 50 and hvd.rank() == last:
                clock.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 10 == 0:
                torch.cuda.synchronize()
    except hvd.HorovodInternalError as error:
        seen = time.time()
        torch.cuda.synchronize()
        since = float(clock.read_text())
        lines = [] if hvd.rank() else heading("`kill -9` of a rank")
        text = str(error).splitlines()[0]
        lines += [
            f"- rank {hvd.rank()} had its error after {seen - since:.2f} s, and a free GPU after "
            f'{time.time() - since:.2f} s: "{text}"'
        ]
        (options.scratch / f"page{hvd.rank()}").write_text("\n".join(lines) + "\n")
        raise SystemExit(1) from error


def elastic(options):
    model = torch.nn.Linear(1000, 1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, lines=[])
    ranks, clock = hvd.size(), options.scratch / "killed"

    def resumed():
        if clock.exists() and not state.lines:
            torch.cuda.synchronize()
            after = time.time() - float(clock.read_text())
            state.lines = [f"{hvd.size()} ranks made their next step {after:.2f} s after the kill"]

    @hvd.elastic.run
    def train(state):
        while state.step < 60:
            if state.step == 20 and hvd.size() == ranks and hvd.rank() == ranks - 1:
                clock.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.randn(64, 1000, device="cuda")).square().mean().backward()
            optimizer.step()
            state.step += 1
            if hvd.size() < ranks:
                resumed()
            if state.step % 5 == 0:
                state.commit()

    train(state)
    equal = len(set(hvd.allgather_object(digest(model)))) == 1
    if hvd.rank() != 0:
        return None
    lines = [*heading("`kill -9` of a rank in an elastic job"), *state.lines]
    lines[-1] += f"; at the end all had {'equal' if equal else 'DIFFERENT'} parameters."
    return lines


def torch_group():
    """A group of torch's own NCCL, next to ours."""
    dist.init_process_group("nccl", rank=hvd.rank(), world_size=hvd.size())


def resnet():
    from torchvision.models import resnet50

    batch = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (32,), device="cuda")
    return resnet50().cuda(), lambda model: torch.nn.functional.cross_entropy(model(batch), labels)


def bert():
    from transformers import BertConfig, BertForMaskedLM

    words = torch.randint(30000, (16, 128), device="cuda")
    model = BertForMaskedLM(BertConfig()).cuda()
    return model, lambda model: model(input_ids=words, labels=words).loss


def stepper(network, wrap):
    """A network, and a function that makes one step with it."""
    torch.manual_seed(1)
    network, loss = network()
    model, optimizer = wrap(network, torch.optim.SGD(network.parameters(), lr=1e-3))
    scaler = torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss(model)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return network, step


def our_optimizer(model, optimizer):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def data_parallel(model, optimizer):
    return DistributedDataParallel(model), optimizer


def in_buckets(tensors):
    bucket, room = [], BUCKET
    for tensor in tensors:
        if bucket and room < 4 * tensor.numel():
            yield bucket
            bucket, room = [], BUCKET
        bucket.append(tensor)
        room -= 4 * tensor.numel()
    yield bucket


def reduce_bucket(tensors):
    flat = torch._utils._flatten_dense_tensors(tensors)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    parts = torch._utils._unflatten_dense_tensors(flat, tensors)
    torch._foreach_copy_(tensors, parts)


def digest(model):
    """The bits of the parameters, in short."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def compared(what, ways, rounds, calls):
    """A row about ours and torch's."""
    hosts = ([], [])
    own, other = alternating(ways, rounds, calls, hosts=hosts)
    ratio = statistics.median(b / a for a, b in zip(own, other))
    cells = [spelled(own, 1e6, 0), spelled(other, 1e6, 0), f"{ratio:.3f}"]
    cells += [spelled(each, 1e6, 0) for each in hosts]
    return f"| {what} | " + " | ".join(cells) + " |"


def alternating(ways, rounds, calls, synchronize=False, hosts=None):
    """The seconds per call of every round, for each way."""
    seconds = [[] for _ in ways]
    for number in range(-1, rounds):
        for turn in range(len(ways)):
            way = (turn + number) % len(ways)
            total, host = timed(ways[way], calls, synchronize)
            if number >= 0:
                seconds[way].append(total)
                if hosts is not None:
                    hosts[way].append(host)
    return seconds


def timed(call, calls, synchronize):
    torch.cuda.synchronize()
    hvd.barrier()
    start, host = time.perf_counter(), 0.0
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        host += time.perf_counter() - begun
        if synchronize:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    own = torch.tensor([time.perf_counter() - start, host], dtype=torch.float64) / calls
    return hvd.allreduce(own, op=hvd.Max, name="seconds").tolist()


def short(size):
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def named(gpu):
    return "-".join(gpu.lower().split())


if __name__ == "__main__":
    main()
