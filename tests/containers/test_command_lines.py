"""The command lines that people type, as they are in guides; only names and addresses are ours.

Without a GPU, `--gpus all` is left out and one test checks what Docker says about it.
"""

import os
import pty
import re
import resource
import select
import subprocess
import time
from pathlib import Path

import pytest
from machines import ADDRESSES, CPU, LIMIT_SECONDS, SLIM, Running, listens, shell, succeeds

CAP_SYS_RESOURCE = 24
WORKER = """docker run -d --name hworker --network=host -v /opt/horovod/ssh:/root/.ssh:ro {image} \
  /usr/sbin/sshd -p 12345 -D -o PermitRootLogin=yes -o PubkeyAuthentication=yes \
  -o PasswordAuthentication=no"""
MASTER = """docker run -it --rm --name hmaster --network=host -v /opt/horovod/ssh:/root/.ssh:ro \
  -v /home/me/project:/workspace -w /workspace {image} bash"""
# Takes the flags of a benchmark that is not ours, and averages gradients in half precision.
BENCHMARK = """
import argparse, socket, numpy, horovod.raw as hvd
parser = argparse.ArgumentParser()
for name in ("--model", "--batch_size", "--variable_update"):
    parser.add_argument(name)
parser.add_argument("--use_fp16", action="store_true")
options = parser.parse_args()
assert options.variable_update == "horovod"
hvd.init()
kind = "float16" if options.use_fp16 else "float32"
gradient = hvd.allreduce(numpy.full(1 << 20, hvd.rank(), kind))
print("rank", hvd.rank(), "average", gradient[0], gradient.dtype, flush=True)
"""
# A module in a shared folder, with the flags of a trainer that is not ours.
TRAINER = """
import argparse, os, horovod.raw as hvd, numpy
parser = argparse.ArgumentParser()
for name in ("-s", "--lock-dir"):
    parser.add_argument(name)
for name in ("--use-cpu", "--horovod"):
    parser.add_argument(name, action="store_true")
options = parser.parse_args()
hvd.init()
words = sum(len(line.split()) for line in open(options.s))
total = hvd.allreduce(numpy.array([words]), op=hvd.Sum)[0]
open(os.path.join(options.lock_dir, str(hvd.rank())), "w").close()
print("rank", hvd.rank(), "user", os.getuid(), "words", total, flush=True)
"""


class Typed:
    """A command line on a terminal, and what is typed into it; for `docker run -it`."""

    def __init__(self, machine, line):
        self.ours, theirs = pty.openpty()
        env = {**os.environ, "DOCKER_HOST": machine.options[1]}
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], env=env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.output = ""

    def __enter__(self):
        self.reads(r"# $")
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def types(self, line):
        """Types a line, waits until the shell prompts again, and returns what appeared."""
        self.output = ""
        os.write(self.ours, f"{line}; echo exit code $?\n".encode())
        self.reads(r"exit code \d+\r\n.*# $")
        return self.output.replace("\r\n", "\n")

    def reads(self, pattern):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not re.search(pattern, self.output, re.DOTALL):
            assert time.monotonic() < deadline, f"waited in vain\n{self.output}"
            if select.select([self.ours], [], [], 0.2)[0]:
                self.output += os.read(self.ours, 65536).decode(errors="replace")


def memlock():
    """The option without a limit for locked memory, unless this machine may not raise limits."""
    mask = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1]
    may_raise = int(mask, 16) >> CAP_SYS_RESOURCE & 1
    _, most = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "--ulimit memlock=-1" if may_raise else f"--ulimit memlock={most}"


def worker(machine, image=SLIM):
    succeeds(shell(machine, WORKER.format(image=image)))
    listens(machine, 12345)


def test_all_gpus_are_refused_by_docker_where_there_is_none(node7):
    done = shell(node7, f"docker run --rm --gpus all {SLIM} true")
    assert "could not select device driver" in done.stderr


def test_four_ranks_on_one_machine(node7):
    with Typed(node7, f"docker run -it {CPU} bash") as terminal:
        output = terminal.types("horovodrun -np 4 -H localhost:4 python keras_mnist_advanced.py")
    assert "exit code 0" in output, output
    assert "accuracy" in output


