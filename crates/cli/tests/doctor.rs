//! Texts of `ronde doctor` and its findings about this machine; the lab tests cover other hosts.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

fn doctor(line: &str, path: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ronde"));
    command.arg("doctor").args(line.split_whitespace());
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.output().unwrap()
}

fn run(line: &str) -> String {
    let Output { status, stdout, stderr } = doctor(line, None);
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    format!("{stdout}{stderr}({})", status.code().unwrap())
}

fn document(line: &str, path: Option<&Path>) -> Value {
    let output = doctor(&format!("--json {line}"), path);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = if all["well"].as_bool().unwrap() { 0 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{all}");
    all
}

#[test]
fn help() {
    insta::assert_snapshot!(run("--help"), @r"
    Check the hosts of a job and the network between them

    Usage: ronde doctor [-H <HOSTS>] [OPTIONS]

    Options:
      -H, --hosts <HOSTS>               Hosts and the number of ranks on each (1 if omitted), as in
                                        `node-a:4,node-b` [default: this machine]
          --hostfile <FILE>             A hostfile, with one host per line: `node-a slots=4`
      -p, --ssh-port <PORT>             SSH port on the other hosts [default: as configured for ssh]
      -i, --ssh-identity-file <FILE>    Private key for logging in [default: as configured for ssh]
          --ssh-strict                  Refuse hosts with unknown host keys [default: accept them on
                                        first use]
          --reach <WAY>                 How to reach other hosts: `agent` (standing agents, `ronde agent
                                        --listen`), `ssh`, or `auto`: an agent where one answers that
                                        holds your key, otherwise ssh [default: auto]
          --agent-port <PORT>           Port of the standing agents [default: 29508]
          --agent-key-file <FILE>       File with the key of the standing agents; must be readable only
                                        by you [default: RONDE_AGENT_KEY, or ~/.config/ronde/agent.key]
          --rsh <COMMAND>               Reach other hosts with this command instead of ssh, as in
                                        `docker exec -i {host} {command}`; it must connect its standard
                                        input and output to that command's
          --network-interfaces <NAMES>  Network interfaces to use between hosts, as in `eth0,ib0`; each
                                        host uses the ones it has; may be repeated [default: any that
                                        work]
          --port-range <LOW-HIGH>       Ports to listen on, as in `29600-29700`, for firewalls and
                                        published ports of containers; several ranges are separated by
                                        commas [default: chosen by the system]
          --start-timeout <SECONDS>     How long to wait for each host to respond, in seconds [default:
                                        3]
          --json                        Print JSON instead of tables
          --verbose                     Log each step to standard error
      -h, --help                        Print help

    Exits with 0 if a job on these hosts would start, and with 1 otherwise.

    Examples:
      ronde doctor
      ronde doctor -H node-a:4,node-b:4 -p 12345
      ronde doctor --hostfile hosts --json
    (0)
    ");
}

#[test]
fn usage_errors() {
    let lines = [
        "--hots a",
        "-H a:x",
        "-H a --hostfile b",
        "--hostfile /no/such/file",
        "--start-timeout soon",
        "train.py",
    ];
    let texts: Vec<_> =
        lines.iter().map(|line| format!("$ ronde doctor {line}\n{}\n", run(line))).collect();
    insta::assert_snapshot!(texts.join("\n"), @r"
    $ ronde doctor --hots a
    error: there is no option `--hots`

    hint: did you mean `--hosts`?
    (2)

    $ ronde doctor -H a:x
    error: Invalid host input, please make sure it has format as : worker-0:2,worker-1:2. (in `a:x`)

    hint: write each host with its number of slots, as in `-H localhost:4`
    (2)

    $ ronde doctor -H a --hostfile b
    error: the argument `--hosts <HOSTS>` cannot be used with `--hostfile <FILE>`

    Usage: ronde doctor [-H <HOSTS>] [OPTIONS]

    hint: `ronde doctor --help` lists all options
    (2)

    $ ronde doctor --hostfile /no/such/file
    error: the hostfile `/no/such/file` cannot be read: No such file or directory (os error 2)

    hint: check the spelling and the current directory
    (2)

    $ ronde doctor --start-timeout soon
    error: invalid value `soon` for `--start-timeout <SECONDS>`: it must be a non-negative integer

    hint: `ronde doctor --help` lists all options
    (2)

    $ ronde doctor train.py
    error: there is no option `train.py`

    hint: `ronde doctor --help` lists all options
    (2)
    ");
}

#[test]
fn this_machine_and_its_programs_are_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    script("python3", "echo executable /opt/python3; echo python 3.13.1; echo torch 2.9.0+cpu");
    script("nvidia-smi", "echo '570.1, 143771, 143000, NVIDIA H200'");
    let all = document("", Some(folder.path()));
    assert_eq!(all["paths"], Value::Array(vec![]));
    let host = &all["hosts"][0];
    assert_eq!((&host["name"], &host["trouble"]), (&"localhost".into(), &Value::Null));
    assert_eq!(host["ronde"], all["ronde"]);
    let facts = &host["facts"];
    assert_eq!(facts["python"]["version"], "3.13.1");
    assert_eq!(facts["python"]["executable"], "/opt/python3");
    assert_eq!(facts["python"]["packages"]["torch"], "2.9.0+cpu");
    assert_eq!(facts["gpus"]["devices"][0]["name"], "NVIDIA H200");
    assert_eq!(facts["gpus"]["devices"][0]["free_bytes"], 143_000_u64 << 20);
    assert_eq!(facts["gpus"]["driver"], "570.1");
    for number in ["/cpus/usable", "/cpus/online", "/memory/total_bytes", "/limits/files/soft"] {
        assert!(facts.pointer(number).unwrap().as_u64().unwrap() > 0, "{number} in {facts}");
    }
    assert!(host["clock"]["ahead_micros"].as_i64().unwrap().abs() < 1_000_000, "{host}");
}

#[test]
fn missing_failing_and_hanging_programs_are_reported_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvidia-smi");
    std::fs::write(&path, "#!/bin/sh\nexec /bin/sleep 60\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let start = Instant::now();
    let all = document("-H localhost:1000000", Some(folder.path()));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let findings = all["findings"].as_array().unwrap();
    let problems: Vec<&str> = findings.iter().map(|each| each["what"].as_str().unwrap()).collect();
    assert!(problems.contains(&"its Python does not run: `python3` was not found"), "{problems:?}");
    assert!(problems.contains(&"`nvidia-smi` fails there: took longer than 2.5 s"), "{problems:?}");
    assert!(problems.iter().any(|what| what.contains("has 1000000 slots")), "{problems:?}");
    for finding in findings {
        assert_eq!(finding["hosts"][0], "localhost");
        assert!(!finding["fix"].as_str().unwrap().is_empty());
    }
}
