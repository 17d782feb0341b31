"""What `horovod.run` makes of its arguments, before anything is started."""

import pytest

import horovod
from horovod.runner import _HorovodArgs


def nothing():
    raise AssertionError("nobody calls this")


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
        ({"min_num_proc": 1}, NotImplementedError, "min_num_proc: elastic jobs are not in this"),
        (
            {"host_discovery_script": "x", "reset_limit": 3},
            NotImplementedError,
            "reset_limit, host_discovery_script: elastic jobs",
        ),
        ({"use_mpi": True}, NotImplementedError, "without MPI"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments, kind, text):
    with pytest.raises(kind) as caught:
        horovod.run(nothing, num_proc=2, **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize("old", ["np", "min_np", "max_np"])
def test_old_names_still_count_and_say_what_to_use(old):
    refused = pytest.raises((NotImplementedError, ValueError))
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated, use "), refused:
        horovod.run(nothing, hosts="localhost:1", **{old: 7})


def test_arguments_become_the_launchers_options():
    wanted = _HorovodArgs()
    wanted.num_proc, wanted.hosts, wanted.nics = 4, "a:2,b:2", ["eth0", "eth1"]
    wanted.verbose, wanted.output_filename, wanted.start_timeout = 2, "logs", 60
    assert wanted.options() == [
        "--num-proc=4",
        "--hosts=a:2,b:2",
        "--network-interfaces=eth0,eth1",
        "--start-timeout=60",
        "--output-filename=logs",
        "--verbose",
    ]
