"""`horovod.run` in a notebook: a real kernel that survives whatever the ranks do."""

import os
import signal
import sys
import textwrap
import threading
import time

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def notebook():
    """A notebook whose kernel runs this Python."""
    manager = KernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    client = Notebook(manager)
    with client.client.setup_kernel():
        yield client


class Notebook:
    """Runs cells one after another in one kernel."""

    def __init__(self, manager):
        self.document = nbformat.v4.new_notebook()
        self.client = NotebookClient(self.document, km=manager, timeout=50)

    def run(self, source):
        """Runs a cell; returns what it shows, or raises its exception."""
        cell = nbformat.v4.new_code_cell(textwrap.dedent(source))
        self.document.cells.append(cell)
        self.client.execute_cell(cell, len(self.document.cells) - 1)
        return shown(cell)

    def fail(self, source):
        """Runs a cell that must fail; returns what it shows, including the traceback."""
        with pytest.raises(CellExecutionError):
            self.run(source)
        return shown(self.document.cells[-1])


def shown(cell):
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append("\n".join([*output.traceback, f"{output.ename}: {output.evalue}"]))
        else:
            texts.append(output.data["text/plain"])
    return "".join(texts)


def test_functions_of_cells_run_and_return_instances_of_their_classes(notebook):
    notebook.run("""
        import os, signal, time
        import horovod

        class Place:
            def __init__(self, rank, total):
                self.rank, self.total = rank, total

        class Trouble(Exception):
            pass

        def train(factor):
            import numpy as np
            import horovod.raw as hvd
            hvd.init()
            print("training on", hvd.rank(), flush=True)
            total = hvd.allreduce(np.ones(2) * factor, op=hvd.Sum)
            return Place(hvd.rank(), total.tolist())
    """)
    output = notebook.run("""
        places = horovod.run(train, args=(3,), num_proc=2)
        print([(type(place) is Place, place.rank, place.total) for place in places])
    """)
    assert "[0]<stdout>:training on 0" in output and "[1]<stdout>:training on 1" in output
    assert "[(True, 0, [6.0, 6.0]), (True, 1, [6.0, 6.0])]" in output


def test_output_appears_while_the_ranks_run(notebook):
    """The rank waits for a file that the cell creates only after it has seen the rank's line."""
    output = notebook.run("""
        import sys, tempfile
        flag = tempfile.mktemp()

        def speak():
            print("are you there?", flush=True)
            end = time.monotonic() + 30
            while not os.path.exists(flag):
                assert time.monotonic() < end, "the line did not appear"
                time.sleep(0.01)
            return "yes"

        class Seen:
            def __init__(self, stream):
                self.stream = stream
            def write(self, text):
                if "are you there?" in text:
                    open(flag, "w").close()
                return self.stream.write(text)
            def flush(self):
                self.stream.flush()

        sys.stdout, before = Seen(sys.stdout), sys.stdout
        try:
            print(horovod.run(speak))
        finally:
            sys.stdout = before
            os.remove(flag)
    """)
    assert "[0]<stdout>:are you there?" in output and "['yes']" in output


def test_an_exception_on_a_rank_ends_the_cell_with_the_ranks_traceback(notebook):
    output = notebook.fail("""
        def stumble():
            if os.environ["HOROVOD_RANK"] == "1":
                raise Trouble("over a stone")
            time.sleep(60)
        horovod.run(stumble, num_proc=2)
    """)
    assert "Trouble: over a stone" in output and "in stumble" in output
    quoted = '    raise Trouble("over a stone")'
    assert quoted in output.split("RankTraceback")[-1], "the line of the cell"
    assert f"[1]<stderr>:{quoted}" in output and "run_task" not in output
    assert "raised on rank 1 (localhost, slot 1)" in output
    # The class is the one defined in the notebook, so that a cell can catch it.
    output = notebook.run("""
        try:
            horovod.run(stumble, num_proc=2)
        except Trouble as trouble:
            print("caught", trouble.args, isinstance(trouble, RuntimeError))
    """)
    assert "caught ('over a stone',) True" in output


def test_a_killed_rank_ends_the_cell_but_not_the_kernel(notebook):
    output = notebook.fail("""
        def die():
            os.kill(os.getpid(), signal.SIGKILL)
        horovod.run(die, num_proc=2)
    """)
    assert "Horovod detected that one or more processes exited with non-zero status" in output
    assert "signal 9 (SIGKILL)" in output
    assert notebook.run("horovod.run(max, (1, 2))") == "[2]"


def test_an_interrupt_ends_the_job_but_not_the_kernel(notebook, tmp_path):
    folder = str(tmp_path)
    pid = int(notebook.run("os.getpid()"))

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(pid, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    output = notebook.fail(f"""
        def wait():
            open(os.path.join({folder!r}, os.environ["HOROVOD_RANK"]), "w").close()
            time.sleep(60)
        horovod.run(wait, num_proc=2)
    """)
    thread.join(10)
    assert "KeyboardInterrupt" in output
    assert notebook.run("horovod.run(max, (3, 4))") == "[4]"
