"""A rank of Ronde in a measurement: `python -m horovod._bench '{"folder": ..., ...}'`.

`ronde bench` starts it through the launcher, and rank 0 delivers its report there. In the folder,
which only its user may enter, lies the socket where rank 0 gives the turns; ranks on several hosts
have no folder, and take turns by collectives.
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
from horovod._bench.circle import Circle
from horovod._bench.conductor import Conductor, Group, Refused, Together
from horovod._bench.mpirun import Mpirun
from horovod._bench.ours import Arena, Copy, Engine, Ronde
from horovod._bench.worker import System, Worker
from horovod.common import environment
from horovod.common.basics import HorovodBasics


def main() -> None:
    """Joins the world; rank 0 conducts, the others take turns."""
    plan = json.loads(sys.argv[1])
    turns = str(Path(plan["folder"], "turns")) if plan["folder"] else None
    # The others connect when the world has formed, for which rank 0 must have listened.
    first = environment.rank() == 0
    door = listen(turns) if first and turns else None
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
    if door is not None and turns is not None:
        conduct(plan, Group(worker, meet(door, _native.size())), (door, turns))
    elif first:
        conduct(plan, Circle(worker), None)
    elif turns is not None:
        channel = Channel.to(turns)
        channel.send({"group": "ronde", "rank": worker.rank})
        worker.serve(channel)
    else:
        Circle(worker).serve()
    basics.shutdown()


class Report:
    """The way to the command, through the launcher's sealed connections."""

    def send(self, message: Message) -> None:
        """Passes a message on."""
        _native.deliver_result(json.dumps(message).encode() + b"\n")


def conduct(
    plan: dict[str, Any], others: Together, entrance: tuple[socket.socket, str] | None
) -> None:
    """Everything that rank 0 does beside its own part."""
    size = _native.size()
    report = Report()
    conductor = Conductor(report, plan["rounds"], plan["seconds"])
    conductor.systems = dict.fromkeys(plan["systems"], others)
    versions = {"ronde": _native.__version__}
    mpirun = None
    for peer in plan["compare"]:
        try:
            if peer == "gloo":
                versions[peer] = others.ask({"do": "open", "system": peer})[0]["version"]
                conductor.systems[peer] = others
            elif entrance is None:
                conductor.leave_out(peer, "its ranks are started on one host only")
            else:
                mpirun = Mpirun(size, *entrance)
                versions[peer] = mpirun.version
                conductor.systems[peer] = Group(None, mpirun.channels)
        except (Refused, OSError, Closed) as error:
            conductor.leave_out(peer, error)
    report.send({"run": {"machine": machine(), "versions": versions}})
    try:
        for task in tasks(plan, size):
            report.send({"begin": task})
            measure(conductor, task)
    finally:
        for group in {id(group): group for group in conductor.systems.values()}.values():
            group.dismiss()
        if mpirun is not None:
            mpirun.end()
    report.send({"done": True})


def measure(conductor: Conductor, task: dict[str, Any]) -> None:
    """One task; when the processes of MPI are gone, it goes on without them."""
    try:
        conductor.measure(task)
    except Closed as error:
        if conductor.systems.pop("mpi", None) is None:
            raise
        conductor.leave_out("mpi from here on", error)
        conductor.measure(task)


def meet(door: socket.socket, size: int) -> list[Channel]:
    """The channels to the other ranks, in their order."""
    channels: dict[int, Channel] = {}
    while len(channels) < size - 1:
        channel = Channel(door.accept()[0])
        channels[channel.receive()["rank"]] = channel
    return [channels[rank] for rank in range(1, size)]


def tasks(plan: dict[str, Any], size: int) -> list[Message]:
    """What is to be measured: a step and a barrier have no choice of sizes."""
    return [
        {"collective": collective, "bytes": length, "dtype": plan["dtype"], "ranks": size}
        for collective in plan["collectives"]
        for length in ([0] if collective in {*models.STEPS, "barrier"} else plan["sizes"])
    ]


def gloo() -> tuple[System, str]:
    """Imports torch, which takes seconds, only where it is compared with."""
    from horovod._bench import gloo

    return gloo.start()


def machine() -> dict[str, Any]:
    """What the figures depend on."""
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
