"""`ronde doctor` in a lab of hosts: healthy hosts, injected faults, and hosts that hang."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid

import pytest
from lab import Lab, marked, ronde, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

PORT = 2222
# Longer than a busy machine takes; a run ends as soon as all hosts have answered.
PATIENT = ("--start-timeout", "20")


@pytest.fixture
def lab(tmp_path):
    with Lab(tmp_path, 4, network="10.80.0") as lab:
        yield lab


def doctor(lab, names, *options, program=None):
    hosts = ",".join(f"node-{name}" for name in names)
    mark = uuid.uuid4().hex
    command = (program or ronde(), "doctor", "-H", hosts, "-p", PORT, *options)
    result = lab.run(*command, env={"LAB_MARK": mark})
    end = time.monotonic() + 10
    while left := marked(f"LAB_MARK={mark}"):
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.05)
    return result


def findings(report, *severities):
    """Host, severity and text of each finding; notes only if requested."""
    wanted = severities or ("error", "warning")
    # Path speeds depend on how busy the machine is.
    speed = re.compile(r"Gb/s|there and back")
    return [
        (",".join(each["hosts"]), each["severity"], each["what"])
        for each in report["findings"]
        if each["severity"] in wanted and not speed.search(each["what"])
    ]


def test_healthy_hosts_have_no_findings_and_all_facts_are_reported(lab):
    # Every host has the same bridge address, like with Docker.
    for host in lab.hosts[:3]:
        host.enter("ip", "link", "add", "docker0", "type", "bridge")
        host.enter("ip", "addr", "add", "172.17.0.1/16", "dev", "docker0")
        host.enter("ip", "link", "set", "docker0", "up")
    result = doctor(lab, "abc", *PATIENT, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["well"] is True
    assert findings(report) == []
    notes = findings(report, "note")
    assert len(notes) == 1 and notes[0][0] == "node-a,node-b,node-c", notes
    assert "172.17.0.1 (`docker0`), which other hosts have too" in notes[0][2]
    for host, machine in zip(lab.hosts, report["hosts"]):
        assert machine["name"] == host.name
        assert machine["facts"]["hostname"] == host.name
        assert machine["ronde"] == report["ronde"]
        assert {"interface": host.interface, "address": host.address} in machine["addresses"]
        assert machine["facts"]["python"]["version"].count(".") == 2
        assert machine["facts"]["memory"]["total_bytes"] > machine["facts"]["shm_bytes"] // 4
        # They share one clock, so the measured offset is at most half the round trip.
        clock = machine["clock"]
        assert abs(clock["ahead_micros"]) <= clock["round_trip_micros"] // 2 + 1000
    pairs = {(speed["from"], speed["to"]) for speed in report["speeds"]}
    assert len(pairs) == len(report["speeds"]) == 6
    for speed in report["speeds"]:
        assert speed["problem"] is None
        assert speed["bytes_per_second"] > 10_000_000
        assert 0 < speed["round_trip_micros"] < 1_000_000
        assert not speed["address"].startswith("172.17.")
    # Three hosts with two addresses and three ports each, probed from the two others.
    assert sum(len(path["calls"]) for path in report["paths"] if path["to"]) == 36


def test_injected_faults_are_found_with_a_fix(lab):
    _, second, third, last = lab.hosts
    third.lose(second)
    subprocess.run(["prlimit", "--pid", str(second.sshd.pid), "--nofile=256:256"], check=True)
    with last.without_sshd():
        result = doctor(lab, "abcd", *PATIENT)
    assert result.returncode == 1, result.stdout + result.stderr
    text = result.stdout
    expected = [
        r"error: `node-d`: no ssh server is listening on port 2222\n"
        r"  fix: start `sshd` there, or pass its port with `-p`; try `ssh -p 2222 node-d`\n",
        r"error: `node-c`: cannot reach `node-b`: (10\.80\.0\.2:\d+ timed out(, )?){3}\n"
        r"  fix: a timeout usually means a firewall",
        r"warning: `node-b`: a process may open only 256 files and sockets \(`ulimit -n`\)",
        r"\n2 errors, \d warnings?: a job on these hosts would not start\n",
        # The tables show all hosts, and the paths between the reachable ones.
        r"\nnode-d +not reached +-",
        r"\nnode-b +1 +\d+ +[\d.]+ GiB .* 256 +",
        r"\nnode-a +- +[\d.]+ Gb/s, [\d.]+ .s +[\d.]+ Gb/s, [\d.]+ .s +-\n",
    ]
    for pattern in expected:
        assert re.search(pattern, text), f"{pattern}\n{text}"


def test_hosts_that_hang_or_have_another_version_do_not_delay_the_others(lab, tmp_path):
    folder, other = tmp_path / "bin", tmp_path / "other"
    for place in (folder, other):
        place.mkdir()
    program = folder / "ronde"
    shutil.copy(ronde(), program)
    (other / "ronde").write_text("#!/bin/sh\necho ronde-agent 0.28.1+ronde.0.0.9\ncat >&2\n")
    (other / "ronde").chmod(0o755)
    _, second, third, last = lab.hosts
    third.enter("mount", "--bind", other, folder)
    os.kill(last.sshd.pid, signal.SIGSTOP)
    second.unplug()
    try:
        options = ("--start-timeout", "5", "--json")
        result = doctor(lab, "abcd", *options, program=program)
    finally:
        os.kill(last.sshd.pid, signal.SIGCONT)
        # Lazily, because processes started there may take a moment to end.
        third.enter("umount", "--lazy", folder)
    report = json.loads(result.stdout)
    assert result.returncode == 1
    found = {host: what for host, severity, what in findings(report, "error")}
    assert set(found) == {"node-b", "node-c", "node-d"}
    assert re.match("it did not answer ssh|there is no network route to it", found["node-b"]), found
    assert found["node-c"].startswith("it runs Ronde 0.28.1+ronde.0.0.9, but this launcher is ")
    assert found["node-d"] == "it did not answer ssh on port 2222 in time"
    fixes = [each["fix"] for each in report["findings"] if each["hosts"] == ["node-c"]]
    assert fixes[0].startswith("install the same version there: `pip install ")
    # Timeouts run concurrently, and the healthy host was still inspected.
    assert report["seconds"] < 9
    assert report["hosts"][0]["facts"]["hostname"] == "node-a"
    assert report["speeds"] == []


def test_hosts_can_come_from_a_file_and_interfaces_be_chosen_by_name(lab, tmp_path):
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nnode-a slots=1\nnode-b slots=9999\n")
    first = lab.hosts[0].interface
    options = ("--hostfile", hostfile, "-p", PORT, "--network-interfaces", first, "--json")
    result = lab.run(ronde(), "doctor", *options, *PATIENT)
    report = json.loads(result.stdout)
    assert result.returncode == 1
    found = findings(report)
    assert any(
        host == "node-b" and "none of the interfaces that `--network-interfaces`" in what
        for host, _, what in found
    ), found
    assert any("more slots (9999) than CPUs" in what for _, _, what in found), found