def test_every_rank_says_where_it_is(node7, node8):
    worker(node8, CPU)
    with Typed(node7, MASTER.format(image=CPU)) as terminal:
        output = terminal.types(
            "horovodrun -np 2 -H node7:1,node8:1 -p 12345 python -c "
            '"import horovod.tensorflow as hvd, socket; hvd.init(); '
            "print('rank', hvd.rank(), 'on', socket.gethostname())\""
        )
    assert "exit code 0" in output, output
    assert "rank 0 on node7" in output and "rank 1 on node8" in output


def test_a_login_shell_on_every_host(node7, node8):
    worker(node8)
    line = (
        "horovodrun -np 2 -H node7:1,node8:1 -p 12345 bash -lc "
        "'echo RANK:$HOROVOD_RANK on $(hostname); nvidia-smi -L'"
    )
    with Typed(node7, MASTER.format(image=SLIM)) as terminal:
        output = terminal.types(line)
        assert "RANK:0 on node7" in output and "RANK:1 on node8" in output
        # There is no GPU here; the rest is what anyone sees who forgets `--gpus all`.
        assert "nvidia-smi: command not found" in output and "exit code 127" in output
        output = terminal.types(line.replace("nvidia-smi -L", "command -v python"))
    assert "exit code 0" in output
    assert output.count("/usr/local/bin/python") == 2, output


def test_capabilities_shared_memory_and_the_network_of_the_host(node7, node8):
    for machine in (node7, node8):
        program = machine.path("/data/tf_cnn_benchmarks.py")
        program.write_text(BENCHMARK)
    flags = (
        "--cap-add sys_admin --cap-add sys_ptrace --security-opt seccomp=unconfined --shm-size=50g "
        f"{memlock()} --ipc=host -v /data:/data --network host"
    )
    keys = "-v /opt/horovod/ssh:/root/.ssh:ro -w /data"
    line = f"docker run -d {flags} {keys} --name n2 --hostname n2 {SLIM} /usr/sbin/sshd -p 12345 -D"
    succeeds(shell(node8, line))
    listens(node8, 12345)
    with Typed(node7, f"docker run -it {flags} {keys} --name n1 --hostname n1 {SLIM}") as terminal:
        output = terminal.types(
            f"horovodrun -np 4 -H localhost:2,{ADDRESSES['node8']}:2 -p 12345 python "
            "tf_cnn_benchmarks.py --model resnet50 --batch_size 16 --variable_update horovod "
            "--use_fp16"
        )
    assert "exit code 0" in output, output
    assert output.count("average 1.5 float16") == 4


@pytest.mark.parametrize("attempt", ["first", "again, with other host keys"])
def test_another_user_and_a_shared_folder(machines, node7, node8, attempt):
    share = machines.share
    for name, text in (("sockeye/train.py", TRAINER), ("data/train.src", "one two\nthree\n")):
        path = share / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    lock = share / "lock"
    lock.mkdir(exist_ok=True)
    os.chown(lock, 1000, 1000)
    mounts = "-v /mnt/share/ssh:/home/ronde/.ssh -v /mnt/share:/mnt/share"
    host = (
        f"docker run --rm -i --network=host {mounts} {SLIM} "
        'bash -c "/usr/sbin/sshd -p 12345; sleep infinity"'
    )
    job = (
        f"docker run --rm -i --network=host {mounts} -w /mnt/share --user ronde:ronde {SLIM} "
        "horovodrun -np 2 -H localhost:1,node8:1 -p 12345 python -m sockeye.train "
        "-s /mnt/share/data/train.src --lock-dir /mnt/share/lock --use-cpu --horovod"
    )
    with Running(node8, host):
        listens(node8, 12345)
        output = succeeds(shell(node7, job))
    assert output.count("user 1000 words 6") == 2, output
    assert sorted(path.name for path in lock.iterdir()) == ["0", "1"]
    # Nothing of a container is remembered in the folder that outlives it.
    assert not (share / "ssh" / "known_hosts").exists()
