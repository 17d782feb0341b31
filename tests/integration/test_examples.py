"""Every example runs on two ranks, with fewer steps, and prints what its page shows."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import LIMIT_SECONDS, launcher

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBER = r"\d+(?:\.\d+)?"

# The script with its flags, the packages it needs, and what it must print, in this order.
PROGRAMS = {
    "01-digits": (
        "train.py --epochs 2",
        ["sklearn", "tqdm"],
        [r"2 ranks: accuracy 0\.\d{3}, [\d,]+ samples/s"],
    ),
    "02-resnet50": (
        "benchmark.py --model resnet50 --batch-size 1 --image-size 64 --num-warmup-batches 1 "
        "--num-batches-per-iter 1 --num-iters 2 --fp16-allreduce --no-cuda",
        [],
        [
            "Model: resnet50",
            "Batch size: 1",
            "Number of CPUs: 2",
            "Running warmup...",
            "Running benchmark...",
            f"Iter #0: {NUMBER} img/sec per CPU",
            f"Iter #1: {NUMBER} img/sec per CPU",
            rf"Img/sec per CPU: {NUMBER} \+-{NUMBER}",
            rf"Total img/sec on 2 CPU\(s\): {NUMBER} \+-{NUMBER}",
        ],
    ),
    "03-language-model": (
        "train.py --steps 20 --report-every 10 --context 16 --sample 5",
        [],
        [
            f"step 10: loss {NUMBER}",
            f"step 20: loss {NUMBER}",
            r"2 ranks: [345]\.\d\d bits per letter of text it has not seen",
            r"[\d,]+ letters/s",
            "it writes: .T.*",
        ],
    ),
    "04-uneven-data": (
        "train.py --epochs 2",
        [],
        [
            "epoch 0: rank 0 had 20 batches",
            "epoch 0: rank 1 was the last",
            "epoch 1: rank 0 had 20 batches",
            "epoch 1: rank 1 was the last",
            r"the slopes are (0\.0\d\d) off, and nowhere more than \1",
        ],
    ),
    "05-process-sets": (
        "train.py --steps 200",
        [],
        [
            "rank 0 is number 0 of 1 in team 0",
            r"team 0: 0\.[789]\d\d of the points are right",
            r"together: 0\.[789]\d\d of the points are right",
        ],
    ),
    "06-compile": (
        "train.py --steps 5",
        [],
        [
            f"plain: (loss {NUMBER}), {NUMBER} ms per step",
            rf"compiled: \1, {NUMBER} ms per step",
            r"compiled by aot_eager, the parameters differ by (0e\+00|[1-9]e-0[6789]) at most",
        ],
    ),
    "07-ddp": (
        "train.py --steps 20 --report-every 10",
        [],
        [
            f"step 10: loss {NUMBER}",
            f"step 20: loss {NUMBER}",
            f"2 ranks over ronde: {NUMBER} steps/s",
            "parameters are the same, bit for bit, on all ranks",
        ],
    ),
    "08-lightning": (
        "train.py --epochs 2",
        ["lightning", "sklearn"],
        ["2 ranks, 46 steps each", r"accuracy 0\.[789]\d\d"],
    ),
    # In a fixed job; the tests of elastic jobs run it with changing ranks.
    "09-elastic": (
        "train.py --epochs 2",
        ["sklearn"],
        [
            r"epoch 0: 2 ranks, accuracy 0\.\d{3}",
            r"epoch 1: 2 ranks, accuracy 0\.[5-9]\d\d",
            "2 ranks at the end, parameters [0-9a-f]{12}",
        ],
    ),
}


@pytest.mark.parametrize("folder", PROGRAMS)
def test_an_example_runs_on_two_ranks(folder):
    command, needs, lines = PROGRAMS[folder]
    absent = [name for name in needs if find_spec(name) is None]
    if absent:
        pytest.skip(f"{' and '.join(absent)} not installed")
    assert re.fullmatch("\n".join(lines), "\n".join(printed_by(folder, command)))


# Both ranks spend most of the time waiting for a compiler.
@pytest.mark.timeout(2 * LIMIT_SECONDS + 5)
@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="inductor needs a C++ compiler"
)
def test_a_model_compiled_by_inductor_gives_the_same_result(tmp_path):
    command, _, lines = PROGRAMS["06-compile"]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    lines = [line.replace("aot_eager", "inductor") for line in lines]
    output = printed_by("06-compile", command + " --backend inductor", cache, 2 * LIMIT_SECONDS)
    assert re.fullmatch("\n".join(lines), "\n".join(output))


def test_every_example_has_a_page_and_a_test():
    folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    # Other test files run the examples of the other frameworks.
    others = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*_*.py"))
    assert [folder for folder in folders if folder not in PROGRAMS and folder not in others] == []
    assert set(PROGRAMS) <= set(folders)
    index = (EXAMPLES / "README.md").read_text()
    for folder in folders:
        assert (EXAMPLES / folder / "README.md").is_file()
        assert f"[{folder}]({folder})" in index


def printed_by(folder, command, env=None, seconds=LIMIT_SECONDS):
    """Runs an example on two ranks; returns what rank 0 prints."""
    script, *flags = command.split()
    job = subprocess.run(
        [launcher(), "-np", "2", sys.executable, str(EXAMPLES / folder / script), *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    return re.findall(r"^\[0\]<stdout>:(.*)$", job.stdout, re.MULTILINE)
