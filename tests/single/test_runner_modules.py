"""Modules of Horovod's launcher that programs import, and stubs that name a replacement."""

import argparse
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from horovod import _absent
from horovod.runner import _HorovodArgs, options
from horovod.runner.common.util import (
    codec,
    config_parser,
    env,
    host_hash,
    hosts,
    network,
    safe_shell_exec,
    secret,
    settings,
    timeout,
)
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.runner.launch import parse_args
from horovod.runner.util import network as addresses
from horovod.runner.util.threads import in_thread, on_event

PATIENCE_SECONDS = 30


def until(condition):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# Threads.


def test_functions_run_in_threads():
    calls = []
    thread = in_thread(lambda *words: calls.append(words), ("a", "b"), name="teller")
    thread.join(PATIENCE_SECONDS)
    assert (calls, thread.name, thread.daemon) == ([("a", "b")], "teller", True)
    for wrong in ([], "ab", None):
        with pytest.raises(ValueError, match=r"^args must be a tuple, not <class '\w+'>"):
            in_thread(print, wrong)


def test_a_silent_thread_hides_its_exception(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
    in_thread(int, ("x",), silent=True).join(PATIENCE_SECONDS)
    assert raised == []
    in_thread(int, ("x",)).join(PATIENCE_SECONDS)
    assert raised == [ValueError]


def test_functions_run_on_an_event_unless_stopped():
    calls, event, stop = [], threading.Event(), threading.Event()
    waiting = on_event(event, calls.append, ("set",))
    stopped = on_event(
        threading.Event(), calls.append, ("never",), stop, check_stop_interval_s=0.01, daemon=False
    )
    stop.set()
    stopped.join(PATIENCE_SECONDS)
    assert not stopped.is_alive() and waiting.is_alive() and calls == []
    event.set()
    waiting.join(PATIENCE_SECONDS)
    assert calls == ["set"]
    for arguments, words in [
        ({"event": None}, "Event must not be None"),
        ({"args": []}, "args must be a tuple, not <class 'list'>"),
        ({"daemon": False}, "Stop event must be given for non-daemon event thread"),
    ]:
        with pytest.raises(ValueError, match=words):
            on_event(**{"event": event, "func": print, **arguments})


# The environment, keys, time limits, codecs.


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "PMI_RANK": "3", "PMI_SIZE": "4"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "0"}, (3, 4)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        ({"HOROVOD_RANK": "1"}, None),
        ({"PMI_SIZE": "1"}, None),
    ],
)
def test_rank_and_size_come_from_the_launchers_variables(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if expected is not None:
        assert env.get_env_rank_and_size() == expected
        return
    with pytest.raises(RuntimeError, match=r"^Could not determine process rank and size: "):
        env.get_env_rank_and_size()


def test_shell_and_device_variables_are_not_exportable():
    names = ["PATH", "OLDPWD", "BASH_FUNC_f%%", "CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"]
    assert [name for name in names if env.is_exportable(name)] == ["PATH"]


def test_digests_depend_on_key_and_message():
    key, other = secret.make_secret_key(), secret.make_secret_key()
    assert key != other and len(key) >= 32
    digest = secret.compute_digest(key, b"message")
    assert len(digest) == secret.DIGEST_LENGTH_BYTES
    assert secret.check_digest(digest, key, b"message")
    assert not secret.check_digest(digest, other, b"message")
    assert not secret.check_digest(digest, key, b"another")


def test_a_timeout_names_what_it_waited_for():
    far = timeout.Timeout(600, "Timed out waiting for {activity}.")
    assert 590 < far.remaining() <= 600 and not far.timed_out()
    far.check_time_out_for("nothing")
    over = timeout.Timeout(-1, "Timed out waiting for {activity}.")
    assert over.timed_out() and over.remaining() == 0
    with pytest.raises(timeout.TimeoutException) as caught:
        over.check_time_out_for("tasks to start")
    text = "Timed out waiting for tasks to start. Timeout after -1 seconds."
    assert str(caught.value) == text


def test_objects_round_trip_through_text():
    for encoded in (
        codec.dumps_base64({"a": [1, len]}),
        codec.dumps_base64({"a": [1, len]}, False),
    ):
        assert codec.loads_base64(encoded) == {"a": [1, len]}
    assert isinstance(codec.dumps_base64(1), str)
    assert isinstance(codec.dumps_base64(1, to_ascii=False), bytes)


def test_settings_keep_their_values():
    limit = timeout.Timeout(30, "")
    held = settings.Settings(num_hosts=2, hosts="a:1,b:1", num_proc=2, start_timeout=limit)
    assert (held.num_hosts, held.hosts, held.num_proc, held.start_timeout) == (
        2,
        "a:1,b:1",
        2,
        limit,
    )
    assert (held.verbose, held.elastic, held.nics, held.key) == (0, False, None, None)
    assert isinstance(held, settings.BaseSettings)


# Hosts.


def test_hosts_are_parsed_and_assigned_like_in_the_launcher(tmp_path):
    read = hosts.parse_hosts("a:2,b:1")
    assert read == [hosts.HostInfo("a", 2), hosts.HostInfo("b", 1)]
    assert hosts.HostInfo.from_string("c:4") == hosts.HostInfo("c", 4)
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n# a comment\nb slots=1\n")
    assert hosts.parse_host_files(file) == "a:2,b:1"
    seats = hosts.get_host_assignments(read, 2)
    assert seats == [
        hosts.SlotInfo("a", 0, 0, 0, 3, 2, 2),
        hosts.SlotInfo("a", 1, 1, 0, 3, 2, 1),
        hosts.SlotInfo("b", 2, 0, 1, 3, 1, 2),
    ]
    assert [seat.rank for seat in hosts.get_host_assignments(read, 1, 2)] == [0, 1]
    line = seats[2].to_response_string()
    assert line == "2,3,0,1,1,2" and hosts.SlotInfo.from_response_string(line).cross_rank == 1
    with pytest.raises(ValueError, match="Invalid host input, please make sure it has format as"):
        hosts.parse_hosts("a:x")
    words = r"Requested more processes \(4\) than there are available slots \(3\)"
    with pytest.raises(ValueError, match=words):
        hosts.get_host_assignments(read, 4)


def test_hosts_are_discovered():
    script = HostDiscoveryScript("echo a:2; echo; echo b", 4)
    assert isinstance(script, HostDiscovery)
    assert script.find_available_hosts_and_slots() == {"a": 2, "b": 4}
    assert HostDiscoveryScript("true").find_available_hosts_and_slots() == {}
    with pytest.raises(RuntimeError) as caught:
        HostDiscoveryScript("exit 3", 1).find_available_hosts_and_slots()
    assert str(caught.value) == "Failed to execute discovery script: exit 3. Exit code: 3"
    with pytest.raises(ValueError, match="has no number of slots"):
        HostDiscoveryScript("echo a").find_available_hosts_and_slots()
    fixed = FixedHosts({"a": 2})
    fixed.find_available_hosts_and_slots()["b"] = 1
    assert fixed.find_available_hosts_and_slots() == {"a": 2}
    fixed.set({"c": 1})
    assert fixed.find_available_hosts_and_slots() == {"c": 1}


def test_the_host_hash_is_stable():
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    assert host_hash.host_hash().startswith(socket.gethostname().split(".")[0])


def test_ports_and_addresses_of_this_machine_are_found():
    listener, port = network.find_port(lambda address: socket.create_server(address))
    with listener:
        assert listener.getsockname()[1] == port >= 1024
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert "127.0.0.1" in network.get_local_intfs()["lo"]
    assert network.get_local_intfs(["no-such"]) == {}
    assert network.resolve_host_address("localhost") == "127.0.0.1"
    assert network.filter_local_addresses(["localhost", "192.0.2.1"]) == ["192.0.2.1"]
    assert addresses.get_driver_ip(["lo"]) == "127.0.0.1"
    with pytest.raises(RuntimeError, match="none of the interfaces no-such has"):
        addresses.get_driver_ip(["no-such"])


# The shell.


def test_commands_run_with_prefixed_output_and_exit_codes():
    out, err = StringIO(), StringIO()
    given = {"WORD": "hello", "PATH": os.environ["PATH"]}
    code = safe_shell_exec.execute("echo $WORD; echo low >&2; exit 3", given, out, err, index=1)
    assert (code, out.getvalue(), err.getvalue()) == (3, "[1]<stdout>:hello\n", "[1]<stderr>:low\n")
    out = StringIO()
    assert safe_shell_exec.execute("printf end; kill -9 $$", stdout=out) == 137
    assert out.getvalue() == "end"
    words = r"^env argument must be a dict, not <class 'os\._Environ'>: "
    with pytest.raises(Exception, match=words):
        safe_shell_exec.execute("true", env=os.environ)


def running(mark):
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if mark in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                yield int(entry.name)


def test_an_event_ends_a_command_and_its_descendants(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_shell_exec, "GRACEFUL_TERMINATION_TIME_S", 1)
    event, codes, mark = threading.Event(), [], f"{tmp_path}".encode()
    command = f"trap '' TERM; (trap '' TERM; touch {tmp_path}/up; tail -f {tmp_path}/up) & wait"
    execute = lambda: codes.append(safe_shell_exec.execute(command, events=[event]))  # noqa: E731
    thread = in_thread(execute)
    until((tmp_path / "up").exists)
    event.set()
    thread.join(PATIENCE_SECONDS)
    assert codes == [137]
    until(lambda: not list(running(mark)))


def test_a_command_ends_with_the_process_that_runs_it(tmp_path):
    code = (
        "from horovod.runner.common.util.safe_shell_exec import execute\n"
        f"execute('touch {tmp_path}/up; exec tail -f {tmp_path}/up')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    until((tmp_path / "up").exists)
    process.kill()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    until(lambda: not list(running(f"{tmp_path}/up".encode())))


# The command line and the configuration.


def test_parsed_arguments_have_horovods_names(monkeypatch):
    line = ["horovodrun", "-np", "2", "--min-np", "1", "--network-interface", "eth0", "--verbose"]
    line += ["--fusion-threshold-mb", "10", "--no-autotune", "python", "x.py", "-np", "3"]
    monkeypatch.setattr(sys, "argv", line)
    args = parse_args()
    assert isinstance(args, argparse.Namespace)
    assert (args.num_proc, args.min_num_proc, args.max_num_proc, args.nics) == (
        2,
        1,
        None,
        {"eth0"},
    )
    assert (args.verbose, args.fusion_threshold_mb, args.autotune) == (True, 10, False)
    assert (args.hierarchical_allreduce, args.use_mpi, args.run_func) == (None, False, None)
    assert args.command == ["python", "x.py", "-np", "3"]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (["--help"], 0, "Usage: horovodrun -np <N>"),
        (["--version"], 0, "0.28.1+ronde"),
        (["x"], 2, "error: the number of processes was not given: use `-np <N>`"),
        (["-np", "x", "y"], 2, "it must be a positive integer"),
        (["-np", "1", "--cycle-time-ms", "-1"], 2, "`--cycle-time-ms` is `-1`"),
        (["-np", "1", "--no-such"], 2, "there is no option `--no-such`"),
    ],
)
def test_an_invalid_command_line_exits_like_argparse(capfd, line, code, words):
    with pytest.raises(SystemExit) as caught:
        parse_args(line)
    assert caught.value.code == code
    captured = capfd.readouterr()
    assert words in (captured.err if code else captured.out)


