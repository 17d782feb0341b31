"""A lab of hosts on one machine: namespaces on a bridge, each with a real sshd.

Every host has its own name, address, interface (with a unique name), `/etc/hosts`, ssh
configuration and host key; they share the rest of the file system, except that they may have home
directories of their own. `Lab.run` runs a command on the first host as its user would.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT_SECONDS = 50
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = ("unshare", "--net", "--uts", "--mount", "--propagation", "slave")
# Runs in the namespaces of a new host and becomes its sshd.
INIT = """
set -e
folder=$1 name=$2 port=$3
hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
mount -t tmpfs tmpfs /run
mkdir /run/sshd
exec "$(command -v sshd)" -D -e -f "$folder/sshd_config" -p "$port"
"""
CONFIG = """
HostKey {folder}/host_key
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
LogLevel VERBOSE
AuthorizedKeysFile {folder}/authorized_keys
"""

# The `~/.ssh/config` of a user on the host.
CLIENT = """
Host *
  IdentityFile {folder}/id
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
"""


def why_not():
    """Why a lab cannot be set up on this machine, or None."""
    if os.geteuid() != 0:
        return "creating namespaces requires root"
    for command, package in [
        ("ip", "iproute2"),
        ("ssh", "openssh-client"),
        ("sshd", "openssh-server"),
        ("unshare", "util-linux"),
    ]:
        if shutil.which(command) is None:
            return f"the command `{command}` is missing; install the package `{package}`"
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0:
        return "the kernel cannot create namespaces"
    return None


class Host:
    """One host of a lab: its name, address and the process that holds its namespaces."""

    namespaces = ("--net", "--uts", "--mount")

    def __init__(self, lab, name, number, port):
        self.lab, self.name, self.port = lab, name, port
        self.address = f"{lab.network}.{number}"
        self.interface = f"eth{name}{number}"
        self.folder = lab.folder / name
        self.home = self.folder / "home" if lab.homes else Path.home()
        self.bin = self.folder / "bin"
        self.cable = f"{name[-1]}{lab.id}"
        self.sshd = None

    def start(self):
        """Brings the host up, with a new host key the first time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "host_key").exists():
            self.new_key()
        shutil.copy(self.lab.folder / "key.pub", self.folder / "authorized_keys")
        shutil.copy(self.lab.folder / "key", self.folder / "id")
        (self.folder / "ssh_config").write_text(CLIENT.format(folder=self.folder))
        shutil.copy(self.lab.folder / "hosts", self.folder / "hosts")
        config = CONFIG.format(folder=self.folder)
        if self.lab.homes:
            self.home.mkdir(exist_ok=True)
            self.bin.mkdir(exist_ok=True)
            # A user there has little else than the system's programs and the Python of these tests.
            base = Path(sys.executable).resolve()
            (self.bin / "python3").unlink(missing_ok=True)
            (self.bin / "python3").symlink_to(base)
            config += f"SetEnv HOME={self.home} PATH={self.bin}:{SYSTEM}\n"
        (self.folder / "sshd_config").write_text(config)
        with (self.folder / "sshd.log").open("w") as log:
            self.sshd = self._start_init(log)
        self._plug_in()
        self._await_sshd()

    def _start_init(self, log):
        return subprocess.Popen(
            [*UNSHARE, "sh", "-c", INIT, "init", self.folder, self.name, str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def holder(self):
        """The PID of a process that is in all namespaces of the host."""
        return self.sshd.pid

    def new_key(self):
        """Generates a new host key."""
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host_key")

    def _plug_in(self):
        pid = str(self.holder())
        _until(lambda: os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        cable = self.cable
        _run("ip", "link", "add", cable, "type", "veth", "peer", self.interface, "netns", pid)
        _run("ip", "link", "set", cable, "netns", self.lab.bridge)
        _run("ip", "-n", self.lab.bridge, "link", "set", cable, "master", "br0", "up")
        self.enter("ip", "addr", "add", f"{self.address}/24", "dev", self.interface)
        self.enter("ip", "link", "set", "lo", "up")
        self.enter("ip", "link", "set", self.interface, "up")

    def _await_sshd(self):
        listening = f":{self.port:04X} "
        table = f"/proc/{self.holder()}/net/tcp"
        _until(lambda: listening in Path(table).read_text())

    def enter(self, *command):
        """Runs a command on the host."""
        _run(*self.prefix(), *command)

    def prefix(self, folder="/"):
        """The command prefix that runs a command on this host."""
        return ["nsenter", "-t", str(self.holder()), *self.namespaces, f"--wd={folder}"]

    def unplug(self):
        """Pulls the cable."""
        _run("ip", "-n", self.lab.bridge, "link", "set", self.cable, "down")

    def lose(self, other):
        """Makes packets from this host to another one get lost from now on."""
        unreachable = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        self.enter("ip", "neigh", "replace", other.address, *unreachable, "dev", self.interface)

    @contextmanager
    def without_sshd(self):
        """Stops the host's sshd while the host stays up."""
        holder = subprocess.Popen([*self.prefix(), "sleep", "100"])
        try:
            # The namespaces live as long as a process is inside them.
            inside = os.readlink(f"/proc/{self.sshd.pid}/ns/mnt")
            while os.readlink(f"/proc/{holder.pid}/ns/mnt") != inside:
                assert holder.poll() is None
            self.sshd.kill()
            self.sshd.wait()
            yield
        finally:
            holder.kill()
            holder.wait()

    def signal(self, number):
        """Signals every process on the host except the one that holds its namespaces."""
        for pid in inside(self.holder()):
            if pid != self.holder():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def stop(self):
        """Takes the host down and kills all its processes."""
        if self.sshd is None:
            return
        for pid in inside(self.holder()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.sshd.kill()
        self.sshd.wait()
        self.sshd = None
        unplug = ["ip", "-n", self.lab.bridge, "link", "del", self.cable]
        subprocess.run(unplug, capture_output=True, check=False)


class Lab:
    """Hosts `node-a`, `node-b`, … on one network; removed at the end of the `with` block."""

    def __init__(self, folder, count, port=2222, network="10.78.0", homes=False):
        self.folder = Path(folder) / "lab"
        self.folder.mkdir()
        self.network, self.homes = network, homes
        self.id = uuid.uuid4().hex[:8]
        self.bridge = f"ronde-lab-{self.id}"
        names = [f"node-{letter}" for letter in "abcdefgh"[:count]]
        self.hosts = [Host(self, name, number, port) for number, name in enumerate(names, 1)]

    def __enter__(self):
        _run("ip", "netns", "add", self.bridge)
        _run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.bridge, "link", "set", "br0", "up")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "key")
        lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self.hosts)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        try:
            for host in self.hosts:
                host.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.stop()
        subprocess.run(["ip", "netns", "del", self.bridge], capture_output=True, check=False)

    def run(self, *command, env=None, folder="/", limit=LIMIT_SECONDS):
        """Runs a command on the first host and waits for its end."""
        return subprocess.run(
            [*self.hosts[0].prefix(folder), *map(str, command)],
            env=self.environment(env),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *command, env=None, **more):
        """Starts a command on the first host."""
        return subprocess.Popen(
            [*self.hosts[0].prefix(), *map(str, command)],
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            errors="replace",
            **more,
        )

    def environment(self, env):
        """The environment of a user on the first host, with additional variables."""
        home = {"HOME": str(self.hosts[0].home)} if self.homes else {}
        return {**os.environ, "OMP_NUM_THREADS": "1", **home, **(env or {})}


def horovodrun():
    """The path of `horovodrun`: next to this interpreter, or from PATH."""
    beside = Path(sys.executable).with_name("horovodrun")
    return str(beside) if beside.exists() else shutil.which("horovodrun")


def inside(pid):
    """The PIDs in the network namespace of this process."""
    try:
        network = os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns" / "net") == network:
                found.append(int(entry.name))
    return found


def ronde():
    """The path of `ronde`, next to `horovodrun`."""
    return str(Path(horovodrun()).with_name("ronde"))


def marked(mark, word=""):
    """PIDs with this text in their environment and this word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                line = (entry / "cmdline").read_bytes()
                if word.encode() in line:
                    found.append(int(entry.name))
    return found


def _until(condition, limit=10):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the lab did not come up"
        time.sleep(0.01)


def _run(*command):
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 0, f"{command}: {result.stderr}"
