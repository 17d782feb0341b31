"""The batch scripts of deploy/slurm, on hosts of a lab, with stand-ins for Slurm's commands."""

import os
import stat
import sys

import pytest
from charts import ROOT
from elastic_jobs import PROGRAM
from lab import Lab, why_not

REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

FOLDER = ROOT / "deploy" / "slurm"
SCONTROL = """#!/bin/sh
# scontrol show hostnames LIST
echo "$3" | tr , '\\n'
"""
# Starts a task on each host, as `srun` does, with the variables of a step.
SRUN = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
prefixes = {prefixes!r}
tasks = []
for rank, prefix in enumerate(prefixes):
    step = dict(SLURM_PROCID=rank, SLURM_LOCALID=0, SLURM_STEP_ID=0, SLURM_JOB_ID=7,
                SLURM_STEP_NUM_TASKS=len(prefixes), SLURM_STEP_NUM_NODES=len(prefixes),
                SLURM_NODEID=rank)
    env = dict(os.environ, **{{key: str(value) for key, value in step.items()}})
    tasks.append(subprocess.Popen([*prefix, *words], env=env))
sys.exit(max(task.wait() for task in tasks))
"""
WORK = """
import socket, sys
import horovod.raw as hvd
import numpy

hvd.init()
total = hvd.allreduce(numpy.ones(3), op=hvd.Sum)
# One write, because both ranks have the same standard output.
sys.stdout.write(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: {total[0]:.0f}\\n")
"""


@pytest.fixture(name="allocation")
def _allocation(tmp_path):
    """Two hosts, and the environment of a batch script on the first one."""
    with Lab(tmp_path, 2, network="10.78.21") as lab:
        commands = tmp_path / "commands"
        commands.mkdir()
        prefixes = [host.prefix() for host in lab.hosts]
        texts = {
            "scontrol": SCONTROL,
            "srun": SRUN.format(python=sys.executable, prefixes=prefixes),
        }
        for name, text in texts.items():
            (commands / name).write_text(text)
            (commands / name).chmod(stat.S_IRWXU)
        path = [str(commands), os.path.dirname(sys.executable), os.environ["PATH"]]
        yield (
            lab,
            {
                "PATH": ":".join(path),
                "SLURM_JOB_NODELIST": "node-a,node-b",
                "SAY_FOLDER": str(tmp_path),
                "RONDE_FLIGHT_RECORDER_DIR": "off",
            },
        )


def test_every_task_is_a_rank(allocation, tmp_path):
    lab, env = allocation
    (tmp_path / "train.py").write_text(WORK)
    result = lab.run("bash", FOLDER / "train.sbatch", tmp_path / "train.py", env=env)
    assert result.returncode == 0, result.stderr
    lines = [f"rank {rank} of 2 on node-{letter}: 2" for rank, letter in enumerate("ab")]
    assert sorted(result.stdout.splitlines()) == lines


def test_agents_of_a_step_run_an_elastic_job(allocation, tmp_path):
    lab, env = allocation
    # Ends once both hosts take part.
    program = PROGRAM.replace('os.path.exists(f"{folder}/over")', "hvd.size() == 2 and step > 20")
    (tmp_path / "train.py").write_text(program)
    result = lab.run("bash", FOLDER / "elastic.sbatch", tmp_path / "train.py", env=env)
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


@pytest.mark.parametrize("name", ["train.sbatch", "elastic.sbatch"])
def test_without_a_script_there_is_a_hint(allocation, name):
    lab, env = allocation
    result = lab.run("bash", FOLDER / name, env=env)
    assert result.returncode == 2
    assert f"hint: sbatch {name} train.py" in result.stderr