def test_arguments_become_variables_of_the_ranks():
    line = ["-np", "2", "--fusion-threshold-mb", "10", "--cycle-time-ms", "20", "--no-stall-check"]
    line += ["--no-hierarchical-allreduce", "--log-level", "debug", "--log-without-timestamp"]
    args = parse_args([*line, "--timeline-filename", "t.json"])
    variables = {"KEPT": "1"}
    assert config_parser.set_env_from_args(variables, args) is variables
    assert variables == {
        "KEPT": "1",
        config_parser.HOROVOD_FUSION_THRESHOLD: str(10 * 1024 * 1024),
        config_parser.HOROVOD_CYCLE_TIME: "20.0",
        config_parser.HOROVOD_HIERARCHICAL_ALLREDUCE: "0",
        config_parser.HOROVOD_STALL_CHECK_DISABLE: "1",
        config_parser.HOROVOD_LOG_LEVEL: "DEBUG",
        config_parser.HOROVOD_LOG_HIDE_TIME: "1",
        config_parser.HOROVOD_TIMELINE: "t.json",
    }
    assert config_parser.set_env_from_args({}, parse_args(["-np", "2"])) == {}
    with pytest.raises(AttributeError):
        _ = config_parser.HOROVOD_NONSENSE


def test_a_configuration_file_sets_only_what_the_command_line_does_not():
    args = parse_args(["-np", "2", "--cycle-time-ms", "20"])
    config = {
        "controller": "mpi",
        "params": {"cycle_time_ms": 5, "fusion_threshold_mb": 32, "torus_allreduce": True},
        "autotune": {"enabled": False},
        "stall_check": {"enabled": False, "warning_time_seconds": 120},
        "logging": {"with_timestamp": False, "level": "INFO"},
        "something": {"else": 1},
    }
    config_parser.set_args_from_config(args, config, {"cycle_time_ms"})
    assert (args.use_mpi, args.cycle_time_ms, args.fusion_threshold_mb) == (True, 20.0, 32)
    assert (args.torus_allreduce, args.autotune, args.no_stall_check) == (True, False, True)
    assert (args.stall_check_warning_time_seconds, args.log_level) == (120, "INFO")
    assert args.log_with_timestamp is False
    with pytest.raises(ValueError, match="No such controller supported: pigeon"):
        config_parser.set_args_from_config(args, {"controller": "pigeon"}, set())


