"""A standalone Spark cluster on this machine: a master and workers, each a process."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 60
QUIET = {
    "ui_enabled": "false",
    "ui_showConsoleProgress": "false",
    "executor_memory": "1g",
    "driver_host": "127.0.0.1",
    "driver_bindAddress": "127.0.0.1",
}


class SparkCluster:
    """A master and workers.

    Args:
        folder: Where logs and the workers' files go.
        workers: Number of workers; each has its own address, 127.0.0.2 and up.
        cores: Cores of each.
        gpus: Addresses of GPUs that each claims to have.
    """

    def __init__(self, folder, workers=2, cores=2, gpus=()):
        self.folder, self.cores = Path(folder), cores
        self._options = self._claim(gpus) if gpus else []
        self._processes = []
        try:
            self.url = self._start("master", "Master", "--host", "127.0.0.1", "--port", "0")
            for number in range(workers):
                self.add_worker(f"127.0.0.{number + 2}")
        except BaseException:
            self.stop()
            raise

    def add_worker(self, address):
        """Starts a worker and waits until the master knows it; returns its process."""
        name = f"worker-{len(self._processes)}"
        options = ["-c", str(self.cores), "-m", "3g", "--host", address]
        options += [*self._options, "-d", str(self.folder / name), self.url]
        self._start(name, "Worker", *options)
        return self._processes[-1]

    @contextmanager
    def session(self, **settings):
        """A Spark session with its executors; a `_` in the name of a setting stands for a dot."""
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(self.url)
        for name, value in {**QUIET, **settings}.items():
            builder = builder.config(f"spark.{name.replace('_', '.')}", value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            # Executors start with the first task.
            session.range(0, 4, 1, 4).collect()
            yield session
        finally:
            session.stop()

    def stop(self):
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _claim(self, gpus):
        """The options of a worker with these GPUs."""
        script, settings = self.folder / "gpus.sh", self.folder / "gpus.conf"
        script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': gpus})}'\n")
        script.chmod(0o755)
        prefix = "spark.worker.resource.gpu."
        settings.write_text(f"{prefix}amount {len(gpus)}\n{prefix}discoveryScript {script}\n")
        return ["--properties-file", str(settings)]

    def _start(self, name, kind, *options):
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self.folder / f"{name}.log"
        ready = re.compile(
            r"Starting Spark master at (spark://\S+)" if kind == "Master" else r"Successfully (reg)"
        )
        command = [
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind.lower()}.{kind}",
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *options, "--webui-port", "0"],
                env={**os.environ, "SPARK_HOME": str(home)},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        end = time.monotonic() + START_SECONDS
        while True:
            text = log.read_text(errors="replace")
            found = ready.search(text)
            if found:
                return found.group(1)
            assert process.poll() is None and time.monotonic() < end, (
                f"{name} did not start:\n{text}"
            )
            time.sleep(0.05)


def executors(session):
    """The processes of a session's executors."""
    app = session.sparkContext.applicationId.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and app in words:
                found.append(int(folder.name))
    return sorted(found)


def family(pid):
    """A process and all its descendants: what dies with a container."""
    children = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def kill_container(session):
    """Kills an executor, its tasks and their ranks, all at once."""
    for pid in family(executors(session)[0]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
