//! Communicators between processes: they compute together, and a killed one leaves the others
//! hanging until they abort, unless the configuration makes it an error.
//!
//! The tests run their own executable for the second rank, with the name of the test that acts as
//! one.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::interface::*;

const VARIABLE: &str = "RONDE_STANDIN_TEST_ID";

struct Peer {
    child: Child,
    _input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts rank 1, which lives until it is killed or this object is dropped. Without an id it
    /// makes one, and prints it.
    fn start(id: Option<UniqueId>) -> Peer {
        let hex = id.map_or(String::new(), |id| to_hex(&id));
        let mut child = again("processes::a_peer")
            .env(VARIABLE, hex)
            .env("RONDE_STANDIN_GPU", "devices=2")
            .env("CUDA_VISIBLE_DEVICES", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a test can be started again");
        let input = child.stdin.take().expect("it is a pipe");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Peer { child, _input: input, lines: output.lines() }
    }

    /// Waits until rank 1 says a word, and returns what it says after it.
    fn wait_for(&mut self, word: &str) -> String {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        let found = lines.find_map(|line| Some(line.split_once(word)?.1.to_owned()));
        found.unwrap_or_else(|| panic!("the other rank has not said `{word}`"))
    }

    fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn to_hex(id: &UniqueId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> UniqueId {
    let byte = |index: usize| u8::from_str_radix(&hex[2 * index..2 * index + 2], 16);
    UniqueId(std::array::from_fn(|index| byte(index).expect("two hexadecimal digits")))
}

fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test knows its file"));
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

#[test]
fn two_processes_compute_together_and_a_death_hangs_until_the_abort() {
    let _turn = Turn::with("devices=2");
    let (rank, mut peer) = joined();
    let data = upload_floats(&[1.0, 2.0]);
    assert_eq!(rank.all_reduce(data, 2), 0);
    rank.synchronize();
    assert_eq!(download_floats(data, 2), [11.0, 22.0]);
    peer.wait_for("reduced");
    peer.kill();
    assert_eq!(rank.all_reduce(data, 2), 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!([cuStreamQuery(rank.stream), rank.status()], [NOT_READY, 0]);
    assert_eq!(ncclCommAbort(rank.communicator), 0);
    rank.synchronize();
}

#[test]
fn a_death_can_be_an_asynchronous_error() {
    let _turn = Turn::with("devices=2,peer-death=error");
    let (rank, mut peer) = joined();
    peer.kill();
    eventually("the error", || rank.status() == 6);
    let data = upload_floats(&[1.0, 2.0]);
    assert_eq!(rank.all_reduce(data, 2), 6);
    assert_eq!(ncclCommAbort(rank.communicator), 0);
}

#[test]
fn the_death_of_the_process_that_made_the_id_is_no_different() {
    let _turn = Turn::with("devices=2");
    enter(0);
    let mut peer = Peer::start(None);
    let id = from_hex(&peer.wait_for("id "));
    let rank = Rank::join(id, 0, 2);
    let data = upload_floats(&[1.0, 2.0]);
    assert_eq!(rank.all_reduce(data, 2), 0);
    rank.synchronize();
    peer.kill();
    assert_eq!(rank.all_reduce(data, 2), 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!([cuStreamQuery(rank.stream), rank.status()], [NOT_READY, 0]);
    assert_eq!(ncclCommAbort(rank.communicator), 0);
    rank.synchronize();
    // Nobody can join any more.
    let mut late = 0;
    assert_eq!(ncclCommInitRankConfig(&mut late, 2, id, 0, &NcclConfig::new(1)), 2);
}

#[test]
fn ranks_may_share_a_device_from_version_2_30_on_if_the_environment_says_so() {
    for (allowed, version, is_accepted) in
        [("1", 23007, true), ("1", 22809, false), ("0", 23007, false)]
    {
        let output = again("processes::ranks_on_one_device")
            .env(VARIABLE, "")
            .env("RONDE_STANDIN_GPU", format!("visible=all,nccl={version}"))
            .env("NCCL_MULTI_RANK_GPU_ENABLE", allowed)
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stdout);
        let answer = if is_accepted { "statuses [0, 0]" } else { "statuses [5, 5]" };
        assert!(words.contains(answer), "{allowed}, {version}: {words}");
    }
}

#[test]
fn a_mistake_in_the_environment_aborts_the_process() {
    let output = again("processes::an_initialization")
        .env(VARIABLE, "")
        .env("RONDE_STANDIN_GPU", "devices=2,colour=red")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("`colour=red` is not understood"), "{words}");
}

fn joined() -> (Rank, Peer) {
    enter(0);
    let id = unique_id();
    let peer = Peer::start(Some(id));
    (Rank::join(id, 0, 2), peer)
}

#[test]
#[ignore = "it is the rank process that other tests start"]
fn a_peer() {
    let Ok(hex) = std::env::var(VARIABLE) else { return };
    assert_eq!(cuInit(0), 0);
    let id = if hex.is_empty() { unique_id() } else { from_hex(&hex) };
    writeln!(std::io::stdout(), "id {}", to_hex(&id)).unwrap();
    enter(0);
    let rank = Rank::join(id, 1, 2);
    let data = upload_floats(&[10.0, 20.0]);
    assert_eq!(rank.all_reduce(data, 2), 0);
    rank.synchronize();
    assert_eq!(download_floats(data, 2), [11.0, 22.0]);
    writeln!(std::io::stdout(), "reduced").unwrap();
    // Ends with the process that started it, if nobody kills it before.
    let _ = std::io::stdin().lines().next();
}

#[test]
#[ignore = "it is a process that another test starts"]
fn ranks_on_one_device() {
    if std::env::var(VARIABLE).is_err() {
        return;
    }
    assert_eq!(cuInit(0), 0);
    enter(0);
    let (id, config) = (unique_id(), NcclConfig::new(0));
    let communicators = [0, 1].map(|rank| {
        let mut communicator = 0;
        assert_eq!(ncclCommInitRankConfig(&mut communicator, 2, id, rank, &config), IN_PROGRESS);
        communicator
    });
    let statuses = communicators.map(|communicator| {
        eventually("the set-up", || status(communicator) != IN_PROGRESS);
        status(communicator)
    });
    writeln!(std::io::stdout(), "statuses {statuses:?}").unwrap();
}

#[test]
#[ignore = "it is a process that another test starts"]
fn an_initialization() {
    if std::env::var(VARIABLE).is_ok() {
        cuInit(0);
    }
}