def test_invalid_numbers_are_refused():
    args = parse_args(["-np", "2"])
    config_parser.validate_config_args(args)
    for name, value, words in [
        ("fusion_threshold_mb", -1, "fusion_threshold_mb=-1 must be >= 0"),
        ("cycle_time_ms", -0.5, "cycle_time_ms=-0.5 must be >= 0"),
        ("autotune_gaussian_process_noise", 2, "must be in "),
    ]:
        wrong = argparse.Namespace(**{**vars(args), name: value})
        with pytest.raises(ValueError, match=words):
            config_parser.validate_config_args(wrong)


def test_the_arguments_of_run_match_the_command_line():
    known = {option.argument for option in options.table()} - {"help", "version", "ssh_strict"}
    ours = set(vars(_HorovodArgs()))
    assert known <= ours, known - ours
    assert ours - known == {"command", "executable", "run_func"}
    names = {option.argument: option.names for option in options.table()}
    for name in sorted(known):
        wanted = _HorovodArgs()
        before = wanted.options()
        setattr(wanted, name, {"nics": ["lo"], "cooldown_range": (1, 2)}.get(name, 7))
        for word in set(wanted.options()) - set(before) - {"2"}:
            assert word.split("=")[0] in names[name], word


# Modules and names that do not exist.


@pytest.mark.parametrize("name", sorted(_absent.INSTEAD))
def test_a_missing_module_names_its_replacement(name):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    text = str(caught.value)
    assert text.startswith(f"{name} is not part of Ronde: ") and "\n" not in text
    assert caught.value.name == name


def test_missing_names_name_their_replacement():
    for code, words in [
        ("from horovod.runner.common.util.network import BasicService", "unpickles nothing"),
        ("from horovod.runner.elastic.discovery import HostManager", "host_discovery_script"),
        ("from horovod.spark.driver.job_id import next_job_id", "horovod.spark.driver is not part"),
        ("import horovod.nonsense", "No module named 'horovod.nonsense'"),
    ]:
        with pytest.raises(ImportError, match=words):
            exec(code)
