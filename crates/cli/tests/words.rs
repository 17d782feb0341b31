//! Help and error texts of the command line.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::process::Command;

fn run(line: &str) -> String {
    let arguments: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(arguments)
        .env_remove("PYTHONPATH")
        // A GPU of this machine makes no difference.
        .env("RONDE_CUDA", "/no/such/driver")
        .output()
        .unwrap();
    format!(
        "{}{}({})",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status.code().unwrap()
    )
}

#[test]
fn scripts_and_modules_run_without_naming_an_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import os, sys; print(os.environ['HOROVOD_SIZE'], *sys.argv[1:])";
    std::fs::write(folder.path().join("train.py"), program).unwrap();
    let here = |line: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
            .args(line.split_whitespace())
            .current_dir(folder.path())
            .env_remove("PYTHONSAFEPATH")
            .output()
            .unwrap();
        let mut lines: Vec<_> =
            String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect();
        lines.sort_unstable();
        (lines, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let both = vec!["[0]<stdout>:2 --lr 1".to_owned(), "[1]<stdout>:2 --lr 1".to_owned()];
    assert_eq!(here("-np 2 train.py --lr 1"), (both.clone(), String::new()));
    assert_eq!(here("-np 2 -m train --lr 1"), (both.clone(), String::new()));
    // Without `-np`: one rank per slot of the given hosts, or one rank and a note.
    assert_eq!(here("-H localhost:2 ./train.py --lr 1"), (both.clone(), String::new()));
    assert_eq!(here("-np auto -H localhost:2 train.py --lr 1"), (both, String::new()));
    let (lines, note) = here("train.py");
    assert_eq!(lines, ["[0]<stdout>:1"]);
    assert!(note.starts_with("note: starting 1 process because `-np` was not given;"), "{note}");
}

