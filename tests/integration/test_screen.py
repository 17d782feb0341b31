"""What the commands show on a real terminal with a size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from terminal import Job, Terminal, resize

BIN = Path(sys.executable).parent
RED, CYAN = "\x1b[1m\x1b[31m", "\x1b[1m\x1b[36m"


def shown(*command, columns=80, **variables):
    """What a command writes to a terminal."""
    job = Job(*command, columns=columns, **variables)
    job.finish()
    return job.text


def test_errors_and_hints_have_colors_on_a_terminal_unless_disabled():
    command = (BIN / "horovodrun", "-np", "2", "--nonsense", "true")
    output = shown(*command)
    assert output.startswith(f"{RED}error:\x1b[0m there is no option `--nonsense`"), repr(output)
    assert f"\n{CYAN}hint:\x1b[0m " in output
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in shown(*command, **plain)


def test_the_final_report_of_a_job_has_colors_and_names_process_and_time():
    output = shown(BIN / "horovodrun", "-np", "1", "sh", "-c", "echo $$; exit 3")
    pid = output.splitlines()[0]
    assert f"{RED}error:\x1b[0m rank 0 (localhost, slot 0) exited with code 3" in output, repr(
        output
    )
    assert re.search(rf"\n  process {pid}, ended at \d\d:\d\d:\d\d\n", output), output
    assert f"{CYAN}hint:\x1b[0m " in output


@pytest.mark.timeout(180)
def test_a_table_of_numbers_fits_the_terminal():
    output = shown(BIN / "ronde", "bench", "--sizes", "4K", "--rounds", "3", NO_COLOR="1")
    table = [line for line in output.splitlines() if line.startswith("|")]
    assert len(table) == 3, output
    assert max(map(len, table)) <= 80
    assert "engine to engine" not in table[0]
    assert "Some columns are hidden because the terminal is too narrow" in output


# Ranks take turns, so that the contents of the screen between two turns are known.
TURNS = """
import os, sys, time
from pathlib import Path
RANK, FOLDER = int(os.environ["RANK"]), Path(sys.argv[1])

def turn(name):
    while not (FOLDER / name).exists():
        time.sleep(0.01)
