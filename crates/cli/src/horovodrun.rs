//! `horovodrun`: starts a job, as Horovod's launcher of that name does.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use ronde_control::{VERSION, settings};
use ronde_launch::hosts::{self, Host, HostsError};
use ronde_launch::interfaces::{self, InterfaceError};
use ronde_launch::{Job, LaunchError};
use tracing_subscriber::EnvFilter;

use crate::arguments;
use crate::autotune::Autotune;
use crate::build_report;
use crate::words::{Mistake, USAGE};

/// Runs a script on several processes that train one model together.
#[derive(Debug, Parser)]
#[command(
    name = "horovodrun",
    override_usage = "horovodrun -np <N> [-H <HOSTS>] [OPTIONS] <COMMAND> [ARGUMENTS]...",
    disable_version_flag = true,
    args_override_self = true,
    after_help = "Everything from the first word that is no option is the command and stays as it \
                  is.\n\nExample:\n  horovodrun -np 4 -H localhost:4 python train.py"
)]
struct Arguments {
    /// How many processes to start; also written `-np <N>`
    #[arg(long, value_name = "N", value_parser = number_of_processes)]
    num_proc: Option<u32>,

    /// Hosts and how many processes each takes, as in `node-a:4,node-b:4` [default: localhost:<N>]
    #[arg(short = 'H', long, value_name = "HOSTS")]
    hosts: Option<String>,

    /// Interfaces on which the ranks meet, best first, as in `eth0,eth1` [default: loopback]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    network_interfaces: Vec<String>,

    /// Write a timeline of all tensors to this file, for Perfetto or `chrome://tracing`
    #[arg(long, value_name = "FILE")]
    timeline_filename: Option<OsString>,

    /// Show in the timeline where each bucket begins
    #[arg(long, overrides_with = "no_timeline_mark_cycles")]
    timeline_mark_cycles: bool,

    /// Do not
    #[arg(long, hide = true, overrides_with = "timeline_mark_cycles")]
    no_timeline_mark_cycles: bool,

    #[command(flatten)]
    autotune: Autotune,

    /// Tell each step on standard error
    #[arg(long)]
    verbose: bool,

    /// Show what this installation can do; also written `-cb`
    #[arg(long)]
    check_build: bool,

    /// Show the version
    #[arg(short = 'v', long)]
    version: bool,

    /// What every process runs
    #[arg(value_name = "COMMAND", last = true, hide = true)]
    command: Vec<OsString>,
}

/// The command: `arguments` are those behind the name, `program` is the executable that can also play
/// the hidden parts. Gives the exit code.
pub fn horovodrun_main(program: &Path, arguments: Vec<OsString>) -> u8 {
    if let Some(code) = hidden_part(program, &arguments) {
        return code;
    }
    let parsed = arguments::for_clap(arguments).map_err(|mistake| complain(&mistake, USAGE));
    let parsed = match parsed {
        Ok(arguments) => parse(arguments),
        Err(code) => return code,
    };
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
    if arguments.version {
        return tell(&format!("{VERSION}\n"));
    }
    if arguments.check_build {
        let python_path = std::env::var_os("PYTHONPATH");
        let report = build_report::report(program, python_path.as_deref());
        return tell(&(if arguments.verbose { format!("\n{report}") } else { report }));
    }
    match job(program, arguments) {
        Ok(job) => run(&job),
        Err(mistake) => complain(&mistake, USAGE),
    }
}

pub(crate) fn hidden_part(program: &Path, arguments: &[OsString]) -> Option<u8> {
    let first = arguments.first()?.to_str()?;
    if first.starts_with("__ronde-") {
        log_to_stderr("warn");
    }
    ronde_launch::dispatch(program, arguments)
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, u8> {
    let name = std::iter::once(OsString::from("horovodrun"));
    Arguments::try_parse_from(name.chain(arguments)).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => tell(&error.render().to_string()),
        ErrorKind::UnknownArgument => complain(&unknown(&error), USAGE),
        _ => {
            let text = error.render().to_string();
            let hint = "hint: `horovodrun --help` lists all options";
            let text = text.replace("For more information, try '--help'.", hint).replace('\'', "`");
            let _ = io::stderr().write_all(text.as_bytes());
            USAGE
        }
    })
}

fn unknown(error: &clap::Error) -> Mistake {
    let name = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let hint = match error.get(ContextKind::SuggestedArg) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => "`horovodrun --help` lists all options".into(),
    };
    Mistake::new(format!("there is no option `{}`", name.unwrap_or_default()), hint)
}

