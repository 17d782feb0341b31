"""Sockeye, a third-party program, trains unmodified on two ranks.

It needs an old MXNet and an old NumPy, so `make matrix` runs this test in a separate environment.
"""

import hashlib
import os
import random
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from jobs import LIMIT_SECONDS, launcher

pytestmark = pytest.mark.skipif(find_spec("sockeye") is None, reason="Sockeye is not installed")

UPDATES = 20
MODEL = (
    "--encoder transformer --decoder transformer --num-layers 1:1 --num-embed 32 "
    "--transformer-model-size 32 --transformer-attention-heads 2 "
    "--transformer-feed-forward-num-hidden 64"
)
TRAINING = (
    f"--batch-size 200 --checkpoint-interval {UPDATES // 2} --max-updates {UPDATES} "
    "--decode-and-evaluate 0 --seed 1"
)


def python(folder, *arguments, prefix=()):
    """Runs a Sockeye module; returns its output."""
    job = subprocess.run(
        [*prefix, sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert job.returncode == 0, job.stdout
    return job.stdout


def write_pairs(folder, name, count, seed):
    """Writes sentences of made-up words; the translation is the same words in reverse."""
    chance = random.Random(seed)
    words = [f"w{number}" for number in range(60)]
    sentences = [chance.choices(words, k=chance.randint(3, 12)) for _ in range(count)]
    for end, step in (("src", 1), ("trg", -1)):
        lines = [" ".join(sentence[::step]) for sentence in sentences]
        (folder / f"{name}.{end}").write_text("\n".join(lines) + "\n")


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_both_ranks_end_with_the_same_parameters(tmp_path):
    write_pairs(tmp_path, "train", 400, seed=1)
    write_pairs(tmp_path, "dev", 40, seed=2)
    pairs = ("-s", "train.src", "-t", "train.trg", "-o", "prepared", "--shared-vocab")
    python(tmp_path, "sockeye.prepare_data", *pairs)
    flags = "-d prepared -vs dev.src -vt dev.trg -o model --shared-vocab --use-cpu --horovod"
    output = python(
        tmp_path,
        "sockeye.train",
        *f"{flags} {MODEL} {TRAINING}".split(),
        prefix=(launcher(), "--mpi", "-np", "2"),
    )
    # Both ranks have done all updates, and the model has improved.
    assert output.count(f"Maximum # of updates ({UPDATES}) reached") == 2, output
    found = re.findall(r"Validation-perplexity improved to ([\d.]+)", output)
    assert len(found) == 4 and float(found[-1]) < float(found[0]), output
    model = tmp_path / "model"
    first, last = (digest(model / f"params.0000{number}") for number in (1, 2))
    assert first != last
    # Ranks other than the first keep only the last parameters.
    assert digest(model / "secondary_workers" / "1" / "params.00002") == last
