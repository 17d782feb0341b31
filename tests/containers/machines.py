"""Two machines that can run containers, and how tests start and watch them.

Both machines have what people have on theirs: keys for root's ssh in `/opt/horovod/ssh`, a project
in `/home/me/project`, and a folder that they share, `/mnt/share`, with the keys of another user.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from engine import Machine

SLIM, CPU, CUDA = "ronde:slim", "ronde:cpu", "ronde:cuda"
ADDRESSES = {"node7": "10.77.0.7", "node8": "10.77.0.8"}
# Four ranks with TensorFlow take nearly a minute where other programs need the cores, too.
PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
LIMIT_SECONDS = round(55 * PATIENCE)
# What the ranks of most tests run: a reduction, and where they are.
WHERE = """
import socket, numpy, horovod.raw as hvd
hvd.init()
total = hvd.allreduce(numpy.full(1000, hvd.rank() + 1, "float32"), op=hvd.Sum)
assert (total == hvd.size() * (hvd.size() + 1) / 2).all(), total
print("rank", hvd.rank(), "of", hvd.size(), "on", socket.gethostname(), flush=True)
"""
# The same, again and again, until someone ends it; the first line says that it has begun.
FOREVER = """
import time, numpy, horovod.raw as hvd
hvd.init()
step = 0
while True:
    hvd.allreduce(numpy.ones(1000, "float32"), name="step")
    if step == 0:
        print("rank", hvd.rank(), "trains", flush=True)
    step += 1
    time.sleep(0.01)
"""


class Machines:
    """Both machines; `with` starts and ends them."""

    def __enter__(self):
        with ExitStack() as stack:
            others = tuple(ADDRESSES.items())
            self.node7, self.node8 = (
                stack.enter_context(Machine(name, address, others)) for name, address in others
            )
            self.tidy()
            self.node7.plug_into(self.node8)
            self.share = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._images()
            self._files()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def tidy(self):
        """Removes the containers and networks of a test, or of one that was interrupted."""
        for machine in (self.node7, self.node8):
            if left := machine.must("ps", "-aq").split():
                machine.must("rm", "-f", "-v", *left)
            machine.must("network", "prune", "-f")

    def _images(self):
        for image in (SLIM, CPU, CUDA):
            assert self.node7.has(image), f"`{image}` has not been built; run `make containers`"
        for image in (SLIM, CPU):
            query = ("image", "inspect", "-f", "{{.Id}}", image)
            if self.node8.run(*query).stdout == self.node7.must(*query) + "\n":
                continue
            with subprocess.Popen(
                self.node7.command("save", image), stdout=subprocess.PIPE
            ) as save:
                self.node8.must("load", stdin=save.stdout, limit=600)
        self.node8.must("image", "prune", "-f", limit=300)

    def _files(self):
        keys = self.share / "ssh"
        keys.mkdir()
        quiet = ("ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-C", "test")
        subprocess.run([*quiet, "-f", keys / "id_rsa"], check=True)
        (keys / "id_rsa.pub").rename(keys / "authorized_keys")
        for machine in (self.node7, self.node8):
            own = machine.path("/opt/horovod/ssh")
            shutil.copytree(keys, own)
            own.chmod(0o700)
            machine.path("/home/me/project").mkdir(parents=True)
            machine.path("/mnt/share").mkdir()
            machine.enter("mount", "--bind", self.share, "/mnt/share")
        for path in (keys, *keys.iterdir()):
            os.chown(path, 1000, 1000)
        self.share.chmod(0o755)


def shell(machine, line, limit=LIMIT_SECONDS, **options):
    """Runs a command line as a person on the machine would; `docker` there is its engine."""
    env = options.pop("env", {**os.environ, "DOCKER_HOST": machine.options[1]})
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options}
    return subprocess.run(["bash", "-c", line], env=env, timeout=limit, check=False, **options)


def succeeds(done):
    """The output of a command that must have succeeded."""
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


class Running:
    """A command line that is still running; killed at the end of the `with` block."""

    def __init__(self, machine, line):
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end of the block
        env = {**os.environ, "DOCKER_HOST": machine.options[1]}
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=self.file,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.file.close()

    @property
    def output(self):
        """Everything that it has printed so far."""
        return os.pread(self.file.fileno(), 1 << 20, 0).decode()

    def says(self, pattern, times=1):
        """Waits until it has printed a pattern so many times."""
        until(lambda: len(re.findall(pattern, self.output)) >= times, lambda: self.output)

    def ends(self):
        """Waits for its end; returns the exit code."""
        return self.process.wait(LIMIT_SECONDS)


def until(condition, describe=lambda: ""):
    """Waits for a condition."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain\n{describe()}"
        time.sleep(0.05)


def listens(machine, port, container=None):
    """Waits until something listens on a port of the machine, or of a container."""
    table = ("cat", "/proc/net/tcp", "/proc/net/tcp6")
    pattern = re.compile(rf":{port:04X} 0+:0000 0A")

    def listening():
        with suppress(RuntimeError, subprocess.CalledProcessError):
            ask = (lambda: machine.must("exec", container, *table)) if container else None
            text = ask() if ask else machine.enter("cat", "/proc/net/tcp")
            return pattern.search(text) is not None
        return False

    until(listening)


def python(program):
    """A command line that runs a program, quoted for a shell."""
    return f"python -c {shlex.quote(program.strip())}"
