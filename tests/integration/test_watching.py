"""Timeline, flight recorder and metrics of a running job, also when it is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from jobs import RAW, Job, launcher, until

pytestmark = pytest.mark.timeout(60)

REDUCE_FOR_EVER = """
hvd.init()
say("joined")
while True:
    hvd.allreduce(torch.ones(100), name="x")
    hvd.allgather(torch.ones(3), name="y")
    time.sleep(0.001)
"""


def names(path):
    return [event.get("name") for event in json.loads(path.read_text())]


def test_a_killed_rank_leaves_a_complete_timeline(tmp_path):
    path = tmp_path / "timeline.json"
    with Job(tmp_path, 2, REDUCE_FOR_EVER, env={"HOROVOD_TIMELINE": str(path)}) as job:
        job.hear("joined")
        lengths = set()

        def has_grown():
            begin = time.monotonic()
            text = path.read_text()
            # A slow reader may miss states between two writes.
            if time.monotonic() - begin < 0.04:
                lengths.add(len(json.loads(text)))
            return len(lengths) > 10

        until(has_grown, 20, lambda: f"it does not grow: {lengths}")
        os.kill(job.pids()[0], signal.SIGKILL)
        assert job.wait() == 128 + signal.SIGKILL, job.output()
    events = json.loads(path.read_text())
    assert len(events) >= max(lengths)
    assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1_600_000_000_000_000
    rows = {event["args"]["name"] for event in events if "name" in event.get("args", {})}
    assert {"allreduce.x", "allgather.y"} <= rows
    assert {"NEGOTIATE_ALLREDUCE", "QUEUE", "ALLREDUCE", "ALLGATHER", "0", "1"} <= set(names(path))


def test_horovodruns_flags_write_a_timeline_within_a_tenth_of_a_second(tmp_path):
    path = tmp_path / "timeline.json"
    script = tmp_path / "script.py"
    script.write_text(
        "import json, time, torch\n"
        "import horovod.torch as hvd\n"
        "hvd.init()\n"
        "hvd.allreduce(torch.ones(3), name='x')\n"
        "time.sleep(0.1)\n"
        "if hvd.rank() == 0:\n"
        f"    text = open({str(path)!r}).read()\n"
        "    json.loads(text)\n"
        "    for name in ['allreduce.x', 'NEGOTIATE_ALLREDUCE', 'ALLREDUCE', 'CYCLE_START']:\n"
        "        assert f'\"{name}\"' in text, (name, text)\n"
        "hvd.barrier()\n"
    )
    flags = ["--timeline-filename", str(path), "--timeline-mark-cycles"]
    command = [launcher(), "-np", "2", *flags, sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["script.py", "timeline.json"]


def test_a_timeline_starts_and_stops_at_run_time(tmp_path):
    script = """
    hvd.init()
    folder = os.environ["SAY_FOLDER"]
    for file in ["a.json", "b.json"]:
        hvd.start_timeline(os.path.join(folder, file), mark_cycles=file == "b.json")
        hvd.barrier()
        hvd.allreduce(torch.ones(4, 5), name="in." + file)
        hvd.stop_timeline()
    hvd.stop_timeline()
    """
    with Job(tmp_path, 2, script, env={"HOROVOD_TIMELINE": "DYNAMIC"}) as job:
        assert job.wait() == 0, job.output()
    for file, marked in [("a.json", False), ("b.json", True)]:
        events = json.loads((tmp_path / file).read_text())
        rows = {event["args"].get("name") for event in events if event.get("ph") == "M"}
        assert f"allreduce.in.{file}" in rows
        assert any(event.get("args", {}).get("shape") == "[4, 5]" for event in events)
        assert ("CYCLE_START" in names(tmp_path / file)) == marked


def test_starting_a_timeline_requires_the_setting(tmp_path):
    script = """
    try:
        hvd.start_timeline("x.json")
    except ValueError as error:
        say("early", text=str(error))
    hvd.init()
    try:
        hvd.start_timeline("x.json")
    except ValueError as error:
        say("refused", text=str(error))
    """
    with Job(tmp_path, 2, script) as job:
        assert job.wait() == 0, job.output()
        for event in job.hear("early"):
            assert event["text"] == "Horovod has not been initialized; use hvd.init()."
        for event in job.hear("refused"):
            expected = "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."
            assert event["text"] == expected


def dumps(folder):
    texts = [file.read_text() for file in sorted(folder.glob("ronde-flight-*.jsonl"))]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def test_sigusr1_dumps_what_a_stuck_rank_waits_for(tmp_path):
    script = """
    hvd.init()
    hvd.allreduce(torch.ones(3), name="both")
    say("alone")
    if RANK == 1:
        hvd.allreduce(torch.ones(3), name="only.one")
    signal.pause()
    """
    folder = tmp_path / "flight"
    with Job(tmp_path, 2, script) as job:
        job.hear("alone")

        def waits():
            os.kill(job.pids()[1], signal.SIGUSR1)
            return [d for d in dumps(folder) if d and d[-1].get("state") == "waiting"]

        written = until(waits, 20, job.output)[0]
        assert written[0]["rank"] == 1
        assert written[0]["reason"] == "SIGUSR1"
        assert [line["name"] for line in written[1:]] == ["allreduce.both", "allreduce.only.one"]
        assert written[1]["state"] == "finished"
        until(lambda: "wrote the flight recorder of rank 1 to" in job.output(), 5, job.output)
        assert job.launcher.poll() is None, "the signal ends no process"


def test_a_sigusr1_handler_of_the_program_is_kept(tmp_path):
    script = """
    signal.signal(signal.SIGUSR1, lambda *_: say("handled"))
    hvd.init()
    say("ready")
    while True:
        time.sleep(0.1)
    """
    folder = tmp_path / "flight"
    with Job(tmp_path, 2, script) as job:
        job.hear("ready")
        os.kill(job.pids()[0], signal.SIGUSR1)
        job.hear("handled", [0])
        assert not folder.exists()


def test_the_survivors_of_a_lost_rank_write_their_flight_recorders(tmp_path):
    folder = tmp_path / "flight"
    with Job(tmp_path, 3, REDUCE_FOR_EVER, env={"RONDE_FLIGHT_RECORDER": "20"}) as job:
        job.hear("joined")
        os.kill(job.pids()[2], signal.SIGKILL)
        assert job.wait() == 128 + signal.SIGKILL, job.output()
        written = dumps(folder)
        assert [dump[0]["rank"] for dump in written] == [0, 1]
        for dump in written:
            assert "lost rank 2" in dump[0]["reason"]
            assert dump[0]["remembered"] == len(dump) - 1 == 20 or dump[0]["submitted"] < 20
            assert dump[-1]["state"] == "failed"
            assert f"wrote the flight recorder of rank {dump[0]['rank']} to" in job.output()


def test_metrics_are_served_on_a_unix_socket_per_rank(tmp_path):
    env = {"RONDE_METRICS": f"unix:{tmp_path}/m"}
    with Job(tmp_path, 2, REDUCE_FOR_EVER, env=env) as job:
        job.hear("joined")
        for rank in range(2):
            with socket.socket(socket.AF_UNIX) as stream:
                stream.connect(f"{tmp_path}/m.{rank}")
                stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                text = b"".join(iter(lambda stream=stream: stream.recv(65536), b"")).decode()
            assert text.startswith("HTTP/1.1 200 OK\r\n")
            assert f'ronde_info{{rank="{rank}",size="2"' in text
            assert 'ronde_allreduce_seconds_bucket{le="+Inf"}' in text


def test_metrics_on_a_public_address_are_refused(tmp_path):
    with Job(tmp_path, 2, "hvd.init()", env={"RONDE_METRICS": "0.0.0.0:9400"}) as job:
        assert job.wait() == 2
        assert "loopback address only" in job.output()


def test_the_note_about_the_recorder_comes_behind_the_traceback(tmp_path):
    script = """
    def slowly(kind, error, trace):
        head = "Traceback (most recent call last):"
        for line in (head, "  one", "  two", "  three", kind.__name__):
            print(line, file=sys.stderr)
            time.sleep(0.02)
    sys.excepthook = slowly
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, on a busy machine
    hvd.init()
    hvd.allreduce(numpy.ones(3), name="both")
    if RANK == 1:
        os._exit(3)
    hvd.allreduce(numpy.ones(3), name="alone")
    """
    with Job(tmp_path, 2, script, api=RAW) as job:
        assert job.wait() == 3, job.output()
        own = [line for line in job.output().splitlines() if line.startswith("[0]<stderr>:")]
        texts = [line.removeprefix("[0]<stderr>:") for line in own]
        trace = ["Traceback (most recent call last):", "  one", "  two", "  three"]
        assert texts[:5] == [*trace, "HorovodInternalError"], job.output()
        assert "ronde-flight-rank0" in "\n".join(texts[5:]), job.output()
