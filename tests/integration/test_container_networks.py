"""Jobs between containers: published ports, port ranges, equal host names."""

import re
import subprocess
import sys
import textwrap

import pytest
from lab import horovodrun, why_not

from containers import ContainerLab

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(60),
]

RANGES = (range(29600, 29612), range(29700, 29712))
OTHER = "10.81.0.2"
WORK = """
import os, socket, sys
import horovod.raw as hvd
import numpy

hvd.init()
rank, size = hvd.rank(), hvd.size()
numbers = numpy.arange(100_000.0)
total = hvd.allreduce(numbers * (rank + 1), op=hvd.Sum)
assert (total == numbers * (size * (size + 1) // 2)).all()
names = hvd.allgather(numpy.frombuffer(os.environ["HOROVOD_HOSTNAME"][:1].encode(), "u1"))
master = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
place = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
ports = [int(line.split()[1].split(":")[1], 16) for table in ("tcp", "tcp6")
         for line in open("/proc/net/" + table).read().splitlines()[1:] if line.split()[3] == "0A"]
print("done", rank, *place, socket.gethostname(), master, sorted(set(ports)), flush=True)
hvd.barrier()
"""


def text_of(ports):
    return f"{ports[0]}-{ports[-1]}"


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    env = [
        {"RONDE_ADVERTISE": f"10.81.0.{number}", "RONDE_PORT_RANGE": text_of(ports)}
        for number, ports in enumerate(RANGES, 1)
    ]
    with ContainerLab(tmp_path_factory.mktemp("containers"), RANGES, env) as lab:
        yield lab


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(WORK))
    return path


def run(containers, *command, env=None, **more):
    mine = {"RONDE_ADVERTISE": "10.81.0.1", "RONDE_PORT_RANGE": text_of(RANGES[0]), **(env or {})}
    hosts = ("-np", "4", "-H", f"localhost:2,{OTHER}:2", "-p", "2222")
    return containers.run(horovodrun(), *hosts, *command, env=mine, **more)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_containers_that_cannot_reach_each_other_work_with_published_ports(
    containers, script, transport
):
    result = run(containers, sys.executable, script, env={"RONDE_TRANSPORT": transport})
    assert result.returncode == 0, result.stderr
    done = re.findall(r"done (\d) (\d \d \d \d) worker (\S+) (\[.*\])$", result.stdout, re.M)
    places = {int(rank): place for rank, place, *_ in done}
    assert places == {0: "0 2 0 2", 1: "1 2 0 2", 2: "0 2 1 2", 3: "1 2 1 2"}, result.stdout
    for rank, _, master, listening in done:
        host = int(rank) // 2
        address, port = master.split(":")
        assert address == ("172.17.1.2", "10.81.0.1")[host], "the address that works there"
        assert int(port) in RANGES[0]
        ports = set(map(int, re.findall(r"\d+", listening))) - {2222}
        assert ports and ports <= set(RANGES[host]), (rank, listening)


def test_without_an_advertised_address_the_error_says_what_to_set(containers, script):
    result = run(containers, sys.executable, script, env={"RONDE_ADVERTISE": ""})
    assert result.returncode == 1, result.stdout
    assert f"`{OTHER}`" in result.stderr and "cannot reach" in result.stderr, result.stderr
    assert "RONDE_ADVERTISE" in result.stderr


def test_a_range_that_is_used_up_names_the_host_and_what_it_needs(containers, script):
    options = ("--port-range", "29600-29602")
    result = run(containers, *options, sys.executable, script, env={"RONDE_PORT_RANGE": ""})
    assert result.returncode == 1, result.stdout
    taken = "all 3 ports of RONDE_PORT_RANGE (29600-29602) are taken"
    assert f"`localhost`: it cannot listen for the other hosts: {taken}" in result.stderr, (
        result.stderr
    )
    assert "hint: use a wider range: a host needs two ports for each of its ranks" in result.stderr


def test_a_wrong_address_on_a_host_is_named_with_the_host(containers, script):
    command = (sys.executable, script)
    result = run(containers, *command, env={"RONDE_ADVERTISE": "worker"})
    assert result.returncode == 2, result.stdout
    assert "RONDE_ADVERTISE contains `worker`, which is not an address" in result.stderr


def test_ranks_of_another_launcher_on_hosts_with_the_same_name_are_told_apart(containers, script):
    """As in an indexed job of Kubernetes whose pods are all called the same."""
    processes = []
    env = {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.81.0.1",
        "MASTER_PORT": "29611",
        "RONDE_RENDEZVOUS_PORT": "29600",
        "RONDE_SECRET": "5a" * 32,
        "HOROVOD_HOSTNAME": "",
    }
    for rank in range(4):
        host = containers.hosts[rank // 2]
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2", **host.env}
        processes.append(
            subprocess.Popen(
                [*host.prefix(), sys.executable, str(script)],
                env=containers.environment({**env, **own}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    output = [process.communicate(timeout=50) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, output
    places = [re.search(r"done \d (\d \d \d \d)", out)[1] for out, _ in output]
    assert places == ["0 2 0 2", "1 2 0 2", "0 2 1 2", "1 2 1 2"], output


def test_ranks_run_in_the_directory_that_workdir_names(containers, script, tmp_path):
    where = ("python3", "-c", "import os; print('in', os.getcwd())")
    result = run(containers, "--workdir", tmp_path, *where)
    assert result.stdout.count(f"in {tmp_path}\n") == 4, result.stdout + result.stderr
    missing = tmp_path / "missing"
    result = run(containers, "--workdir", missing, *where)
    assert result.returncode == 126, result.stderr
    assert f"could not be started: the directory `{missing}` does not exist" in result.stderr
    assert "`--workdir` names another one" in result.stderr and "chmod" not in result.stderr