"""


class Turns:
    """A job of two ranks on a terminal, and the contents of the terminal."""

    def __init__(self, folder, script, *options, columns=80):
        self.folder = folder
        path = folder / "script.py"
        path.write_text(TURNS + textwrap.dedent(script))
        launcher = (BIN / "horovodrun", "-np", "2", *options)
        self.job = Job(*launcher, sys.executable, path, folder, columns=columns)
        self.terminal = Terminal(columns)
        self.fed = 0

    def turn(self, name):
        (self.folder / name).touch()

    def feed(self):
        self.terminal.feed(self.job.text[self.fed :])
        self.fed = len(self.job.text)
        return self.terminal.rows()

    def rows_after(self, text):
        """The contents of the screen once the job has written this."""
        self.job.read_until(text)
        return self.feed()

    def finish(self):
        code = self.job.finish()
        return code, self.feed()


def test_tqdm_of_rank_0_is_live_and_lines_of_other_ranks_appear_above_it(tmp_path):
    script = """
    from tqdm import tqdm
    if RANK == 1:
        turn("first")
        print("hello from", RANK, flush=True)
        turn("second")
        sys.stderr.write("a\\nb\\n")
        turn("last")
        raise SystemExit
    bar = tqdm(total=4, desc="train", mininterval=0)
    bar.update()
    turn("update")
    bar.update()
    tqdm.write("loss 0.5")
    turn("last")
    bar.update(2)
    bar.close()
    print("done")
    """
    job = Turns(tmp_path, script)
    rows = job.rows_after("1/4")
    assert len(rows) == 1, rows
    assert re.fullmatch(r"train:  25%\|.+\| 1/4 \[.*\]", rows[0]), rows
    assert len(rows[0]) >= 78, "the bar is as wide as the terminal"
    job.turn("first")
    rows = job.rows_after("hello from 1\n")
    assert rows[0] == "[1]<stdout>:hello from 1"
    job.turn("update")
    rows = job.rows_after("loss 0.5\n")
    job.turn("second")
    rows = job.rows_after("[1]<stderr>:b\n")
    above = ["[1]<stdout>:hello from 1", "loss 0.5", "[1]<stderr>:a", "[1]<stderr>:b"]
    assert rows[:4] == above, rows
    job.turn("last")
    code, rows = job.finish()
    assert code == 0
    assert rows[:4] == above
    assert len(rows) == 6, rows
    assert re.fullmatch(r"train: 100%\|.+\| 4/4 \[.*\]", rows[4]), rows
    assert rows[5] == "done"


def test_the_launchers_own_log_appears_above_a_bar(tmp_path):
    script = """
    if RANK == 0:
        print("\\r 50%|#####     |", end="", flush=True)
    turn(f"end {RANK}")
    """
    job = Turns(tmp_path, script, "--verbose")
    job.rows_after("50%")
    job.turn("end 1")
    job.rows_after("rank 1 exited with code 0\n")
    job.turn("end 0")
    code, rows = job.finish()
    assert code == 0
    bar = rows.index(" 50%|#####     |")
    assert " INFO rank 1 exited with code 0" in rows[:bar], rows
    assert " INFO rank 0 exited with code 0" in rows, rows


def test_bars_of_rich_stay_together(tmp_path):
    script = """
    from rich.progress import BarColumn, Progress, TextColumn
    if RANK == 1:
        for name in ("first", "second"):
            turn(name)
            print("rank 1 is at its", name, flush=True)
        turn("last")
        raise SystemExit
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
    with Progress(*columns, auto_refresh=False) as progress:
        tasks = [progress.add_task(name, total=3) for name in ("epoch", "train", "valid")]
        progress.refresh()
        for name in ("one", "two", "last"):
            turn(name)
            for task in tasks:
                progress.advance(task)
            progress.console.print("rank 0 says", name)
            progress.refresh()
    print("done")
    """
    job = Turns(tmp_path, script)
    job.rows_after("valid")
    job.turn("first")
    job.rows_after("at its first\n")
    job.turn("one")
    job.rows_after("says one\n")
    job.turn("second")
    job.rows_after("at its second\n")
    job.turn("two")
    rows = job.rows_after("says two\n")
    job.turn("last")
    code, rows = job.finish()
    assert code == 0
    names = [row.split()[0] for row in rows[-4:-1]]
    assert names == ["epoch", "train", "valid"], rows
    assert [row.split()[-1] for row in rows[-4:-1]] == ["3", "3", "3"], rows
    assert rows[-1] == "done"
    # What rank 0 prints above its bars counts as part of them until it redraws them.
    above = rows[:-4]
    assert [row for row in above if row.startswith("rank 0")] == [
        "rank 0 says one",
        "rank 0 says two",
        "rank 0 says last",
    ]
    assert [row for row in above if not row.startswith("rank 0")] == [
        "[1]<stdout>:rank 1 is at its first",
        "[1]<stdout>:rank 1 is at its second",
    ]


def test_without_a_terminal_only_the_bar_of_the_lowest_rank_is_shown(tmp_path):
    script = """
    assert not os.isatty(1)
    def bar(text):
        sys.stderr.write(f"{text}\\r")
        sys.stderr.flush()
    if RANK == 1:
        turn("one")
        for percent in range(0, 50, 10):
            bar(f"{percent}% of rank 1")
        print("a line", flush=True)
        turn("end")
        raise SystemExit
    bar("10% and a long tail of the bar")
    turn("two")
    bar("20% and a long tail of the bar")
    turn("end")
    """
    job = Turns(tmp_path, script, "--tty", "none")
    job.rows_after("10% and a long tail")
    job.turn("one")
    rows = job.rows_after("a line\n")
    assert rows[0] == "[1]<stdout>:a line"
    job.turn("two")
    rows = job.rows_after("20% and a long tail of the bar")
    assert rows == ["[1]<stdout>:a line", "[0]<stderr>:20% and a long tail of the bar"]
    assert "of rank 1" not in job.job.text
    job.turn("end")
    code, rows = job.finish()
    assert code == 0
    assert rows[:2] == ["[1]<stdout>:a line", "[0]<stderr>:20% and a long tail of the bar"]


def test_a_new_size_of_the_window_reaches_the_rank(tmp_path):
    script = """
    import signal
    if RANK == 1:
        raise SystemExit
    def size(*_):
        print(*os.get_terminal_size(), flush=True)
    signal.signal(signal.SIGWINCH, size)
    size()
    turn("end")
    """
    job = Turns(tmp_path, script, columns=70)
    assert job.rows_after("70 24\n") == ["70 24"]
    resize(job.job.ours, 90)
    assert job.rows_after("90 24\n") == ["70 24", "90 24"]
    job.turn("end")
    assert job.finish()[0] == 0


def test_ranks_selects_what_is_shown_and_files_keep_everything(tmp_path):
    folder = tmp_path / "kept"
    command = "echo out $RANK; echo err $RANK >&2; exit $RANK"
    for choice in ("--ranks", "--only-rank"):
        options = ("-np", "3", choice, "0", "--output-filename", folder)
        output = shown(BIN / "horovodrun", *options, "sh", "-c", command, NO_COLOR="1")
        head, _, last = output.partition("error: ")
        assert sorted(head.split("\n")) == ["", "err 0", "out 0"], output
        assert re.match(r"rank [12] \(localhost, slot [12]\) exited with code [12]\n", last), output
        assert re.search("its last line on stderr: err [12]", last), output
        assert "hint: `--ranks` hides its output" in last
        for rank in range(1, 3):
            kept = [(folder / f"rank.{rank}" / name).read_text() for name in ("stdout", "stderr")]
            assert kept == [f"[{rank}]<stdout>:out {rank}\n", f"[{rank}]<stderr>:err {rank}\n"]
        # A terminal interleaves both streams.
        kept = (folder / "rank.0" / "stdout").read_text()
        assert kept == "[0]<stdout>:out 0\n[0]<stdout>:err 0\n"


def test_without_a_terminal_no_rank_has_one_unless_requested():
    command = "test -t 1 && echo terminal || echo pipe"
    for options, expected in [((), "pipe"), (("--tty", "0"), "terminal")]:
        done = subprocess.run(
            [BIN / "horovodrun", "-np", "1", *options, "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=os.environ | {"TERM": "xterm"},
            check=True,
        )
        assert done.stdout == f"[0]<stdout>:{expected}\n"


def test_after_a_rank_dies_with_a_bar_the_final_report_starts_on_its_own_line(tmp_path):
    script = """
    import signal
    if RANK == 0:
        print("\\x1b[?25l 50%|#####     |", end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    turn("never")
    """
    job = Turns(tmp_path, script)
    code, rows = job.finish()
    assert code == 137
    assert rows[0] == " 50%|#####     |"
    assert rows[1].startswith("error: rank 0 (localhost, slot 0) was killed by signal 9"), rows
    assert "\x1b[?25h" in job.job.text