#[test]
fn version() {
    for line in ["-v", "--version", "--vers"] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(run(line), @r"
            0.28.1+ronde.0.1.0
            (0)
            ");
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is as long as the help")]
fn help() {
    insta::assert_snapshot!(run("--help"), @r"
    Run a script on several processes that train one model together

    Usage: horovodrun -np <N> [-H <HOSTS>] [OPTIONS] <COMMAND> [ARGUMENTS]...

    Options:
      -n, --num-proc <N>                  Total number of processes; also written `-np <N>`. `auto`: one
                                          per slot of the given hosts, or else one per GPU or core of
                                          this machine; `gpu`, `cpu`: one per GPU or core
      -H, --hosts <HOSTS>                 Hosts and the number of processes on each (1 if omitted), as
                                          in `node-a:4,node-b:4` [default: localhost:<N>]
          --hostfile <FILE>               A hostfile, with one host per line: `node-a slots=4`
          --network-interfaces <NAMES>    Network interfaces to use between hosts, as in `eth0,ib0`;
                                          each host uses the ones it has; may be repeated [default: any
                                          that work]
      -p, --ssh-port <PORT>               SSH port on the other hosts [default: as configured for ssh]
      -i, --ssh-identity-file <FILE>      Private key for logging in [default: as configured for ssh]
          --ssh-strict                    Refuse hosts with unknown host keys [default: accept them on
                                          first use]
          --reach <WAY>                   How to reach other hosts: `agent` (standing agents, `ronde
                                          agent --listen`), `ssh`, or `auto`: an agent where one answers
                                          that holds your key, otherwise ssh [default: auto]
          --agent-port <PORT>             Port of the standing agents [default: 29508]
          --agent-key-file <FILE>         File with the key of the standing agents; must be readable
                                          only by you [default: RONDE_AGENT_KEY, or
                                          ~/.config/ronde/agent.key]
          --rsh <COMMAND>                 Reach other hosts with this command instead of ssh, as in
                                          `docker exec -i {host} {command}`; it must connect its
                                          standard input and output to that command's
          --mpi                           Launch the ranks with `mpirun`; they find each other over MPI
          --jsrun                         Launch the ranks with LSF's `jsrun`
          --mpi-args <ARGUMENTS>          Extra arguments for `mpirun`, as one string, as in
                                          `--mpi-args=--oversubscribe`
          --binding-args <ARGUMENTS>      CPU binding arguments for `mpirun` or `jsrun`, replacing the
                                          default ones
          --start-timeout <SECONDS>       How long to wait for all hosts to respond, in seconds
                                          [default: 30]
          --gpus-per-rank <N>             Give each process this many GPUs of its host, by setting
                                          CUDA_VISIBLE_DEVICES [default: all GPUs]
          --workdir <DIRECTORY>           Directory in which the command runs on every host [default:
                                          the current directory]
          --output-filename <DIRECTORY>   Also save each rank's output to `rank.N/stdout` and
                                          `rank.N/stderr` in this directory
          --event-log <FILE>              Write the job's events to this file, as JSON lines
          --prefix-output-with-timestamp  Prefix each line of rank output with a timestamp; also written
                                          `-prefix-timestamp`
          --tty <RANKS>                   Ranks that get a terminal: `auto` (rank 0, if standard output
                                          is one), `none`, `all`, or a list such as `0,2` [default:
                                          auto]
          --ranks <RANKS>                 Show only the output of these ranks, as in `0,2` or `0-3`;
                                          also written `--only-rank 0`
          --config-file <FILE>            A YAML file with options; the command line takes precedence
          --port-range <LOW-HIGH>         Ports to listen on, as in `29600-29700`, for firewalls and
                                          published ports of containers; several ranges are separated by
                                          commas [default: chosen by the system]
          --verbose                       Log each step to standard error
          --check-build                   Show what this installation supports; also written `-cb`
      -v, --version                       Print the version
      -h, --help                          Print help

    Tuning:
          --fusion-threshold-mb <N>
              Maximum size of a fused bucket, in MiB [default: 128]
          --cache-capacity <N>
              Number of tensor descriptions to cache [default: 1024]
          --autotune
              Tune settings while the job runs
          --autotune-log-file <FILE>
              Write what autotuning measures to this file
          --autotune-warmup-samples <N>
              Warm-up samples to discard [default: 3]
          --autotune-steps-per-sample <N>
              Training steps per sample [default: 10]
          --autotune-bayes-opt-max-samples <N>
              Maximum number of points to measure per setting, five samples each [default: 20]

    Watching:
          --timeline-filename <FILE>
              Write a timeline of all tensors to this file, for Perfetto or `chrome://tracing`
          --timeline-mark-cycles
              Mark in the timeline where each bucket begins
          --no-stall-check
              Do not warn about stalled ranks
          --stall-check-warning-time-seconds <N>
              Warn when a rank has stalled for this many seconds [default: 60]
          --stall-check-shutdown-time-seconds <N>
              Abort the job when a rank has stalled for this many seconds; 0 means never [default: 0]
          --log-level <LEVEL>
              Log level of launcher and ranks: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL [default:
              WARNING]
          --log-without-timestamp
              Omit timestamps from the ranks' log

    Libraries:
          --tcp                  Keep NCCL off InfiniBand
          --mpi-threads-disable  Initialize MPI for one thread only

    Elastic jobs:
          --min-np <N>
              Minimum number of processes; makes the job elastic [default: same as `-np`]
          --max-np <N>
              Maximum number of processes in an elastic job [default: one per slot]
          --host-discovery-script <SCRIPT>
              Script that prints the available hosts, one per line, as in `node-a:4`; run every second
          --slots-per-host <N>
              Slots per host if the discovery script prints none
          --elastic-timeout <SECONDS>
              How long an elastic job waits for enough slots, in seconds [default: 600]
          --reset-limit <N>
              Maximum number of times an elastic job may re-form its world [default: unlimited]
          --blacklist-cooldown-range <MIN> <MAX>
              Minimum and maximum cooldown before a failed host is used again, in seconds; doubles with
              each failure [default: never used again]

    Agents that dial in:
          --agents <N>             Wait for this many agents (`ronde agent --join`) instead of starting
                                   agents
          --listen <ADDRESS:PORT>  Address to listen on for agents, as in `10.0.0.1:4000` or `:4000`
                                   [default: all addresses, any port]
          --key-file <FILE>        File with the job key that the agents use; must be readable only by
                                   you [default: RONDE_JOB_KEY in the environment, or a new key]

    Everything after the options is the command, passed on unchanged.

    Example:
      horovodrun -np 4 -H localhost:4 python train.py
    (0)
    ");
}

#[test]
fn check_build() {
    insta::assert_snapshot!(run("-cb"), @r"
    Horovod v0.28.1+ronde.0.1.0:

    Available Frameworks:
        [ ] TensorFlow
        [ ] PyTorch
        [ ] MXNet

    Available Controllers:
        [X] MPI
        [X] Gloo

    Available Tensor Operations:
        [ ] NCCL
        [ ] DDL
        [ ] CCL
        [ ] MPI
        [X] Gloo    
    (0)
    ");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one flat list of errors and their texts")]
fn usage_errors() {
    let lines = [
        "",
        "-np 2",
        "python train.py",
        "-np 0 x",
        "-np -3 x",
        "-np two x",
        "-np",
        "-np4 x",
        "-np 5 -H localhost:4 x",
        "-np 2 -H localhost x",
        "-np 2 -H localhost:0 x",
        "-np 2 -H -oProxyCommand=x:2 x",
        "-np 2 -p 0 x",
        "--min-np 5 -np 4 --max-np 3 x",
        "--min-np 2 --mpi x",
        "--host-discovery-script d x",
        "--host-discovery-script d -H a:1 -np 1 x",
        "--min-np 2 --blacklist-cooldown-range 0 5 x",
        "--min-np 4 -H localhost:2 x",
        "--min-np 4",
        "--start-timeout soon --log-level loud -np 2 x",
        "--hostfile no-such-file -np 2 x",
        "--hostfile f -H a:1 -np 2 x",
        "--config-file no-such-file -np 2 x",
        "--output-filename /proc/nowhere -np 1 true",
        "--event-log /proc/nowhere -np 1 true",
        "--mpi --event-log events -np 1 true",
        "--output-file-names=d --verbosity --cache-capacities=2 x",
        "--num-pros 2 x",
        "--nproc_per_node 2 --nnodes=2 train.py",
        "--standalone train.py",
        "-np 2 -m",
        "-np gpu -H node-a:2 x",
        "-np auto --agents 2 x",
        "--nonsense",
    ];
    let texts: Vec<_> = lines
        .iter()
        .map(|line| format!("$ {}\n{}\n", format!("horovodrun {line}").trim_end(), run(line)))
        .collect();
    insta::assert_snapshot!(texts.join("\n"), @r"
    $ horovodrun
    error: the number of processes was not given: use `-np <N>`
    error: no command given

    hint: for example: `horovodrun -np 2 python train.py`
    (2)

    $ horovodrun -np 2
    error: no command given

    hint: for example: `horovodrun -np 2 python train.py`
    (2)

    $ horovodrun python train.py
    error: the number of processes was not given: use `-np <N>`

    hint: for example: `horovodrun -np 2 python train.py`
    (2)

    $ horovodrun -np 0 x
    error: invalid value `0` for `--num-proc <N>`: it must be a positive integer, or auto, gpu or cpu

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun -np -3 x
    error: invalid value `-3` for `--num-proc <N>`: it must be a positive integer, or auto, gpu or cpu

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun -np two x
    error: invalid value `two` for `--num-proc <N>`: it must be a positive integer, or auto, gpu or cpu

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun -np
    error: a value is required for `--num-proc <N>` but none was supplied

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun -np4 x
    error: there is no option `-np4`

    hint: did you mean `-np`?
    (2)

    $ horovodrun -np 5 -H localhost:4 x
    error: Requested more processes (5) than there are available slots (4)

    hint: give the hosts more slots, or start fewer processes
    (2)

    $ horovodrun -np 2 -H localhost x
    error: Requested more processes (2) than there are available slots (1)

    hint: give the hosts more slots, or start fewer processes
    (2)

    $ horovodrun -np 2 -H localhost:0 x
    error: `localhost` has no slots

    hint: write each host with its number of slots, as in `-H localhost:4`
    (2)

    $ horovodrun -np 2 -H -oProxyCommand=x:2 x
    error: Invalid host input, please make sure it has format as : worker-0:2,worker-1:2. (in `-oProxyCommand=x:2`)

    hint: write each host with its number of slots, as in `-H localhost:4`
    (2)

    $ horovodrun -np 2 -p 0 x
    error: invalid value `0` for `--ssh-port <PORT>`: 0 is not in 1..=65535

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun --min-np 5 -np 4 --max-np 3 x
    error: `--min-np 5` is greater than `-np 4`
    error: `-np 4` is more than `--max-np 3` allows

    hint: for example: `horovodrun -np 4 --min-np 2 --max-np 8 ...`
    (2)

    $ horovodrun --min-np 2 --mpi x
    error: `--mpi` cannot be combined with `--min-np` or `--host-discovery-script`: `mpirun` cannot replace ranks

    hint: leave `--mpi` out: elastic training needs no MPI
    (2)

    $ horovodrun --host-discovery-script d x
    error: the number of processes was not given: use `-np <N>` or `--min-np <N>`

    hint: for example: `horovodrun -np 4 --min-np 2 --max-np 8 ...`
    (2)

    $ horovodrun --host-discovery-script d -H a:1 -np 1 x
    error: the argument `--host-discovery-script <SCRIPT>` cannot be used with `--hosts <HOSTS>`

    Usage: horovodrun -np <N> [-H <HOSTS>] [OPTIONS] <COMMAND> [ARGUMENTS]...

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun --min-np 2 --blacklist-cooldown-range 0 5 x
    error: `--blacklist-cooldown-range 0 5` must be two numbers of seconds from 1 to 3600, the smaller one first

    hint: for example: `--blacklist-cooldown-range 10 60`
    (2)

    $ horovodrun --min-np 4 -H localhost:2 x
    error: Requested more processes (4) than there are available slots (2)

    hint: give the hosts more slots, or start fewer processes
    (2)

    $ horovodrun --min-np 4
    error: no command given

    hint: for example: `horovodrun -np 2 python train.py`
    (2)

    $ horovodrun --start-timeout soon --log-level loud -np 2 x
    error: `--log-level` is `loud`, but must be TRACE, DEBUG, INFO, WARNING, ERROR or FATAL

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun --hostfile no-such-file -np 2 x
    error: the hostfile `no-such-file` cannot be read: No such file or directory (os error 2)

    hint: check the spelling and the current directory
    (2)

    $ horovodrun --hostfile f -H a:1 -np 2 x
    error: the argument `--hostfile <FILE>` cannot be used with `--hosts <HOSTS>`

    Usage: horovodrun -np <N> [-H <HOSTS>] [OPTIONS] <COMMAND> [ARGUMENTS]...

    hint: `horovodrun --help` lists all options
    (2)

    $ horovodrun --config-file no-such-file -np 2 x
    error: the configuration file `no-such-file` cannot be read: No such file or directory (os error 2)

    hint: check the spelling and the current directory
    (2)

    $ horovodrun --output-filename /proc/nowhere -np 1 true
    error: cannot save output in `/proc/nowhere`: No such file or directory (os error 2)

    hint: use a directory that can be created and written to
    (2)

    $ horovodrun --event-log /proc/nowhere -np 1 true
    error: cannot write the event log `/proc/nowhere`: No such file or directory (os error 2)

    hint: use a file that can be created, in an existing directory
    (2)

    $ horovodrun --mpi --event-log events -np 1 true
    error: `--mpi` cannot be combined with `--event-log`: `mpirun` reports no events

    hint: drop one of the two; without `--mpi` the job runs the same way and logs its events
    (2)

    $ horovodrun --output-file-names=d --verbosity --cache-capacities=2 x
    error: there is no option `--output-file-names`
    error: there is no option `--verbosity`
    error: there is no option `--cache-capacities`

    hint: did you mean `--output-filename` and `--verbose` and `--cache-capacity`?
    (2)

    $ horovodrun --num-pros 2 x
    error: there is no option `--num-pros`

    hint: did you mean `--num-proc`?
    (2)

    $ horovodrun --nproc_per_node 2 --nnodes=2 train.py
    error: there is no option `--nproc_per_node`

    hint: instead of `torchrun`'s `--nproc_per_node`, use `-np`, the number of processes on all hosts together
    (2)

    $ horovodrun --standalone train.py
    error: there is no option `--standalone`

    hint: leave out `torchrun`'s `--standalone`: one `horovodrun` starts the ranks on all hosts in `-H`, and they find each other
    (2)

    $ horovodrun -np 2 -m
    error: `-m` needs a module name

    hint: for example: `horovodrun -np 2 -m package.train`
    (2)

    $ horovodrun -np gpu -H node-a:2 x
    error: `-np gpu` and `-np cpu` count this machine's devices, but other hosts were given

    hint: use `-np auto` for one process per slot of these hosts, or give a number
    (2)

    $ horovodrun -np auto --agents 2 x
    error: the hosts are not known yet, so there is nothing to count

    hint: give a number, as in `-np 4`
    (2)

    $ horovodrun --nonsense
    error: there is no option `--nonsense`

    hint: `horovodrun --help` lists all options
    (2)
    ");
}

#[test]
fn commands_report_output_they_cannot_write() {
    let (launcher, ronde) = (env!("CARGO_BIN_EXE_horovodrun"), env!("CARGO_BIN_EXE_ronde"));
    for (program, argument) in [(launcher, "--help"), (launcher, "--check-build"), (ronde, "-v")] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(program).arg(argument).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected =
            "error: standard output cannot be written: No space left on device (os error 28)";
        assert!(stderr.starts_with(expected), "{argument}: {stderr}");
        assert_eq!(output.status.code(), Some(1), "{argument}");
    }
}

#[test]
fn invalid_settings_are_refused_before_anything_starts() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
            .args(arguments)
            .args(["-np", "2", "echo", "started"])
            .env("HOROVOD_FUSION_THRESHOLD", "64MB")
            .env("RONDE_TRANSPORT", "pigeon")
            .output()
            .unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        String::from_utf8(output.stderr).unwrap()
    };
    insta::assert_snapshot!(run(&["--timeline-filename", "/no/such/t.json"]), @r"
    error: HOROVOD_FUSION_THRESHOLD is `64MB`, but must be a number of bytes, here 67108864
    error: RONDE_TRANSPORT is `pigeon`, but must be auto or tcp
    error: `--timeline-filename`: HOROVOD_TIMELINE is `/no/such/t.json`, which cannot be written: `/no/such`: No such file or directory (os error 2)

    hint: correct or unset these settings; docs/reference/settings.md describes them
    ");
    insta::assert_snapshot!(run(&["--fusion-threshold-mb", "64MB", "--cache-capacity", "-1"]), @r"
    error: `--fusion-threshold-mb` is `64MB`, but must be a non-negative integer
    error: `--cache-capacity` is `-1`, but must be a non-negative integer
    error: HOROVOD_FUSION_THRESHOLD is `64MB`, but must be a number of bytes, here 67108864
    error: RONDE_TRANSPORT is `pigeon`, but must be auto or tcp

    hint: `horovodrun --help` lists all options; correct or unset these settings; docs/reference/settings.md describes them
    ");
    let elastic = run(&["--min-np", "3"]);
    insta::assert_snapshot!(elastic, @r"
    error: HOROVOD_FUSION_THRESHOLD is `64MB`, but must be a number of bytes, here 67108864
    error: RONDE_TRANSPORT is `pigeon`, but must be auto or tcp
    error: `--min-np 3` is greater than `-np 2`

    hint: correct or unset these settings; docs/reference/settings.md describes them; for example: `horovodrun -np 4 --min-np 2 --max-np 8 ...`
    ");
    // A variable is ignored if an option sets the same value.
    let output = Command::new(env!("CARGO_BIN_EXE_horovodrun"))
        .args(["--fusion-threshold-mb", "64", "-np", "1", "true"])
        .env("HOROVOD_FUSION_THRESHOLD", "64MB")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
