//! The user's script that says which hosts there are, run again and again.
//!
//! Whatever the script does, the job goes on with what it knew: the driver is told when the hosts
//! change, and when what is wrong with the script does. It runs in a session of its own, which ends
//! with the launcher, and is killed when it takes longer than its limit.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::discovery::parse;
use crate::driver::{DriverInput, Job};
use crate::hidden;
use crate::hosts::{self, Host};
use crate::reach::{ReachMethod, ssh};
use crate::supervise::ended;

/// More than this no script has to say.
const LONGEST: u64 = 4 << 20;

/// Bytes of what a script complains about that are quoted.
const QUOTE: usize = 400;

/// A script that names hosts.
#[derive(Clone, Debug)]
pub struct Script {
    /// A file, or a line for the shell.
    pub command: OsString,
    /// The slots of a host for which it names no number.
    pub slots: Option<u32>,
    /// The time from its end to its next start.
    pub interval: Duration,
    /// How long it may take.
    pub limit: Duration,
}

/// A script that is run until the driver ends.
pub(crate) struct Search {
    pub(crate) script: Script,
    pub(crate) ssh: ssh::SshOptions,
    pub(crate) job: Job,
    pub(crate) news: mpsc::Sender<DriverInput>,
}

impl Search {
    pub(crate) async fn run(self) {
        let mut methods = BTreeMap::new();
        let mut last = None;
        loop {
            let found = self.look().await;
            if last.as_ref() != Some(&found) {
                last = Some(found.clone());
                let found = match found {
                    Ok(hosts) => Ok(self.with_ways(hosts, &mut methods).await),
                    Err(why) => Err(why),
                };
                if self.news.send(DriverInput::Hosts(found)).await.is_err() {
                    return;
                }
            }
            sleep(self.script.interval).await;
        }
    }

    async fn look(&self) -> Result<Vec<Host>, String> {
        let name = self.script.command.display();
        let about = |what: String| format!("`{name}` {what}");
        let child = self.start().map_err(|error| about(format!("cannot be run: {error}")))?;
        let mut running = ScriptRun(child);
        let listening = listen(&mut running.0);
        let result = match timeout(self.script.limit, listening).await {
            Ok(result) => result,
            Err(_) => {
                let limit = self.script.limit.as_secs_f64();
                Err(format!("took longer than {limit} s and was killed"))
            }
        };
        drop(running);
        parse(&result.map_err(about)?, self.script.slots)
            .map_err(|mistakes| about(format!("printed an invalid list of hosts: {mistakes}")))
    }

    fn start(&self) -> std::io::Result<Child> {
        let file = self.job.cwd.join(&self.script.command);
        // A file is run as a shell would run it, even without a first line that says what it is for.
        let line: [OsString; 2] = match file.is_file() {
            true => ["\"$0\"".into(), file.into()],
            false => [self.script.command.clone(), "sh".into()],
        };
        Command::new(&self.job.program)
            .arg(hidden::SHIM)
            .arg(std::process::id().to_string())
            .args(["sh", "-c"])
            .args(line)
            .current_dir(&self.job.cwd)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// How to reach each host; the name service is asked once for each.
    async fn with_ways(
        &self,
        hosts: Vec<Host>,
        methods: &mut BTreeMap<(Option<String>, String), ReachMethod>,
    ) -> Vec<(Host, ReachMethod)> {
        let mut all = Vec::with_capacity(hosts.len());
        for host in hosts {
            let key = (host.user.clone(), host.name.clone());
            let method = match methods.get(&key) {
                Some(method) => method.clone(),
                None => {
                    let (asked, ssh) = (host.clone(), self.ssh.clone());
                    let method = move || hosts::method(&asked, &hosts::hostname(), &ssh);
                    // A look-up that panics is nobody's; the host is then tried by ssh.
                    let Ok(method) = tokio::task::spawn_blocking(method).await else { continue };
                    methods.insert(key, method.clone());
                    method
                }
            };
            all.push((host, method));
        }
        all
    }
}

/// What the script prints, if it ends well.
async fn listen(child: &mut Child) -> Result<String, String> {
    let (Some(mut output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("has no pipe".into());
    };
    let (said, complaints) = tokio::join!(read(&mut output), read(&mut errors));
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&said).into_owned()),
        false => Err(failed(status, &String::from_utf8_lossy(&complaints))),
    }
}

async fn read(pipe: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.take(LONGEST).read_to_end(&mut bytes).await;
    bytes
}

fn failed(status: ExitStatus, complaints: &str) -> String {
    let last = complaints.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last: String = last.unwrap_or_default().chars().take(QUOTE).collect();
    let how = ended(status);
    if last.is_empty() { how } else { format!("{how}: {last}") }
}

/// A script that runs, and all that it has started: it leads a group of its own, which ends with this.
struct ScriptRun(Child);

impl Drop for ScriptRun {
    fn drop(&mut self) {
        // While it has not been waited for, its number is its own.
        let pid = self.0.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.0.start_kill();
        }
    }
}
