"""How `horovod.run` checks and converts its arguments before it starts anything."""

import pytest

import horovod
from horovod.runner import _HorovodArgs


def nothing():
    raise AssertionError("this is never called")


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"hosts": "a:1", "hostfile": "f"},
            ValueError,
            "Argument hosts and hostfile only allow one provided.",
        ),
        (
            {"use_gloo": True, "use_mpi": True},
            ValueError,
            "Argument use_gloo and use_mpi only allow one set True.",
        ),
        (
            {"host_discovery_script": "x", "hosts": "a:2"},
            ValueError,
            "Argument host_discovery_script and hosts or hostfile only allow one provided.",
        ),
        (
            {"agents": 2, "hosts": "a:2"},
            ValueError,
            "Argument agents and hosts, hostfile or host_discovery_script only allow one provided.",
        ),
        ({"agents": 0}, ValueError, "it must be a positive integer"),
        ({"listen": ":4000"}, ValueError, "--agents <N>"),
        (
            {"agents": 2, "key_file": "/no/such"},
            ValueError,
            "the key file `/no/such` cannot be read",
        ),
        ({"min_num_proc": 3}, ValueError, "`--min-np 3` is greater than `-np 2`"),
        ({"min_num_proc": 1, "cooldown_range": (0, 5)}, ValueError, "from 1 to 3600"),
        (
            {"use_mpi": True, "min_num_proc": 1},
            ValueError,
            "`--mpi` cannot be combined with `--min-np` or `--host-discovery-script`",
        ),
        (
            {"use_mpi": True, "event_log": "events.jsonl"},
            ValueError,
            "`--mpi` cannot be combined with `--event-log`",
        ),
    ],
)
def test_invalid_arguments_are_refused_with_a_reason(arguments, kind, text):
    with pytest.raises(kind) as caught:
        horovod.run(nothing, num_proc=2, **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("func", "args", "text"),
    [
        ({"a": 1}, (), "func is of type `dict`, not a function; pass the function itself"),
        (nothing, 20, r"args is of type `int`; pass a tuple, such as args=\(20,\)"),
        (nothing, "abc", r"args is of type `str`; pass a tuple, such as args=\('abc',\)"),
    ],
)
def test_a_call_that_cannot_work_is_refused_before_anything_starts(func, args, text):
    with pytest.raises(TypeError, match=text):
        horovod.run(func, args=args, num_proc=2)


@pytest.mark.parametrize("old", ["np", "min_np", "max_np"])
def test_deprecated_names_still_work_and_name_the_new_one(old):
    refused = pytest.raises(ValueError)
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated, use "), refused:
        horovod.run(nothing, num_proc=8, hosts="localhost:1", **{old: 7})


def test_arguments_become_the_launchers_options():
    wanted = _HorovodArgs()
    wanted.num_proc, wanted.hosts, wanted.nics = 4, "a:2,b:2", ["eth0", "eth1"]
    wanted.verbose, wanted.output_filename, wanted.start_timeout = 2, "logs", 60
    wanted.event_log, wanted.gpus_per_rank = "events.jsonl", 2
    assert wanted.options() == [
        "--num-proc=4",
        "--hosts=a:2,b:2",
        "--network-interfaces=eth0,eth1",
        "--start-timeout=60",
        "--output-filename=logs",
        "--event-log=events.jsonl",
        "--gpus-per-rank=2",
        "--verbose",
    ]


def test_arguments_for_agents_that_dial_in_become_the_launchers_options():
    wanted = _HorovodArgs()
    wanted.num_proc, wanted.agents, wanted.listen, wanted.key_file = 6, 3, ":4000", "job.key"
    assert wanted.options() == [
        "--num-proc=6",
        "--agents=3",
        "--listen=:4000",
        "--key-file=job.key",
    ]


def test_arguments_for_mpi_become_the_launchers_options():
    wanted = _HorovodArgs()
    wanted.use_mpi, wanted.mpi_args = True, "--oversubscribe -x A=b"
    assert wanted.options() == ["--num-proc=1", "--mpi-args=--oversubscribe -x A=b", "--mpi"]


def test_arguments_of_elastic_jobs_become_the_launchers_options():
    wanted = _HorovodArgs()
    wanted.min_num_proc, wanted.max_num_proc, wanted.slots = 2, 4, 1
    wanted.reset_limit, wanted.cooldown_range, wanted.elastic_timeout = 3, (10, 60), 30
    wanted.host_discovery_script = "hosts.sh"
    assert wanted.options() == [
        "--min-num-proc=2",
        "--max-num-proc=4",
        "--slots-per-host=1",
        "--reset-limit=3",
        "--elastic-timeout=30",
        "--host-discovery-script=hosts.sh",
        "--blacklist-cooldown-range=10",
        "60",
    ]
    assert wanted.elastic
    assert wanted.fewest() == 2
    wanted.num_proc = 3
    assert wanted.options()[0] == "--num-proc=3"
