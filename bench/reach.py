"""Measures how long a job on two hosts takes to start, by the way its hosts are reached.

`python bench/reach.py`, as root. The hosts are network namespaces with real sshds, as in the tests:
four ranks, two on each host, join and leave. The launcher is on the first host, whose ranks are its
children; the second host is reached through ssh, a standing agent, an agent that dials in, or a
command like `docker exec`. A job of four ranks on the first host alone shows what reaching another
host costs. Rounds of all ways alternate.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from figures import save
from job import described, machine
from record import RESULTS, processor

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "integration"))
from lab import Lab, horovodrun, why_not

JOIN = "import horovod.raw as hvd; hvd.init(); assert hvd.size() == 4"
PORT = 4000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", action="store_true", help="keep it under bench/results")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"error: {reason}")
    load = machine()
    with tempfile.TemporaryDirectory() as folder, Lab(folder, 2, network="10.78.11") as lab:
        seconds = measure(Ways(Path(folder), lab), options.rounds)
    text = table(seconds, load)
    print(text, end="")
    if options.save:
        stem = RESULTS / f"reach-{processor()}"
        stem.with_suffix(".md").write_text(f"# Reaching another host\n\n{text}")
        save(stem.with_suffix(".json"), seconds)


class Ways:
    """The ways to start the job; each method returns when everything has ended."""

    def __init__(self, folder, lab):
        self.folder, self.lab = folder, lab
        self.key = folder / "key"
        self.key.write_text("7" * 64)
        self.key.chmod(0o600)
        self.enter = folder / "enter"
        pid = lab.hosts[1].sshd.pid
        self.enter.write_text(f'#!/bin/sh\nexec nsenter -t {pid} --net --uts --mount -- "$@"\n')
        self.enter.chmod(0o755)

    def all(self):
        return {
            "one host": lambda: self.job("-H", "node-a:4"),
            "ssh": lambda: self.job(*self.two, "--reach", "ssh", "-p", "2222"),
            "standing agent": lambda: self.job(*self.two, "--reach", "agent"),
            "agents that dial in": self.dial_in,
            "`--rsh`": lambda: self.job(
                *self.two, "--rsh", f"env ENTERED={{host}} {self.enter} {{command}}"
            ),
        }

    two = ("-H", "node-a:2,node-b:2")

    def job(self, *options):
        env = {"RONDE_AGENT_KEY_FILE": str(self.key)}
        command = [horovodrun(), "-np", "4", *options, sys.executable, "-c", JOIN]
        ended = self.lab.run(*command, env=env)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def stand(self):
        """Starts the standing agent of the second host."""
        return self.agent(self.lab.hosts[1], "--listen", ":29508")

    def dial_in(self):
        address = f"{self.lab.hosts[0].address}:{PORT}"
        agents = [self.agent(host, "--join", address) for host in self.lab.hosts]
        self.job("--agents", "2", "--listen", address, "--key-file", str(self.key))
        assert [agent.wait() for agent in agents] == [0, 0]

    def agent(self, host, *options):
        ronde = Path(horovodrun()).with_name("ronde")
        command = [ronde, "agent", *options, "--slots", "2", "--key-file", self.key]
        return subprocess.Popen(
            [*host.prefix(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def measure(ways, rounds):
    chosen = ways.all()
    seconds = {name: [] for name in chosen}
    names = list(chosen)
    with ExitStack() as stack:
        standing = ways.stand()
        stack.callback(lambda: (os.killpg(standing.pid, signal.SIGTERM), standing.wait()))
        for number in range(rounds + 1):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                chosen[name]()
                # The first round warms up.
                if number > 0:
                    seconds[name].append(time.perf_counter() - start)
            print(f"round {number} of {rounds}", file=sys.stderr)
    return seconds


def table(seconds, load):
    lines = [
        f"Four ranks that join and leave; {described(load)}. Seconds: median (least to most).",
        "",
        "| " + " | ".join(seconds) + " |",
        "|" + " --- |" * len(seconds),
        "| "
        + " | ".join(
            f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
            for each in seconds.values()
        )
        + " |",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
