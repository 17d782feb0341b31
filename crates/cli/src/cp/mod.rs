//! `ronde cp`: copies files and folders to hosts, through the agents that a job would use.

mod arguments;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use arguments::Arguments;
use ronde_control::counted;
use ronde_control::doctor::{Finding, Severity};
use ronde_launch::copy::{CopyPlan, CopyResults, CopySummary, SourceEntry, copy_run};
use ronde_launch::reach::HostProblem;

use crate::doctor::finding_text;
use crate::horovodrun::{about_launch, print_stdout, report_error};
use crate::messages::USAGE;

/// How often progress is shown.
const INTERVAL: Duration = Duration::from_millis(200);

/// Runs the command and returns its exit code; `program` is this executable.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let plan = match arguments.plan(program) {
        Ok(plan) => plan,
        Err(error) => return report_error(&error, USAGE),
    };
    let start = Instant::now();
    let done = Arc::new(AtomicU64::new(0));
    let results = with_progress(&plan, &done, || copy_run(&plan, &done));
    match results {
        Ok(results) => {
            let is_well = results.iter().all(Result::is_ok);
            let text = report(&plan, &results, start.elapsed());
            print_stdout(&text).max(u8::from(!is_well))
        }
        Err(error) => report_error(&about_launch(&error), 1),
    }
}

/// Shows on a terminal how far the work is.
fn with_progress<T>(plan: &CopyPlan, done: &Arc<AtomicU64>, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let total: u64 = plan.sources.iter().map(SourceEntry::size).sum();
    let total = total * plan.hosts.len() as u64;
    let is_over = Arc::new(AtomicBool::new(false));
    let (watched, stop) = (done.clone(), is_over.clone());
    let hosts = counted(plan.hosts.len(), "host");
    let display = thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let (now, all) = (watched.load(Ordering::Relaxed), total.max(1));
            let percent = now.min(all) * 100 / all;
            // If standard error is closed, nobody watches.
            let _ =
                write!(std::io::stderr(), "\r\x1b[K{percent} % of {} to {hosts}", amount(total));
            thread::park_timeout(INTERVAL);
        }
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    });
    let result = work();
    is_over.store(true, Ordering::Relaxed);
    display.thread().unpark();
    let _ = display.join();
    result
}

fn report(plan: &CopyPlan, results: &CopyResults, taken: Duration) -> String {
    let line = |((host, _), result): (&(String, _), &Result<CopySummary, HostProblem>)| match result
    {
        Ok(summary) => format!("{host}: {}\n", in_words(summary)),
        Err(HostProblem { reason, hint }) => finding_text(&Finding {
            severity: Severity::Error,
            hosts: vec![host.clone()],
            what: reason.clone(),
            fix: hint.clone(),
        }),
    };
    let lines: String = plan.hosts.iter().zip(results).map(line).collect();
    format!("{lines}\n{} in {:.1} s\n", counted(plan.hosts.len(), "host"), taken.as_secs_f64())
}

fn in_words(summary: &CopySummary) -> String {
    let CopySummary { files, bytes, kept } = *summary;
    let kept = match kept {
        0 => String::new(),
        kept => format!(", {} there already", counted(kept as usize, "file")),
    };
    format!("copied {}, {}{kept}", counted(files as usize, "file"), amount(bytes))
}

fn amount(bytes: u64) -> String {
    match bytes {
        ..0x400 => counted(bytes as usize, "byte"),
        0x400..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_fitting_units() {
        let shown = [0, 1, 2048, 5 << 20, 3 << 30].map(amount);
        assert_eq!(shown, ["0 bytes", "1 byte", "2.0 KiB", "5.0 MiB", "3.0 GiB"]);
        let summary = CopySummary { files: 1, bytes: 10, kept: 2 };
        assert_eq!(in_words(&summary), "copied 1 file, 10 bytes, 2 files there already");
    }
}
