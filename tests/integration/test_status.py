"""`ronde status` with a real job: what the ranks have done, and which rank is late."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import launcher, until

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
import os, sys, time
import numpy as np
import horovod.raw as hvd

hvd.init()
ones = np.ones(1000, dtype=np.float32)
for step in range(10):
    hvd.allreduce(ones, name=f"step.{step % 2}", op=hvd.Sum)
while hvd.rank() == 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
hvd.allreduce(ones, name="last", op=hvd.Sum)
"""


def test_status_shows_the_work_done_and_the_late_rank(tmp_path):
    script, flag = tmp_path / "script.py", tmp_path / "flag"
    script.write_text(SCRIPT)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "OMP_NUM_THREADS": "1"}
    ronde = shutil.which("ronde", path=str(Path(launcher()).parent))
    job = subprocess.Popen(
        [launcher(), "-np", "3", sys.executable, str(script), str(flag)], env=env
    )

    def look():
        result = subprocess.run(
            [ronde, "status", "--once", "--json"], env=env, capture_output=True, text=True
        )
        status = json.loads(result.stdout) if result.returncode == 0 else {}
        return status if status.get("late") else None

    with job:
        try:
            status = until(look, 40, lambda: "no rank is late")
        finally:
            flag.touch()
    assert job.returncode == 0
    assert [late["rank"] for late in status["late"]] == [1]
    assert status["late"][0]["tensor"].endswith("last")
    assert status["late"][0]["waiting_ranks"] == 2
    for rank in status["ranks"]:
        assert rank["state"] == "joined" and rank["pid"] > 0
        assert rank["report"]["collectives"] >= 10
        assert rank["report"]["bytes"] >= 40_000
        assert rank["report"]["outstanding"] == (rank["rank"] != 1)
    assert list((runtime / "ronde").iterdir()) == []
