"""A rank of Ronde in a measurement: `python -m horovod._bench '{"folder": ..., ...}'`.

`ronde bench` starts it through the launcher, and rank 0 delivers its report there. The folder,
which only its user can enter, contains the socket over which rank 0 schedules the others; ranks on
several hosts have no folder, and are scheduled through collectives.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

from horovod import _native
from horovod._bench import models
from horovod._bench.channel import Channel, Closed, Message, listen
from horovod._bench.mpirun import Mpirun
from horovod._bench.ours import Arena, Copy, Engine, Ronde
from horovod._bench.remote import RemoteRanks
from horovod._bench.scheduler import Group, Processes, Refused, Scheduler
from horovod._bench.worker import System, Worker
from horovod.common import environment
from horovod.common.basics import HorovodBasics


def main() -> None:
    """Joins the world; rank 0 schedules, the others measure when told."""
    plan = json.loads(sys.argv[1])
    turns = str(Path(plan["folder"], "turns")) if plan["folder"] else None
    # The others connect once the world has formed, so rank 0 must listen before that.
    first = environment.rank() == 0
    server = listen(turns) if first and turns else None
    basics = HorovodBasics()
    basics.init()
    ours: dict[str, System] = {
        "ronde": Ronde(),
        "engine": Engine(),
        "arena": Arena(),
        "memcpy": Copy(),
    }
    worker = Worker(_native.rank(), ours)
    worker.openings["gloo"] = gloo
    if server is not None and turns is not None:
        conduct(plan, Group(worker, meet(server, _native.size())), (server, turns))
    elif first:
        conduct(plan, RemoteRanks(worker), None)
    elif turns is not None:
        channel = Channel.to(turns)
        channel.send({"group": "ronde", "rank": worker.rank})
        worker.serve(channel)
    else:
        RemoteRanks(worker).serve()
    basics.shutdown()


class Report:
    """Sends results to the command, over the launcher's encrypted connections."""

    def send(self, message: Message) -> None:
        """Sends a message to the command."""
        _native.deliver_result(json.dumps(message).encode() + b"\n")


def conduct(
    plan: dict[str, Any], others: Processes, entrance: tuple[socket.socket, str] | None
) -> None:
    """Runs the schedule on rank 0."""
    size = _native.size()
    report = Report()
    scheduler = Scheduler(report, plan["rounds"], plan["seconds"])
    scheduler.systems = dict.fromkeys(plan["systems"], others)
    versions = {"ronde": _native.__version__}
    mpirun = None
    for peer in plan["compare"]:
        try:
            if peer == "gloo":
                versions[peer] = others.ask({"do": "open", "system": peer})[0]["version"]
                scheduler.systems[peer] = others
            elif entrance is None:
                scheduler.leave_out(peer, "its ranks can only be started on one host")
            else:
                mpirun = Mpirun(size, *entrance)
                versions[peer] = mpirun.version
                scheduler.systems[peer] = Group(None, mpirun.channels)
        except (Refused, OSError, Closed) as error:
            scheduler.leave_out(peer, error)
    report.send({"run": {"machine": machine(), "versions": versions}})
    try:
        for task in tasks(plan, size):
            report.send({"begin": task})
            measure(scheduler, task)
    finally:
        for group in {id(group): group for group in scheduler.systems.values()}.values():
            group.dismiss()
        if mpirun is not None:
            mpirun.end()
    report.send({"done": True})


def measure(scheduler: Scheduler, task: dict[str, Any]) -> None:
    """Measures one task; if the MPI processes are gone, it continues without them."""
    try:
        scheduler.measure(task)
    except Closed as error:
        if scheduler.systems.pop("mpi", None) is None:
            raise
        scheduler.leave_out("mpi from here on", error)
        scheduler.measure(task)


def meet(server: socket.socket, size: int) -> list[Channel]:
    """Accepts the channels to the other ranks; returns them in rank order."""
    channels: dict[int, Channel] = {}
    while len(channels) < size - 1:
        channel = Channel(server.accept()[0])
        channels[channel.receive()["rank"]] = channel
    return [channels[rank] for rank in range(1, size)]


def tasks(plan: dict[str, Any], size: int) -> list[Message]:
    """What to measure: sizes do not apply to a step or a barrier."""
    return [
        {"collective": collective, "bytes": length, "dtype": plan["dtype"], "ranks": size}
        for collective in plan["collectives"]
        for length in ([0] if collective in {*models.STEPS, "barrier"} else plan["sizes"])
    ]


def gloo() -> tuple[System, str]:
    """Imports torch, which takes seconds, only when gloo is compared."""
    from horovod._bench import gloo

    return gloo.start()


def machine() -> dict[str, Any]:
    """The properties of the machine that the figures depend on."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().split("\n")
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
