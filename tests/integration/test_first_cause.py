"""Sixty kinds of failure, each reported with its first cause, rank and host in the last lines.

In each case one rank fails while the others train. The last block that the launcher prints, from
its last line that starts with `error:`, must name that rank, its host and what happened there.
"""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field

import pytest
from jobs import launcher

pytestmark = pytest.mark.timeout(60)

PRELUDE = """
import ctypes, faulthandler, json, mmap, os, resource, signal, subprocess, sys, tempfile
import threading, time
import numpy as np
import horovod.raw as hvd

RANK = int(os.environ["HOROVOD_RANK"])

def train(steps=1_000_000):
    array = np.ones(1000, np.float32)
    for step in range(steps):
        hvd.allreduce(array, name="gradient")

def others_train():
    if RANK != VICTIM:
        train()
        sys.exit()
"""


@dataclass(frozen=True)
class Case:
    """What the victim does, and what the last block must say about it."""

    name: str
    script: str
    says: tuple[str, ...]
    code: int = 1
    rank: int = 1
    size: int = 2
    # Whether the ranks first join a world, in which the others train.
    joins: bool = True
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def raises(name, script, *says, **more):
    return Case(name, script, says, **more)


def dies(number, name, script, *says, **more):
    return Case(name, script, (signal.Signals(number).name, *says), code=128 + number, **more)


STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}

