//! Help and error texts of the command `ronde`; tests/integration covers what it measures.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::process::Command;

fn run(line: &str) -> String {
    let arguments: Vec<_> = line.split_whitespace().collect();
    let output = Command::new(env!("CARGO_BIN_EXE_ronde")).args(arguments).output().unwrap();
    format!(
        "{}{}({})",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status.code().unwrap()
    )
}

#[test]
fn version_and_help() {
    insta::assert_snapshot!(run("--version"), @r"
    0.28.1+ronde.0.1.0
    (0)
    ");
    insta::assert_snapshot!(run("--help"), @r"
    Test, measure and monitor Ronde; `horovodrun` starts jobs

    Usage: ronde [COMMAND]

    Commands:
      agent       Offer this host to a job, or to all launchers that hold its key
      bench       Measure the collectives, optionally compared with gloo and MPI
      completion  Print shell completions for `ronde` and `horovodrun`
      cp          Copy files and folders to hosts, over the connections that a job would use
      doctor      Check the hosts of a job and the network between them
      down        Stop the agents that `ronde up` started, and remove what it made
      env         Print a report on this installation and machine, for bug reports
      explain     Explain the code that an error ends with, and what to do about it
      hosts       List hosts, for `--hostfile` and `--host-discovery-script`
      status      Show the status of your running jobs on this machine
      test        Test this installation on two ranks with every installed framework
      up          Prepare hosts over ssh, once: install Ronde and start a standing agent on each

    Options:
      -v, --version  Print the version
      -h, --help     Print help
    (0)
    ");
    assert_eq!(run(""), run("--help"));
    insta::assert_snapshot!(run("bench --help"), @r"
    Measure the collectives, optionally compared with gloo and MPI

    Usage: ronde bench [-np <N>] [OPTIONS]

    Options:
          --num-proc <N>              Number of ranks; several are measured one after another; also
                                      written `-np <N>` [default: 2]
      -H, --hosts <HOSTS>             Hosts and the number of processes on each (1 if omitted), as in
                                      `node-a:4,node-b:4` [default: localhost:<N>]
      -p, --ssh-port <PORT>           SSH port on the other hosts [default: as configured for ssh]
      -i, --ssh-identity-file <FILE>  Private key for logging in [default: as configured for ssh]
          --ssh-strict                Refuse hosts with unknown host keys [default: accept them on first
                                      use]
          --reach <WAY>               How to reach other hosts: `agent` (standing agents, `ronde agent
                                      --listen`), `ssh`, or `auto`: an agent where one answers that
                                      holds your key, otherwise ssh [default: auto]
          --agent-port <PORT>         Port of the standing agents [default: 29508]
          --agent-key-file <FILE>     File with the key of the standing agents; must be readable only by
                                      you [default: RONDE_AGENT_KEY, or ~/.config/ronde/agent.key]
          --rsh <COMMAND>             Reach other hosts with this command instead of ssh, as in `docker
                                      exec -i {host} {command}`; it must connect its standard input and
                                      output to that command's
          --collective <NAMES>        allreduce, allgather, broadcast, alltoall, reducescatter, barrier;
                                      the gradients of one training step of resnet50 or bert; or all
                                      [default: allreduce]
          --sizes <BYTES>             Bytes that each rank submits; K, M and G are powers of 1024
                                      [default: 4,1K,16K,256K,4M,64M]
          --dtype <TYPE>              The element type [default: float32]
          --compare <PEERS>           Also measure these, in alternating rounds: gloo (from torch), mpi
                                      (the `mpirun` on the PATH)
          --transport <TRANSPORTS>    auto: shared memory where possible; tcp: sockets; `auto,tcp`: both
                                      [default: auto]
          --rounds <N>                Rounds per line of the table [default: 15]
          --seconds <S>               Instead of a number of rounds: as many as fit into this many
                                      seconds per line
          --json <FILE>               Write all figures to a file; `-` writes them to standard output
                                      instead of the table
          --plot <FILE>               Plot the times to an SVG file
          --calibrate <FILE>          Measure where one algorithm overtakes another on this machine, and
                                      write these thresholds to a file for RONDE_TUNING
          --choices                   Print which algorithm runs when, with the thresholds that
                                      RONDE_TUNING sets here
          --verbose                   Log each step to standard error
      -h, --help                      Print help

    Examples:
      ronde bench
      ronde bench -np 2,4 --collective all --compare gloo,mpi --plot bench.svg
      ronde bench -np 4 --calibrate tuning.conf
    (0)
    ");
}

#[test]
fn shells_load_the_completions() {
    let program = env!("CARGO_BIN_EXE_ronde");
    let script = format!(
        "source <({program} completion bash)
         complete -p ronde horovodrun
         for words in 'ronde st' 'ronde bench --com' 'horovodrun --num'; do
             COMP_WORDS=($words); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
             _${{COMP_WORDS[0]}} ${{COMP_WORDS[0]}} ${{COMP_WORDS[COMP_CWORD]}} ${{COMP_WORDS[COMP_CWORD-1]}}
             echo ${{COMPREPLY[*]}}
         done"
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].ends_with(" ronde") && lines[1].ends_with(" horovodrun"), "{stdout}");
    assert_eq!(lines[2..], ["status", "--compare", "--num-proc"]);
    for shell in ["zsh", "fish"] {
        assert!(run(&format!("completion {shell}")).contains("num-proc"), "{shell}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one flat list of errors and their texts")]
fn usage_errors() {
    let lines = [
        "bnech",
        "train",
        "--nonsense",
        "bench --collectives allreduce",
        "bench -np 0",
        "bench -np 2,two",
        "bench --collective gather",
        "bench --sizes 4,1X",
        "bench --dtype float33",
        "bench --compare nccl",
        "bench --transport udp",
        "bench --rounds 0",
        "bench --seconds -1",
        "bench -np 4 -H localhost:2",
        "bench --calibrate a --json b",
    ];
    let texts: Vec<_> = lines
        .iter()
        .map(|line| format!("$ {}\n{}\n", format!("ronde {line}").trim_end(), run(line)))
        .collect();
    insta::assert_snapshot!(texts.join("\n"), @r"
    $ ronde bnech
    error: there is no command `bnech`

    hint: did you mean `ronde bench`?
    (2)

    $ ronde train
    error: there is no command `train`

    hint: `ronde --help` lists all commands
    (2)

    $ ronde --nonsense
    error: there is no option `--nonsense`

    hint: `ronde --help` lists all options
    (2)

    $ ronde bench --collectives allreduce
    error: there is no option `--collectives`

    hint: did you mean `--collective`?
    (2)

    $ ronde bench -np 0
    error: invalid value `0` for `--num-proc <N>`: it must be a positive integer

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench -np 2,two
    error: invalid value `two` for `--num-proc <N>`: it must be a positive integer

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --collective gather
    error: invalid value `gather` for `--collective <NAMES>`: it must be one of allreduce, allgather, broadcast, alltoall, reducescatter, barrier, resnet50, bert, or all

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --sizes 4,1X
    error: invalid value `1X` for `--sizes <BYTES>`: it must be a number of bytes from 1 to 16G, as in `4`, `16K` or `64M`

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --dtype float33
    error: invalid value `float33` for `--dtype <TYPE>`: it must be an element type such as float32, float64, float16, bfloat16, int32 or uint8

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --compare nccl
    error: invalid value `nccl` for `--compare <PEERS>`
      [possible values: gloo, mpi]

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --transport udp
    error: invalid value `udp` for `--transport <TRANSPORTS>`
      [possible values: auto, tcp]

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --rounds 0
    error: invalid value `0` for `--rounds <N>`: it must be a positive integer

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench --seconds -1
    error: invalid value `-1` for `--seconds <S>`: it must be a number of seconds up to 3600

    hint: `ronde bench --help` lists all options
    (2)

    $ ronde bench -np 4 -H localhost:2
    error: Requested more processes (4) than there are available slots (2)

    hint: give the hosts more slots, or start fewer processes
    (2)

    $ ronde bench --calibrate a --json b
    error: the argument `--calibrate <FILE>` cannot be used with `--json <FILE>`

    Usage: ronde bench [-np <N>] [OPTIONS]

    hint: `ronde bench --help` lists all options
    (2)
    ");
}
