"""A Docker engine for `make images` and `make containers`.

`Engine` is the one that this machine has. `Machine` is one of our own for machines without: it runs
as root in its own namespaces for network, host name, mounts and processes, like a machine inside
the machine. It changes no firewall rule, no interface and no setting here, and its containers end
with it; only its images stay, in a folder of the checkout. Two of them can be joined by a cable.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
KEPT = TOP / ".tools" / "images"
PACKAGES = ("docker.io", "containerd", "runc", "iptables", "debootstrap", "iproute2")
PACKAGES += ("docker-compose",)
COMMANDS = ("docker", "dockerd", "containerd", "runc", "iptables", "debootstrap", "ip", "nsenter")
# The machine's own places for what people mount from a host; nothing of them is on the real disk.
PLACES = ("/opt", "/mnt", "/home", "/data", "/root/.ssh")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
UNSHARE = ("unshare", "--net", "--uts", "--mount", "--propagation", "slave")
UNSHARE += ("--pid", "--fork", "--kill-child", "--mount-proc")
# Runs in the namespaces and becomes the engine.
INIT = """
set -e
name=$1 runtime=$2 images=$3; shift 3
hostname "$name"
ip link set lo up
mount --bind "$runtime/hosts" /etc/hosts
for place; do mount -t tmpfs tmpfs "$place"; done
mount -t tmpfs tmpfs /run
exec dockerd --data-root "$images" --exec-root "$runtime/exec" -p "$runtime/pid" \
  -H "unix://$runtime/docker.sock" --storage-driver overlay2
"""


class NoEngine(Exception):
    """There is no engine, and none can be started here."""


class Engine:
    """A Docker engine, reached through the `docker` command."""

    def __init__(self, address=None):
        self.options = ("-H", address) if address else ()

    def command(self, *words):
        """The command line of `docker` for this engine."""
        return ["docker", *self.options, *map(str, words)]

    def run(self, *words, limit=60, **options):
        """Runs `docker` to its end and returns what came of it; output is captured as text."""
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options}
        if "input" in options:
            del options["stdin"]
        return subprocess.run(self.command(*words), timeout=limit, check=False, **options)

    def must(self, *words, **options):
        """The same, which must succeed; returns its output."""
        done = self.run(*words, **options)
        if done.returncode != 0:
            raise RuntimeError(f"`docker {' '.join(map(str, words))}`: {done.stderr.strip()}")
        return (done.stdout or "").strip()

    def answers(self):
        """Whether there is an engine."""
        with suppress(OSError, subprocess.TimeoutExpired):
            return self.run("version", limit=10).returncode == 0
        return False

    def has(self, image):
        """Whether it has the image."""
        return self.run("image", "inspect", image).returncode == 0


class Machine(Engine):
    """An engine of our own in a machine made of namespaces; `with` starts and ends it."""

    def __init__(self, name, address=None, others=()):
        self.name, self.address = name, address
        self.runtime = Path(tempfile.mkdtemp(prefix="ronde-docker-"))
        self.images = KEPT / "engines" / name
        self.process = None
        self.made, self.groups = [], set()
        lines = ["127.0.0.1 localhost", *(f"{where} {who}" for who, where in others)]
        (self.runtime / "hosts").write_text("\n".join(lines) + "\n")
        super().__init__(f"unix://{self.runtime}/docker.sock")

    def __enter__(self):
        self.images.mkdir(parents=True, exist_ok=True)
        self.groups = control_groups()
        for place in map(Path, PLACES):
            if not place.exists():
                place.mkdir()
                self.made.append(place)
        arguments = (self.name, self.runtime, self.images, *PLACES)
        command = [*UNSHARE, "sh", "-c", INIT, "init", *arguments]
        with (self.runtime / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 50
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                end = (self.runtime / "log").read_text()[-2000:]
                self.__exit__()
                raise NoEngine(f"dockerd does not start:\n{end}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        with suppress(Exception):
            if left := self.must("ps", "-aq").split():
                self.run("rm", "-f", "-v", *left)
            os.kill(self.pid, signal.SIGTERM)
            self.process.wait(30)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.runtime, ignore_errors=True)
        for place in (*self.made, *(control_groups() - self.groups)):
            with suppress(OSError):
                place.rmdir()

    @property
    def pid(self):
        """The engine's process, which holds the namespaces."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])

    def enter(self, *words, **options):
        """Runs a command on the machine, outside of containers; returns its output."""
        place = ["nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", "--pid", "--wd=/"]
        options = {"capture_output": True, "text": True, **options}
        return subprocess.run([*place, *map(str, words)], check=True, **options).stdout

    def path(self, path):
        """Where a path of the machine is for processes outside of it."""
        return Path(f"/proc/{self.pid}/root{path}")

    def plug_into(self, other):
        """Connects two machines with a cable and gives both their addresses."""
        ends = ((self, "eth0"), (other, "eth0"))
        here, there = (("netns", str(machine.pid), "name", name) for machine, name in ends)
        check = {"check": True, "capture_output": True}
        subprocess.run(["ip", "link", "add", *here, "type", "veth", "peer", *there], **check)
        for machine, name in ends:
            machine.enter("ip", "addr", "add", f"{machine.address}/24", "dev", name)
            machine.enter("ip", "link", "set", name, "up")


def control_groups():
    """The control groups in which engines put those of their containers."""
    return {path for pattern in ("docker", "*/docker") for path in CONTROL_GROUPS.glob(pattern)}


def why_no_machine():
    """Why no engine of our own can be started here, or None. Installs what it needs, as root."""
    if os.geteuid() != 0:
        return "starting one takes root"
    if missing() and shutil.which("apt-get"):
        quiet = {
            "check": False,
            "stdout": subprocess.DEVNULL,
            "env": {**os.environ, **NO_QUESTIONS},
        }
        subprocess.run(["apt-get", "update", "-qq"], **quiet)
        install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
        subprocess.run([*install, *PACKAGES], **quiet)
    if names := missing():
        return f"the command `{names[0]}` is missing; it is in one of {', '.join(PACKAGES)}"
    return None


NO_QUESTIONS = {"DEBIAN_FRONTEND": "noninteractive"}


def missing():
    """The commands that a machine needs and this one does not have."""
    absent = [name for name in COMMANDS if shutil.which(name) is None]
    if not absent and compose() is None:
        absent.append("docker-compose")
    return absent


def compose():
    """The command line of Compose, which is a program or a plugin of `docker`, or None."""
    if shutil.which("docker-compose"):
        return "docker-compose"
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return "docker compose" if plugin.returncode == 0 else None
