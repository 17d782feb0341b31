"""Environment variables that this process reads, and those that it sets for others.

This is the only place in Python that reads or writes variables with Horovod's and Ronde's names.
They say how the process was started; its current state comes from the native module, which reads
the engine's settings at every `init`, and once whether the job is elastic. Variables set here are
for child processes, for the user's program and for NCCL, never for another part of this package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TRUE = frozenset({"1", "true", "yes", "on"})
_PARENT = "RONDE_PARENT"


def is_launched() -> bool:
    """Whether `horovodrun`, or a launcher that sets the same variables, started this process."""
    return "HOROVOD_RANK" in os.environ


def rank() -> int:
    """The rank that the launcher assigned to this process, for use before it has joined."""
    return int(os.environ.get("HOROVOD_RANK", "0"))


def size() -> int | None:
    """The number of ranks that the launcher set, if any."""
    value = os.environ.get("HOROVOD_SIZE")
    return None if value is None else int(value)


def host() -> str | None:
    """Its host, by the name that the user gave it, if the launcher set it."""
    return os.environ.get("HOROVOD_HOSTNAME") or None


def advertised() -> list[str]:
    """Further addresses at which others reach this host, although no interface has them."""
    parts = os.environ.get("RONDE_ADVERTISE", "").split(",")
    return [part.strip() for part in parts if part.strip()]


def slot() -> int:
    """Its slot on its host."""
    return int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))


def controller() -> str:
    """How the ranks should connect: `mpi`, `gloo` or, if it is up to Ronde, an empty string."""
    return os.environ.get("HOROVOD_CONTROLLER", "").lower()


def wants_mpi_threads() -> bool:
    """Whether to initialize MPI with thread support."""
    return os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "0") in ("", "0")


def allows_dynamic_sets() -> bool:
    """Whether process sets may be added and removed after `init`."""
    return os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").lower() in _TRUE


def allow_dynamic_sets() -> None:
    """Allows dynamic sets from now on, like Horovod's `init(process_sets="dynamic")`."""
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"


def spark_start_timeout() -> int:
    """How long to wait for Spark's tasks by default, in seconds."""
    return int(os.environ.get("HOROVOD_SPARK_START_TIMEOUT") or 600)


def for_gpus_of_spark(gpus: Sequence[str], more: Mapping[str, str]) -> dict[str, str]:
    """Variables for a rank to whose task Spark assigned these GPUs; `more` are its other ones."""
    choose = {**os.environ, **more}.get("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "0")
    assigned = ",".join(gpus)
    visible = {} if choose.lower() in _TRUE else {"CUDA_VISIBLE_DEVICES": assigned}
    return {_SPARK_GPUS: assigned, **visible}


def with_python_path(folders: Sequence[str]) -> dict[str, str]:
    """PYTHONPATH with these folders first, for a child process; nothing if there are none."""
    before = os.environ.get("PYTHONPATH")
    paths = [*folders, before] if before else folders
    return {"PYTHONPATH": os.pathsep.join(paths)} if folders else {}


def gpus_of_spark() -> list[str] | None:
    """The GPUs that Spark assigned to this rank's task; None if this is no rank of such a task."""
    assigned = os.environ.get(_SPARK_GPUS)
    return None if assigned is None else assigned.split(",")


_SPARK_GPUS = "RONDE_SPARK_GPUS"


def set_up_keras(names: Mapping[str, str]) -> None:
    """Sets Keras's own variables before it is imported, unless the user has decided."""
    for name, value in names.items():
        os.environ.setdefault(name, value)


def set_up_nccl() -> None:
    """Has NCCL connect ranks early, also those that share a GPU, unless the user has decided."""
    os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")


def take_latecomer() -> bool:
    """Whether the job was training before this process started; false in later calls and
    children."""
    return os.environ.pop("RONDE_LATECOMER", None) == "1"


def update_place(numbers: dict[str, int]) -> None:
    """Updates, for the user's program, variables that the launcher could only guess."""
    for name, number in numbers.items():
        os.environ[f"HOROVOD_{name}"] = str(number)
        if name in _TORCHS:
            os.environ[_TORCHS[name]] = str(number)


def update(variables: Mapping[str, Any]) -> None:
    """Sets variables, for a process that is to become a rank."""
    os.environ.update({name: str(value) for name, value in variables.items()})


def everything() -> dict[str, str]:
    """All variables, for whoever started this process."""
    return dict(os.environ)


def of_place(rank: int, size: int, host: str) -> dict[str, str]:
    """The place of a rank as variables."""
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_HOSTNAME": host}


def of_meeting(invitation: str) -> dict[str, str]:
    """An invitation as variables, for ranks that are told their place by variables."""
    _, key, addresses = invitation.splitlines()
    host, _, port = addresses.split()[0].rpartition(":")
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host.strip("[]"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "RONDE_RENDEZVOUS": ",".join(addresses.split()),
        "RONDE_JOB_KEY": key,
    }


_RAY_LOG = "RONDE_RAY_LOG"


def for_ray_log(address: str, key: bytes) -> dict[str, str]:
    """Where a rank finds the actor of its agent: the path of a socket, and its key."""
    return {_RAY_LOG: f"{key.hex()} {address}"}


def ray_log() -> tuple[str, bytes] | None:
    """What `for_ray_log` set: path and key; None if this rank has no such actor."""
    key, _, address = os.environ.get(_RAY_LOG, "").partition(" ")
    return (address, bytes.fromhex(key)) if address else None


# PyTorch's names for some of these numbers.
_TORCHS = {
    "RANK": "RANK",
    "SIZE": "WORLD_SIZE",
    "LOCAL_RANK": "LOCAL_RANK",
    "LOCAL_SIZE": "LOCAL_WORLD_SIZE",
}


def leave_for_children(numbers: Iterable[int]) -> None:
    """Stores the numbers of this rank for child processes that have no process object yet."""
    os.environ[_PARENT] = " ".join(str(int(number)) for number in numbers)


def parent_numbers() -> list[int]:
    """The numbers that a rank has stored; an empty list if there are none."""
    try:
        return [int(number) for number in os.environ.get(_PARENT, "").split()]
    except ValueError:
        return []


def forget_parent() -> None:
    """Removes these numbers, so that no child process reads them."""
    os.environ.pop(_PARENT, None)


# Variables that say who a process is or belong to one machine; the launcher sets its own for ranks.
_OF_A_RANK = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    | {"TF_CONFIG", "PYTHONUNBUFFERED"}
)
_OURS = ("HOROVOD_", "RONDE_")
_FOR_LAUNCHER = frozenset({"HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER", "XDG_RUNTIME_DIR"})


def for_launcher() -> dict[str, str]:
    """The environment of a launcher whose ranks run elsewhere: what it needs, and settings.

    Ranks get what is left of it, so nothing else of this process may be in it.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _FOR_LAUNCHER or name.startswith(_OURS)
    }


def for_agent(more: Mapping[str, str], python: str) -> dict[str, str]:
    """The environment of an agent that this process starts: its ranks get all of it, and `more`.

    They run with `python`, in the current directory.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_A_RANK and not name.startswith(_OURS)
    }
    names = {**inherited, **more}
    names.update(RONDE_AGENT_PYTHON=python, RONDE_AGENT_DIRECTORY=os.getcwd())
    return {**names, "RONDE_HOST_ENV": ",".join(names)}
