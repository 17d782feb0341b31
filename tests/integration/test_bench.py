"""`ronde bench` as a user runs it: figures, table, plot, missing peers, and interrupts."""

import json
import os
import signal
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from jobs import MARK, environments, launcher, until

pytestmark = pytest.mark.timeout(60)

COLLECTIVES = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"]


def bench(line, *more, **env):
    """Runs it with the options of a line and more; returns the completed process."""
    return subprocess.run(
        [str(command()), "bench", *line.split(), *more],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **env},
    )


def command():
    return Path(launcher()).with_name("ronde")


def figures(line, **env):
    """Its measurements, from the JSON on standard output."""
    done = bench(line, "--json", "-", **env)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    return run


def test_the_figures_are_complete_and_in_order():
    run = figures("-np 2 --sizes 4,1K --rounds 3 --transport tcp")
    assert (run["ranks"], run["transport"], run["notes"]) == (2, "tcp", [])
    assert [row["bytes"] for row in run["rows"]] == [4, 1024]
    for row in run["rows"]:
        assert (row["collective"], row["dtype"]) == ("allreduce", "float32")
        assert set(row["systems"]) == {"ronde", "engine", "memcpy"}, (
            "there is no arena over sockets"
        )
        for system in row["systems"].values():
            assert len(system["rounds"]) == 3
            assert 0 < system["p10"] <= system["median"] <= system["p90"]
        seconds = row["systems"]["ronde"]["median"]
        assert row["algorithm_bytes_per_second"] == pytest.approx(row["bytes"] / seconds)


def test_reductions_in_shared_memory_are_also_measured_in_the_arena():
    run = figures("-np 2 --sizes 1M --rounds 2 --collective allreduce,broadcast,resnet50")
    measured = {row["collective"]: "arena" in row["systems"] for row in run["rows"]}
    assert measured == {"allreduce": True, "broadcast": False, "resnet50": True}


def test_gloo_is_measured_for_every_collective(tmp_path):
    drawing = tmp_path / "bench.svg"
    written = tmp_path / "bench.json"
    done = bench(
        f"-np 2 --sizes 4,1K --rounds 2 --compare gloo --collective {','.join(COLLECTIVES)}",
        *("--plot", str(drawing), "--json", str(written)),
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(written.read_text())["runs"]
    assert run["versions"]["gloo"].startswith("torch ")
    left_out = " ".join(run["notes"])
    for row in run["rows"]:
        assert "gloo" in row["systems"] or f"gloo for {row['collective']}" in left_out, run["notes"]
    assert "allreduce" not in left_out
    for collective in COLLECTIVES:
        assert f"| {collective}" in done.stdout
    assert "torch gloo / Ronde" in done.stdout
    words = "".join(ElementTree.parse(drawing).getroot().itertext())
    for expected in ("torch gloo", "allreduce, 2 ranks", "1 KiB", "bytes per rank"):
        assert expected in words


def test_mpi_is_measured_for_every_collective():
    names = ",".join(COLLECTIVES)
    run = figures(f"-np 2 --sizes 4,1K --rounds 2 --compare mpi --collective {names}")
    assert run["notes"] == []
    assert run["versions"]["mpi"]
    assert all("mpi" in row["systems"] for row in run["rows"])


def test_the_gradients_of_a_model_are_measured_as_one_step():
    (row,) = figures("-np 2 --collective resnet50 --rounds 1")["rows"]
    assert 97 < row["bytes"] / 2**20 < 98


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "uint8"])
def test_other_element_types_are_measured(dtype):
    (row,) = figures(f"-np 2 --sizes 1K --rounds 1 --dtype {dtype}")["rows"]
    assert (row["dtype"], row["bytes"]) == (dtype, 1024)


def test_several_worlds_are_measured_in_turn():
    done = bench("-np 1,2 --sizes 4 --rounds 1 --transport auto,tcp")
    assert done.returncode == 0, done.stderr
    headings = [line for line in done.stdout.split("\n") if line.startswith("## ")]
    assert headings == [
        "## 1 rank in shared memory",
        "## 1 rank over TCP",
        "## 2 ranks in shared memory",
        "## 2 ranks over TCP",
    ]


def test_a_calibration_can_be_used(tmp_path):
    file = tmp_path / "tuning.conf"
    done = bench("-np 2 --rounds 1", "--calibrate", str(file))
    assert done.returncode == 0, done.stderr
    assert f"RONDE_TUNING={file}" in done.stdout
    lines = file.read_text().split("\n")
    assert any(line.startswith("# on ") and "with 2 ranks" in line for line in lines)
    (threshold,) = [line.split()[0] for line in lines if line.startswith("one_shot=")]
    assert 0 < int(threshold.split("=")[1]) <= 64 << 10
    assert figures("-np 2 --sizes 4,1M --rounds 1", RONDE_TUNING=str(file))["rows"]


def path_with(folder, script):
    """A PATH on which `mpirun` is this script."""
    file = folder / "mpirun"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def test_without_mpi_everything_else_is_measured(tmp_path):
    # Only the interpreter is needed; the folder of the real one also has an MPI.
    for name in ("python", "python3"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / name).chmod(0o755)
    run = figures("-np 2 --sizes 4 --rounds 1 --compare mpi", PATH=str(tmp_path))
    (note,) = run["notes"]
    assert "mpi is left out: there is no `mpirun` on the PATH" in note
    assert "mpi" not in run["rows"][0]["systems"]


def test_the_error_of_an_mpi_that_does_not_start_is_quoted(tmp_path):
    path = path_with(tmp_path, "echo 'no slots for you' >&2; exit 3")
    run = figures("-np 2 --sizes 4 --rounds 1 --compare mpi", PATH=path)
    (note,) = run["notes"]
    assert "mpirun ended with code 3: no slots for you" in note


def test_an_interrupt_ends_all_processes_including_those_of_mpi(tmp_path):
    mark = uuid.uuid4().hex
    started = tmp_path / "started"
    script = f'[ "$1" = --version ] && exit 0; touch {started}; exec sleep 600'
    process = subprocess.Popen(
        [str(command()), "bench", "-np", "2", "--sizes", "4", "--compare", "mpi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PATH": path_with(tmp_path, script), MARK: mark},
    )

    def left():
        sign = f"{MARK}={mark}".encode()
        return [pid for pid, env in environments() if sign in env]

    try:
        until(started.exists, 40, lambda: "mpirun was not started")
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 128 + signal.SIGINT
        until(lambda: not left(), 5, lambda: f"left behind: {left()}")
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)
        process.wait()