CASES = [
    # Python exceptions.
    raises("key", "{}['loss']", "KeyError: 'loss'"),
    raises("attribute", "None.step()", "AttributeError: 'NoneType' object has no attribute 'step'"),
    raises("import", "import not_there", "ModuleNotFoundError: No module named 'not_there'"),
    raises("import before init", "import not_there", "No module named 'not_there'", joins=False),
    raises("syntax", "compile('x = = 1', 'model.py', 'exec')", "SyntaxError: invalid syntax"),
    raises("missing file", "open('/no/data.bin')", "FileNotFoundError", "/no/data.bin"),
    raises("directory", "open('/')", "IsADirectoryError", "'/'"),
    raises("memory", "bytearray(1 << 60)", "MemoryError"),
    raises("recursion", "def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    raises("encoding", "b'\\xff'.decode()", "UnicodeDecodeError", "can't decode byte 0xff"),
    raises("json", "json.loads('{')", "JSONDecodeError", "line 1 column 2"),
    raises("numbers", "np.ones(3) + np.ones(4)", "ValueError: operands could not be broadcast"),
    raises("assertion with words", "assert 1 > 2, 'loss grows'", "AssertionError: loss grows"),
    raises("assertion without", "assert RANK == 7", "AssertionError"),
    raises(
        "chain",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    raise RuntimeError('epoch 3 failed') from error",
        "RuntimeError: epoch 3 failed",
        "ZeroDivisionError: division by zero",
    ),
    raises(
        "while handling",
        "try:\n    {}['a']\nexcept KeyError:\n    raise RuntimeError('no defaults either')",
        "RuntimeError: no defaults either",
    ),
    raises(
        "several lines",
        "raise ValueError('bad batch:\\n  shape (3, 4)\\n  expected (4, 4)')",
        "ValueError: bad batch:",
        "expected (4, 4)",
    ),
    raises("very long", "raise ValueError('x' * 100_000 + ' end')", "ValueError: xxxxx"),
    raises("escapes", "raise ValueError('\\x1b[31mred\\x1b[0m \\x07')", "ValueError: red"),
    raises("no words", "raise RuntimeError", "RuntimeError"),
    raises(
        "own class",
        "class LossError(Exception):\n    pass\nraise LossError('nan at step 12')",
        "LossError: nan at step 12",
    ),
    raises(
        "warning as error",
        "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('old format')",
        "UserWarning: old format",
    ),
    raises("interrupt", "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", code=130),
    raises("rank 0", "raise ValueError('first')", "ValueError: first", rank=0, size=3),
    raises("last of three", "raise ValueError('third')", "ValueError: third", rank=2, size=3),
    # Child processes of the script.
    raises(
        "command",
        "subprocess.run(['sh', '-c', 'exit 3'], check=True)",
        "CalledProcessError",
        "exit status 3",
    ),
    raises(
        "command not found", "subprocess.run(['no-such-tool'])", "FileNotFoundError", "no-such-tool"
    ),
    raises(
        "pool",
        "from concurrent.futures import ProcessPoolExecutor\n"
        "ProcessPoolExecutor(1).submit(os._exit, 3).result()",
        "BrokenProcessPool",
    ),
    # Resource limits.
    raises(
        "disk full",
        "with open('/dev/full', 'w') as file:\n    file.write('checkpoint')",
        "OSError: [Errno 28] No space left on device",
    ),
    raises(
        "descriptors",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = ["
        "os.open('/', os.O_RDONLY) for _ in range(100)]",
        "OSError: [Errno 24] Too many open files",
    ),
    dies(
        signal.SIGXFSZ,
        "file size",
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = tempfile.TemporaryFile(buffering=0)\n"
        "while True: file.write(bytes(1000))",
    ),
    dies(
        signal.SIGXCPU,
        "processor time",
        "used = int(time.process_time())\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 10))\nwhile True: pass",
    ),
    # Exits and signals.
    raises("exit with words", "sys.exit('no configuration')", "no configuration"),
    raises("exit with a code", "sys.exit(7)", "exited with code 7", code=7),
    raises("exit at once", "os._exit(9)", "exited with code 9", code=9),
    raises("exit before init", "sys.exit(5)", "exited with code 5", code=5, joins=False),
    raises(
        "exit in a thread",
        "threading.Thread(target=os._exit, args=[6]).start(); time.sleep(60)",
        "exited with code 6",
        code=6,
    ),
    dies(signal.SIGABRT, "abort", "os.abort()"),
    dies(signal.SIGSEGV, "crash", "ctypes.string_at(0)"),
    dies(signal.SIGSEGV, "crash with a trace", "faulthandler.enable(); ctypes.string_at(0)"),
    dies(signal.SIGFPE, "arithmetic", "os.kill(os.getpid(), signal.SIGFPE)"),
    dies(signal.SIGILL, "instruction", "os.kill(os.getpid(), signal.SIGILL)"),
    dies(
        signal.SIGBUS,
        "mapped file cut short",
        "file = tempfile.TemporaryFile(); file.truncate(8192)\n"
        "memory = mmap.mmap(file.fileno(), 8192); file.truncate(0); memory[5000]",
    ),
    dies(signal.SIGKILL, "kill", "os.kill(os.getpid(), signal.SIGKILL)"),
    dies(signal.SIGTERM, "terminate", "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"),
    dies(signal.SIGHUP, "hang up", "os.kill(os.getpid(), signal.SIGHUP); time.sleep(60)"),
    # Mismatched collectives.
    raises("shapes", "hvd.allreduce(np.ones(3, np.float32), name='gradient')", "gradient", rank=-1),
    raises("types", "hvd.allreduce(np.ones(1000), name='gradient')", "gradient", rank=-1),
    raises(
        "kinds",
        "hvd.allgather(np.ones(1000, np.float32), name='gradient')",
        "allreduce.gradient",
        "rank 1",
        rank=-1,
        env=STALL,
    ),
    raises(
        "roots",
        "hvd.broadcast(np.ones(4), root_rank=RANK, name='weights')",
        "weights",
        rank=-1,
        joins=False,
        env={"JOIN": "all"},
    ),
    raises("early end", "sys.exit(0)", "rank 1", "finished", code=1, rank=-1),
    raises("early shutdown", "hvd.shutdown(); time.sleep(60)", "rank 1", code=1, rank=-1),
    raises("after shutdown", "hvd.shutdown(); train(1)", "ValueError", "init"),
    raises("splits", "hvd.alltoall(np.ones(4), splits=[9, 9], name='x')", "splits"),
    raises("unknown type", "hvd.allreduce(np.ones(4, np.complex64), name='x')", "complex64"),
    raises(
        "stall",
        "time.sleep(60)",
        "gradient",
        "rank 1",
        rank=-1,
        env=STALL,
    ),
    raises(
        "bad setting",
        "os.environ['HOROVOD_FUSION_THRESHOLD'] = '64MB'; hvd.init()",
        "HOROVOD_FUSION_THRESHOLD",
        joins=False,
    ),
    # An elastic job whose ranks all fail.
    raises(
        "elastic",
        "raise ValueError('no data')",
        "ValueError: no data",
        rank=-1,
        env={"JOIN": "all"},
        options=("--min-np", "1", "--elastic-timeout", "3", "--reset-limit", "1"),
    ),
]


def run(command, options, env, folder):
    line = [launcher(), *options, *command]
    return subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=50,
        env={**os.environ, "RONDE_FLIGHT_RECORDER_DIR": "off", **env},
    )


def last_block(stderr):
    lines = stderr.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error:")]
    assert starts, stderr
    return "\n".join(lines[starts[-1] :])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_last_lines_name_the_first_cause(tmp_path, case):
    join = "hvd.init()\nothers_train()\n" if case.joins else ""
    if case.env.get("JOIN") == "all":
        join = "hvd.init()\n"
    elif not case.joins:
        join = "if RANK != VICTIM:\n    hvd.init(); train()\n"
    victim = case.rank if case.rank >= 0 else 1
    script = tmp_path / "train.py"
    script.write_text(f"VICTIM = {victim}\n{PRELUDE}{join}{textwrap.dedent(case.script)}\n")
    options = ("-np", str(case.size), *case.options)
    done = run([sys.executable, str(script)], options, case.env, tmp_path)
    block = last_block(done.stderr)
    assert done.returncode == case.code, block
    for text in case.says:
        assert text in block, block
    if case.rank >= 0:
        assert f"rank {case.rank} (localhost, slot {case.rank})" in block.splitlines()[0], block
    assert "localhost" in block, block
    assert len(block) < 4000, block
    assert "\x1b" not in block and "\x07" not in block


@pytest.mark.parametrize(
    ("file", "mode", "says", "code"),
    [
        (None, 0, "does not exist", 127),
        ("#!/bin/sh\n", 0o644, "is not an executable file", 126),
        ("#!/no/such/interpreter\n", 0o755, "/no/such/interpreter", 127),
    ],
    ids=["missing", "no-program", "no-interpreter"],
)
def test_a_program_that_cannot_start_is_named(tmp_path, file, mode, says, code):
    program = tmp_path / "train"
    if file is not None:
        program.write_text(file)
        program.chmod(mode)
    done = run([str(program)], ("-np", "2"), {}, tmp_path)
    block = last_block(done.stderr)
    assert done.returncode == code, block
    assert "rank 0 (localhost, slot 0)" in block and says in block, block
