"""Containers on one machine: each has its own network, processes and file systems.

A container sits behind a router, which stands for the machine that it runs on, and cannot be
reached from outside except at ports that the machine publishes, as with `docker run -p`. Containers
reach the machines, but not each other. `ContainerLab.run` runs a command in the first container.
"""

import subprocess
import sys
from pathlib import Path

from lab import INIT, Host, Lab, _run, _until

UNSHARE = (
    *("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"),
    *("--mount-proc", "--propagation", "slave"),
)
# A small `/dev/shm`, as Docker makes it.
SMALL_MEMORY = "mount -t tmpfs -o size=1m tmpfs /dev/shm\n"
# Forwards the published ports of a machine to its container, like Docker's proxy.
PROXY = """
import asyncio, sys

target, *ports = sys.argv[1:]

async def copy(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

def forward(port):
    async def accept(reader, writer):
        try:
            inner = await asyncio.open_connection(target, port)
        except OSError:
            return writer.close()
        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))
    return accept

async def main():
    for port in map(int, ports):
        await asyncio.start_server(forward(port), "0.0.0.0", port)
    print("published", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Container(Host):
    """A container on a machine of its own."""

    def __init__(self, lab, name, number, port, ports, env):
        super().__init__(lab, name, number, port)
        self.number, self.ports, self.env = number, ports, env
        self.router = f"{lab.bridge}-{number}"
        self.inner = f"172.17.{number}.2"
        self.init, self.proxy = None, None

    namespaces = ("--net", "--uts", "--mount", "--ipc", "--pid")

    def holder(self):
        """The first process of the container, a child of the one that made its namespaces."""
        if self.init is None:
            children = Path(f"/proc/{self.sshd.pid}/task/{self.sshd.pid}/children")
            _until(lambda: children.read_text().split())
            self.init = int(children.read_text().split()[0])
        return self.init

    def _start_init(self, log):
        """Starts the first process of the container, which is not the one that holds it here."""
        # A shell stays the first process: sshd would overwrite the environment that it starts with.
        init = INIT.replace("exec ", SMALL_MEMORY, 1) + "exit\n"
        words = ["sh", "-c", init, "init", self.folder, self.lab.hostname, str(self.port)]
        return subprocess.Popen(
            [*UNSHARE, *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**self.lab.environment(None), **self.env},
        )

    def _plug_in(self):
        inner, outer, gateway = (f"{end}{self.lab.id}{self.number}" for end in "iog")
        _run("ip", "netns", "add", self.router)
        router = ("ip", "-n", self.router)
        _run("ip", "link", "add", outer, "netns", self.router, "type", "veth", "peer", self.cable)
        _run("ip", "link", "set", self.cable, "netns", self.lab.bridge)
        _run("ip", "-n", self.lab.bridge, "link", "set", self.cable, "master", "br0", "up")
        pid = str(self.holder())
        _run(*router, "link", "add", gateway, "type", "veth", "peer", inner, "netns", pid)
        _run(*router, "addr", "add", f"{self.address}/24", "dev", outer)
        _run(*router, "addr", "add", f"172.17.{self.number}.1/24", "dev", gateway)
        for link in ("lo", outer, gateway):
            _run(*router, "link", "set", link, "up")
        _run("ip", "netns", "exec", self.router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        # Answers from other machines find their way back; calls to other containers do not.
        for other in self.lab.hosts:
            if other is not self:
                _run(*router, "route", "add", f"172.17.{other.number}.0/24", "via", other.address)
        _run(*router, "rule", "add", "iif", gateway, "to", "172.17.0.0/16", "unreachable")
        self.enter("ip", "addr", "add", f"{self.inner}/24", "dev", inner)
        for link in ("lo", inner):
            self.enter("ip", "link", "set", link, "up")
        self.enter("ip", "route", "add", "default", "via", f"172.17.{self.number}.1")
        self._publish()

    def _publish(self):
        """Publishes the container's ports at the address of its machine."""
        ports = map(str, [self.port, *self.ports])
        self.proxy = subprocess.Popen(
            ["ip", "netns", "exec", self.router, sys.executable, "-c", PROXY, self.inner, *ports],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.proxy.stdout.readline() == "published\n"

    def stop(self):
        """Takes the container and its machine down."""
        if self.proxy is not None:
            self.proxy.kill()
            self.proxy.wait()
        super().stop()
        self.init = None
        subprocess.run(["ip", "netns", "del", self.router], capture_output=True, check=False)


class ContainerLab(Lab):
    """Containers `node-a`, `node-b`, … that all have the same host name."""

    def __init__(self, folder, ports, env=(), network="10.81.0", port=2222):
        super().__init__(folder, 0, port, network)
        self.hostname = "worker"
        env = [*env, *({} for _ in ports[len(env) :])]
        for number, (some, variables) in enumerate(zip(ports, env), 1):
            name = f"node-{'abcdefgh'[number - 1]}"
            self.hosts.append(Container(self, name, number, port, some, variables))