fn job(program: &Path, arguments: Arguments) -> Result<Job, Mistake> {
    let example = "say for example `horovodrun -np 2 python train.py`";
    let mut missing = Mistake { errors: Vec::new(), hint: example.into() };
    if arguments.num_proc.is_none() {
        missing.errors.push("the number of processes is missing: `-np <N>`".into());
    }
    if arguments.command.is_empty() {
        missing.errors.push("the command to run is missing".into());
    }
    let (Some(count), [_, ..]) = (arguments.num_proc, arguments.command.as_slice()) else {
        return Err(missing);
    };
    let hosts = match &arguments.hosts {
        Some(text) => hosts::parse(text).map_err(|error| about_hosts(&error))?,
        None => vec![Host { name: "localhost".into(), slots: count }],
    };
    hosts::require_local(&hosts, &hosts::hostname()).map_err(|error| about_hosts(&error))?;
    let slots = hosts::assign(&hosts, count).map_err(|error| about_hosts(&error))?;
    let cwd = std::env::current_dir().map_err(|error| {
        Mistake::new(
            format!("the current directory cannot be used: {error}"),
            "change to a directory that exists",
        )
    })?;
    Ok(Job {
        listen: listen(&arguments.network_interfaces)?,
        env: environment(&arguments),
        command: arguments.command,
        slots,
        cwd,
        program: program.to_owned(),
        join_timeout: join_timeout()?,
    })
}

fn listen(interfaces: &[String]) -> Result<IpAddr, Mistake> {
    if interfaces.is_empty() {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    interfaces::address_of(interfaces).map_err(|error| {
        let hint = match &error {
            InterfaceError::NoAddress { known, .. } => {
                format!("this machine has {}", known.join(", "))
            }
            InterfaceError::Unknown(_) => "leave `--network-interfaces` out".into(),
        };
        Mistake::new(error, hint)
    })
}

/// This process's environment, with what the flags say in front of what was there.
fn environment(arguments: &Arguments) -> Vec<(OsString, OsString)> {
    let Arguments { timeline_filename, timeline_mark_cycles, no_timeline_mark_cycles, .. } =
        arguments;
    let mut set: Vec<(OsString, OsString)> = arguments.autotune.variables();
    if let Some(file) = timeline_filename {
        set.push(("HOROVOD_TIMELINE".into(), file.clone()));
        if *timeline_mark_cycles || *no_timeline_mark_cycles {
            let value = if *timeline_mark_cycles { "1" } else { "0" };
            set.push(("HOROVOD_TIMELINE_MARK_CYCLES".into(), value.into()));
        }
    }
    let is_set = |name: &OsString| set.iter().any(|(key, _)| key == name);
    let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_set(name)).collect();
    all.extend(set);
    all
}

/// The launcher reads this one setting; the others are the ranks' business.
pub(crate) fn join_timeout() -> Result<std::time::Duration, Mistake> {
    let look_up = |name: &str| match name {
        "RONDE_JOIN_TIMEOUT_SECONDS" => std::env::var(name).ok(),
        _ => None,
    };
    match settings::read(look_up) {
        Ok((settings, _)) => Ok(settings.join_timeout),
        Err(error) => Err(Mistake::new(error, "unset it, or set it to a number of seconds")),
    }
}

fn run(job: &Job) -> u8 {
    match ronde_launch::run(job) {
        Ok(outcome) => {
            if let Some(text) = outcome.text {
                let _ = io::stderr().write_all(text.as_bytes());
            }
            outcome.code
        }
        Err(error) => complain(&about_launch(&error), 1),
    }
}

pub(crate) fn about_hosts(error: &HostsError) -> Mistake {
    let hint = match error {
        HostsError::Invalid(_) | HostsError::NoSlot(_) => {
            "write each host with its number of slots, as in `-H localhost:4`"
        }
        HostsError::TooFew { .. } => "give the hosts more slots, or start fewer processes",
        HostsError::Elsewhere(_) => "use `localhost`, or leave `-H` out",
    };
    Mistake::new(error, hint)
}

pub(crate) fn about_launch(error: &LaunchError) -> Mistake {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    Mistake::new(
        format!("{error}{}", source.unwrap_or_default()),
        "check the limits of this machine (`ulimit -a`) and run it again with `--verbose`",
    )
}

pub(crate) fn number_of_processes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("it must be a whole number from 1".into()),
    }
}

pub(crate) fn log_to_stderr(filter: &str) {
    // Somebody else's subscriber, as in a test, is as good.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .try_init();
}

pub(crate) fn complain(mistake: &Mistake, code: u8) -> u8 {
    let _ = writeln!(io::stderr(), "{mistake}");
    code
}

pub(crate) fn tell(text: &str) -> u8 {
    let _ = io::stdout().write_all(text.as_bytes());
    0
}
