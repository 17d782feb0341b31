"""Modules of Horovod that Ronde lacks: importing one raises an error that says what to use instead.

The finder comes last, so that it is only asked for modules that no other finder has.
"""

from __future__ import annotations

import sys

_START = "start jobs with `horovod.run` or the command `horovodrun`"
_ELASTIC = (
    "start elastic jobs with `horovod.run(min_num_proc=...)` or `horovodrun --min-np`; "
    "horovod.runner.elastic.discovery finds hosts"
)
_NOT_YET = f"it may be added later, see the table in the README; {_START}"
_SERVICE = "ranks and launcher use their own protocol, which never unpickles anything; " + _START
_SPARK = "tasks of Spark carry agents of an ordinary job; use horovod.spark.run or run_elastic"

INSTEAD = {
    "horovod.ray.driver_service": _SERVICE,
    "horovod.ray.task_service": _SERVICE,
    "horovod.runner.common.service": _SERVICE,
    "horovod.runner.common.util.tiny_shell_exec": "use subprocess.run",
    "horovod.runner.driver": _SERVICE,
    "horovod.runner.elastic.constants": _ELASTIC,
    "horovod.runner.elastic.driver": _ELASTIC,
    "horovod.runner.elastic.registration": _ELASTIC,
    "horovod.runner.elastic.rendezvous": _ELASTIC,
    "horovod.runner.elastic.settings": _ELASTIC,
    "horovod.runner.gloo_run": _START,
    "horovod.runner.http": _SERVICE,
    "horovod.runner.js_run": "use `horovodrun --jsrun`",
    "horovod.runner.mpi_run": "use `horovod.run(use_mpi=True)` or `horovodrun --mpi`",
    "horovod.runner.task": _SERVICE,
    "horovod.runner.task_fn": _SERVICE,
    "horovod.runner.util.cache": "nothing about hosts is cached between jobs",
    "horovod.runner.util.lsf": "`horovodrun --jsrun` reads LSF's variables itself",
    "horovod.runner.util.remote": "`horovodrun -H` connects to hosts over ssh itself",
    "horovod.runner.util.streams": "use os.pipe or queue.Queue",
    "horovod.spark.data_loaders": "its loaders read from petastorm; use horovod.data.ParquetReader",
    "horovod.spark.driver": _SPARK,
    "horovod.spark.gloo_run": _SPARK,
    "horovod.spark.mpi_run": _SPARK,
    "horovod.spark.task.gloo_exec_fn": _SPARK,
    "horovod.spark.task.mpirun_exec_fn": _SPARK,
    "horovod.spark.task.task_info": "use horovod.spark.task.get_available_devices",
    "horovod.spark.task.task_service": _SPARK,
}


class _Finder:
    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        """Raises for a module that Horovod has and Ronde lacks; ignores all others."""
        instead = INSTEAD.get(fullname)
        if instead is not None:
            text = f"{fullname} is not part of Ronde: {instead}"
            raise ModuleNotFoundError(text, name=fullname)


def install() -> None:
    """Installs the finder."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)
