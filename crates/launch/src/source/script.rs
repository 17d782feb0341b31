//! The user's script that lists the hosts, run again and again.
//!
//! Whatever the script does, the job continues with the hosts it knows. The driver is notified when
//! the hosts change, and when the script's error does. The script runs in its own session, which
//! ends with the launcher, and is killed when it exceeds its time limit.

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
use crate::reach::{ReachMethod, ReachOptions};
use crate::supervise::ended;

/// Bytes of output that are read; the rest is ignored.
const LONGEST: u64 = 4 << 20;

/// Characters of the script's last error line that are quoted.
const QUOTE: usize = 400;

/// A script that lists hosts.
#[derive(Clone, Debug)]
pub struct Script {
    /// A file, or a command line for the shell.
    pub command: OsString,
    /// Slots of a host that is listed without a number.
    pub slots: Option<u32>,
    /// Time from its end to its next start.
    pub interval: Duration,
    /// Time limit for one run.
    pub limit: Duration,
}

/// Runs a script repeatedly until the driver ends.
pub(crate) struct Search {
    pub(crate) script: Script,
    pub(crate) reach: ReachOptions,
    pub(crate) job: Job,
    pub(crate) news: mpsc::Sender<DriverInput>,
}

impl Search {
    pub(crate) async fn run(self) {
        let mut methods = BTreeMap::new();
        let mut last = None;
        loop {
            let found = self.run_once().await;
            if last.as_ref() != Some(&found) {
                last = Some(found.clone());
                let found = match found {
                    Ok(hosts) => Ok(self.with_methods(hosts, &mut methods).await),
                    Err(why) => Err(why),
                };
                if self.news.send(DriverInput::Hosts(found)).await.is_err() {
                    return;
                }
            }
            sleep(self.script.interval).await;
        }
    }

    async fn run_once(&self) -> Result<Vec<Host>, String> {
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
            .map_err(|errors| about(format!("printed an invalid list of hosts: {errors}")))
    }

    fn start(&self) -> std::io::Result<Child> {
        let file = self.job.cwd.join(&self.script.command);
        // A file is run as a shell would run it, even without a `#!` line.
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

    /// Adds how to reach each host; that is found out once per host.
    async fn with_methods(
        &self,
        hosts: Vec<Host>,
        methods: &mut BTreeMap<(Option<String>, String), ReachMethod>,
    ) -> Vec<(Host, ReachMethod)> {
        let key = |host: &Host| (host.user.clone(), host.name.clone());
        let new: Vec<Host> =
            hosts.iter().filter(|host| !methods.contains_key(&key(host))).cloned().collect();
        if !new.is_empty() {
            let reach = self.reach.clone();
            let finding = move || hosts::reached(new, &hosts::hostname(), &reach);
            // If the look-up panics, the new hosts are left out this time.
            let found = tokio::task::spawn_blocking(finding).await.unwrap_or_default();
            methods.extend(found.into_iter().map(|(host, method)| (key(&host), method)));
        }
        let known = |host: Host| methods.get(&key(&host)).cloned().map(|method| (host, method));
        hosts.into_iter().filter_map(known).collect()
    }
}

/// The script's output, if it succeeds.
async fn listen(child: &mut Child) -> Result<String, String> {
    let (Some(mut output), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("has no pipe".into());
    };
    let (text, errors_text) = tokio::join!(read(&mut output), read(&mut errors));
    let status = child.wait().await.map_err(|error| format!("cannot be waited for: {error}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&text).into_owned()),
        false => Err(failed(status, &String::from_utf8_lossy(&errors_text))),
    }
}

async fn read(pipe: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.take(LONGEST).read_to_end(&mut bytes).await;
    bytes
}

fn failed(status: ExitStatus, errors_text: &str) -> String {
    let last = errors_text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last: String = last.unwrap_or_default().chars().take(QUOTE).collect();
    let how = ended(status);
    if last.is_empty() { how } else { format!("{how}: {last}") }
}

/// A running script and everything it started: it leads its own process group, which is killed on
/// drop.
struct ScriptRun(Child);

impl Drop for ScriptRun {
    fn drop(&mut self) {
        // Until the child is waited for, its process ID cannot be reused.
        let pid = self.0.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.0.start_kill();
        }
    }
}
