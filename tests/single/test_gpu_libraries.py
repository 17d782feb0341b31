"""What a process says about the driver and NCCL, which it opens when they are first needed."""

import json
import os
import subprocess
import sys

import pytest

ASK = """
import json
import horovod.common.util as util
import horovod.common.world as hvd
from horovod import _native

library = util._basics.MPI_LIB_CTYPES
c = [bool(library.horovod_cuda_built()), library.horovod_nccl_built()]
assert c == [hvd.cuda_built(), hvd.nccl_built()]
assert util.nccl_built() == (hvd.nccl_built() > 0)
print(json.dumps([*c, _native.gpu_software(True)]))
"""


def ask(**env):
    command = [sys.executable, "-c", ASK]
    inherited = {key: text for key, text in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    answer = subprocess.run(
        command, env={**inherited, **env}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize(
    ("standin", "cuda", "nccl"),
    [
        ("driver=12040,nccl=22809", True, 22809),
        ("driver=11040,nccl=21400", True, 21400),
        ("nccl=21304", True, 0),
        ("driver=11030", False, 0),
    ],
)
def test_libraries_count_if_they_are_new_enough(standin_gpu, standin, cuda, nccl):
    named = {"RONDE_CUDA": standin_gpu, "RONDE_NCCL": standin_gpu, "RONDE_STANDIN_GPU": standin}
    assert ask(**named)[:2] == [cuda, nccl]


def test_old_libraries_and_all_gpus_are_described(standin_gpu):
    named = {"RONDE_CUDA": standin_gpu, "RONDE_NCCL": standin_gpu}
    _, _, software = ask(**named, RONDE_STANDIN_GPU="devices=2,memory=64M,driver=11040,nccl=2708")
    assert software == {
        "driver": {"version": 11040, "path": standin_gpu},
        "nccl": {"version": 2708, "path": standin_gpu},
        "gpus": [{"name": "Ronde stand-in GPU", "memory_bytes": 64 << 20}] * 2,
    }


def test_a_machine_without_a_driver_has_nothing_and_says_why():
    cuda, nccl, software = ask(RONDE_CUDA="/no/such/driver.so", RONDE_NCCL="/no/such/nccl.so")
    assert (cuda, nccl, software["gpus"]) == (False, 0, [])
    assert "NVIDIA driver cannot be opened: /no/such/driver.so" in software["driver"]["problem"]
    assert "NCCL cannot be opened: /no/such/nccl.so" in software["nccl"]["problem"]


@pytest.mark.parametrize(("given", "left"), [(None, "1"), ("0", "0")])
def test_ranks_may_share_a_gpu_unless_the_user_forbids_it(given, left):
    program = (
        "import os, horovod.raw as hvd\nhvd.init()\nprint(os.environ['NCCL_MULTI_RANK_GPU_ENABLE'])"
    )
    env = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": given}
    env = {key: text for key, text in env.items() if text is not None}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=env, text=True).strip() == left
