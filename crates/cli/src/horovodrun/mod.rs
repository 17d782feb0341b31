//! `horovodrun`: starts a job, like Horovod's command of that name.

mod hand_over;
mod standing;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use clap::builder::StyledStr;
use clap::error::ErrorKind;
use ronde_control::event::HostSourceKind;
use ronde_control::job::JobSpec;
use ronde_control::settings::{HOROVOD_LOG_LEVEL, Launch, RONDE_AGENT_KEY};
use ronde_control::{VERSION, printable};
use ronde_launch::delegate::jsrun;
use ronde_launch::hosts::{self, Host, HostsError, Slot};
use ronde_launch::interfaces;
use ronde_launch::logs::Times;
use ronde_launch::private::PrivateDirs;
use ronde_launch::reach::HostProblem;
use ronde_launch::reach::ReachMethod;
use ronde_launch::source::HostSource;
use ronde_launch::{
    Job, JobOutcome, LaunchError, OutputOptions, ScreenLogWriter, caller, hostfile,
};
use tracing_subscriber::EnvFilter;

use crate::agents::Agents;
use crate::arguments;
use crate::build_report;
use crate::config;
use crate::elastic::{Elastic, HostList};
use crate::files;
use crate::flags;
use crate::messages::{USAGE, UserError, both, print_stderr};
use crate::mpi::{self, MpiOptions, OtherLauncher};
use crate::processes::{CountBasis, Processes};
use crate::python;
use crate::reach::Reach;
use crate::screen::ScreenArguments;
use crate::script;
use crate::settings::{self, Rank0Files};
use crate::tunables::Tunables;

/// Run a script on several processes that train one model together.
#[derive(Debug, Parser)]
#[command(
    name = "horovodrun",
    override_usage = "horovodrun -np <N> [-H <HOSTS>] [OPTIONS] <COMMAND> [ARGUMENTS]...",
    disable_version_flag = true,
    args_override_self = true,
    after_help = "Everything after the options is the command, passed on unchanged.\n\nExample:\n  \
                  horovodrun -np 4 -H localhost:4 python train.py"
)]
pub(crate) struct Arguments {
    num_proc: Option<Processes>,
    hosts: Option<String>,
    #[arg(conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,
    network_interfaces: Vec<String>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    mpi: MpiOptions,
    start_timeout: Option<u64>,
    gpus_per_rank: Option<u32>,
    workdir: Option<PathBuf>,
    output_filename: Option<PathBuf>,
    event_log: Option<PathBuf>,
    prefix_output_with_timestamp: bool,
    #[command(flatten)]
    screen: ScreenArguments,
    config_file: Option<PathBuf>,
    #[command(flatten)]
    tunables: Tunables,
    verbose: bool,
    check_build: bool,
    version: bool,
    #[command(flatten)]
    elastic: Elastic,
    #[command(flatten)]
    agents: Agents,

    /// The hosts with standing agents that `HOROVOD_HOSTNAME` names, once they have answered
    #[arg(skip)]
    standing: Option<Vec<(Host, ReachMethod)>>,

    /// The command that every process runs
    #[arg(value_name = "COMMAND", last = true, hide = true)]
    command: Vec<OsString>,
}

/// Runs `horovodrun` and returns its exit code. `arguments` do not include the name; `program` is
/// this executable, which also serves as agent and other internal processes.
pub fn horovodrun_main(program: &Path, mut arguments: Vec<OsString>) -> u8 {
    let is_first = |word: &str| arguments.first().is_some_and(|first| first == word);
    let inviting = is_first(INVITING);
    let called = inviting || is_first(CALLED);
    if is_first(python::TABLE) {
        return print_stdout(&python::table());
    } else if is_first(python::PARSE) {
        arguments.remove(0);
        return parse_for_python(arguments);
    } else if called {
        arguments.remove(0);
    } else if let Some(code) = hidden_part(program, &arguments) {
        return code;
    }
    let parsed = read(arguments).map_err(|error| report_error(&error, USAGE));
    let parsed = parsed.and_then(|(line, set)| Ok((parse(line.for_clap())?, set)));
    let (mut arguments, set) = match parsed {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    arguments.agents.are_callers = inviting;
    if let Err(error) = name_interpreter(program, &mut arguments) {
        return report_error(&error, USAGE);
    }
    log_to_stderr(log_filter(&arguments, &set));
    if arguments.version {
        return print_stdout(&format!("{VERSION}\n"));
    }
    if arguments.check_build {
        return print_stdout(&check_build(program, &arguments));
    }
    let result = match arguments.mpi.other() {
        Some(other) if arguments.elastic.is_wanted() => Err(mpi::not_elastic(other)),
        Some(other) if arguments.agents.are_wanted() => Err(mpi::no_agents(other)),
        Some(other) if called => match hand_over::delegated(program, &arguments, other, set) {
            Ok(job) => return report(ronde_launch::run_delegated(&job), ReportTo::Caller),
            Err(error) => Err(error),
        },
        Some(other) => Err(hand_over::hand_over(&arguments, other, set)),
        None => job(program, arguments, set),
    };
    match if called { result.and_then(with_function) } else { result } {
        Ok(job) => run(&job),
        Err(error) => report_error(&error, USAGE),
    }
}

/// What this installation supports; with `--verbose`, after a blank line as in Horovod, and followed
/// by what is known about GPUs.
fn check_build(program: &Path, arguments: &Arguments) -> String {
    let python_path = std::env::var_os("PYTHONPATH");
    let gpus = ronde_launch::doctor::gpus(program).unwrap_or_default();
    let report = build_report::report(program, python_path.as_deref(), &gpus);
    match arguments.verbose {
        true => {
            format!("\n{report}{}", build_report::details(program, python_path.as_deref(), &gpus))
        }
        false => report,
    }
}

/// Adds the interpreter to a script or module. Without `-np`, such a command runs in one process,
/// as with `torchrun`, or in one per slot if hosts are named.
fn name_interpreter(program: &Path, arguments: &mut Arguments) -> Result<(), UserError> {
    let command = std::mem::take(&mut arguments.command);
    let length = command.len();
    arguments.command = script::with_interpreter(program, command)?;
    let is_script = arguments.command.len() > length;
    if is_script && arguments.num_proc.is_none() && !arguments.elastic.is_wanted() {
        let has_hosts = arguments.hosts.is_some() || arguments.hostfile.is_some();
        arguments.num_proc = Some(match has_hosts {
            true => Processes::Auto,
            false => {
                print_stderr(ONE_PROCESS);
                Processes::Number(1)
            }
        });
    }
    Ok(())
}

const ONE_PROCESS: &str = "note: starting 1 process because `-np` was not given; `-np \
                           auto` starts one per GPU, or one per core if there is no GPU";

/// The first argument if `horovod.run` starts this command; users never type it.
const CALLED: &str = "__ronde-called";

/// The same, for a job whose agents the caller starts: it gets their invitation.
const INVITING: &str = "__ronde-inviting";

fn with_function(job: Job) -> Result<Job, UserError> {
    Ok(Job { function: Some(read_function()?), ..job })
}

fn read_function() -> Result<Arc<[u8]>, UserError> {
    let function = caller::read_function(&mut io::stdin().lock()).map_err(|error| {
        UserError::new(format!("received no function: {error}"), "call `horovod.run` from Python")
    })?;
    Ok(function.into())
}

pub(crate) fn hidden_part(program: &Path, arguments: &[OsString]) -> Option<u8> {
    let first = arguments.first()?.to_str()?;
    if first.starts_with("__ronde-") {
        log_to_stderr("warn");
    }
    ronde_launch::dispatch(program, arguments)
}

/// Environment variables and their values.
pub(crate) type EnvVars = Vec<(OsString, OsString)>;

/// Parses a command line and prints it as JSON; handles help, version and errors as usual.
fn parse_for_python(arguments: Vec<OsString>) -> u8 {
    let read = read(arguments).and_then(|(line, _)| Ok((python::parsed(&line)?, line)));
    let (parsed, line) = match read {
        Ok(read) => read,
        Err(error) => return report_error(&error, USAGE),
    };
    let arguments = match parse(line.for_clap()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let idle = arguments.check_build || arguments.elastic.is_wanted();
    match arguments {
        Arguments { version: true, .. } => print_stdout(&format!("{VERSION}\n")),
        Arguments { num_proc: None, .. } if !idle => {
            report_error(&UserError::new(NO_NUMBER, EXAMPLE), USAGE)
        }
        _ => print_stdout(&parsed),
    }
}

/// The command line, with the options of the configuration file first, and the variables that both
/// set for the ranks.
fn read(arguments: Vec<OsString>) -> Result<(arguments::CommandLine, EnvVars), UserError> {
    let mut line = arguments::read(arguments)?;
    let path = line.value("--config-file").map(PathBuf::from);
    let file = path.map(|path| from_file(&path)).transpose();
    let file = file.map(|options| line.begin_with(options.unwrap_or_default()));
    match both(file, line.variables()) {
        Ok(((), variables)) => Ok((line, variables)),
        Err(error) => Err(match settings::check(&Vec::new(), Rank0Files::Elsewhere) {
            Ok(_) => error,
            Err(others) => error.and(others),
        }),
    }
}

/// The options of a configuration file.
fn from_file(path: &Path) -> Result<Vec<arguments::GivenOption>, UserError> {
    let text = files::read("configuration file", path)?;
    config::read(&path.to_string_lossy(), &text)
}

fn log_filter(arguments: &Arguments, set: &EnvVars) -> &'static str {
    let level = set.iter().find(|(name, _)| name == HOROVOD_LOG_LEVEL.name);
    match level.and_then(|(_, value)| value.to_str()) {
        Some("TRACE") => "ronde_launch=trace",
        Some("DEBUG") => "ronde_launch=debug",
        _ if arguments.verbose => "ronde_launch=debug",
        Some("INFO") => "ronde_launch=info",
        Some("ERROR" | "FATAL") => "error",
        _ => "warn",
    }
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, u8> {
    flags::parse(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => show_help(&error.render()),
        _ => {
            let text = error.render().to_string();
            let hint = "hint: `horovodrun --help` lists all options";
            let text = text.replace("For more information, try '--help'.", hint).replace('\'', "`");
            print_stderr(&text);
            USAGE
        }
    })
}

fn job(program: &Path, mut arguments: Arguments, set: EnvVars) -> Result<Job, UserError> {
    let settings = settings::check(&set, first_files(&arguments));
    if let Ok(Launch { gpus_per_rank, .. }) = &settings {
        arguments.gpus_per_rank = arguments.gpus_per_rank.or(*gpus_per_rank);
    }
    let usual = settings.as_ref().map_or(Duration::ZERO, |settings| settings.start_timeout);
    let start_timeout = arguments.start_timeout.map_or(usual, Duration::from_secs);
    let join_timeout = settings.as_ref().map_or(Duration::ZERO, |settings| settings.join_timeout);
    if settings.is_ok() {
        arguments.standing = standing::find(&arguments, start_timeout)?;
    }
    let job_spec = job_spec(&arguments, start_timeout, join_timeout);
    let (Launch { network, .. }, (job_spec, hosts)) = both(settings, job_spec)?;
    arguments.mpi.warn();
    let cwd = std::env::current_dir().map_err(|error| {
        UserError::new(
            format!("the current directory cannot be used: {error}"),
            "change to a directory that exists",
        )
    })?;
    let times = match arguments.prefix_output_with_timestamp {
        true => Times::Shown,
        false => Times::Left,
    };
    Ok(Job {
        job_spec,
        hosts,
        start_timeout,
        gpus_per_rank: arguments.gpus_per_rank,
        interfaces: arguments.network_interfaces.clone(),
        network,
        listen: listen(&arguments.network_interfaces)?,
        env: environment(set),
        output: OutputOptions {
            files: arguments.output_filename.map(|path| cwd.join(path)),
            times,
            event_log: arguments.event_log.map(|path| cwd.join(path)),
            screen: arguments.screen.options(times),
        },
        command: arguments.command,
        cwd: arguments.workdir.map_or(cwd.clone(), |workdir| cwd.join(workdir)),
        program: program.to_owned(),
        function: None,
        deliveries: None,
        registry: Some(PrivateDirs::here()),
    })
}

/// The number of ranks, and their hosts.
fn job_spec(
    arguments: &Arguments,
    start_timeout: Duration,
    join_timeout: Duration,
) -> Result<(JobSpec, HostSource), UserError> {
    let reach = arguments.reach.options(start_timeout)?;
    if arguments.elastic.is_wanted() {
        if arguments.command.is_empty() {
            return Err(UserError::new("no command given", EXAMPLE));
        }
        let named = match (arguments.agents.source()?, &arguments.standing) {
            (Some(agents), _) => HostList::Agents(agents),
            (None, Some(standing)) => HostList::Reached(standing.clone()),
            (None, None) => HostList::Hosts(listed(arguments)?),
        };
        return arguments.elastic.job_spec(count(arguments)?, named, reach, join_timeout);
    }
    if arguments.agents.are_wanted() {
        let ranks = required(arguments)?;
        if let Some(agents) = arguments.agents.source()? {
            arguments.elastic.warn();
            let timeout = arguments.start_timeout.map_or(AGENTS_TIMEOUT, Duration::from_secs);
            let job_spec = JobSpec::fixed(ranks, join_timeout, None);
            let (source, least_hosts) = (HostSourceKind::DialedIn, agents.agents);
            let job_spec = JobSpec { source, least_hosts, timeout, ..job_spec };
            return Ok((job_spec, HostSource::DialedIn(agents)));
        }
    }
    let (hosts, slots) = rank_slots(arguments)?;
    arguments.elastic.warn();
    let hosts = match &arguments.standing {
        Some(standing) => with_ranks(standing, &slots),
        None => hosts::methods(&hosts, &slots, &hosts::hostname(), &reach),
    };
    Ok((JobSpec::fixed(slots.len() as u32, join_timeout, None), HostSource::Listed(hosts)))
}

/// The hosts that have ranks, with one slot per rank.
fn with_ranks(hosts: &[(Host, ReachMethod)], slots: &[Slot]) -> Vec<(Host, ReachMethod)> {
    let used = |(host, method): &(Host, ReachMethod)| {
        let slots = slots.iter().filter(|slot| slot.host == host.name).count() as u32;
        (slots > 0).then(|| (Host { slots, ..host.clone() }, method.clone()))
    };
    hosts.iter().filter_map(used).collect()
}

/// How long to wait for agents that dial in, by default; starting them takes a while.
const AGENTS_TIMEOUT: Duration = Duration::from_secs(600);

const NO_NUMBER: &str = "the number of processes was not given: use `-np <N>`";
const EXAMPLE: &str = "for example: `horovodrun -np 2 python train.py`";

/// The hosts, and the slot of each rank.
fn rank_slots(arguments: &Arguments) -> Result<(Vec<Host>, Vec<Slot>), UserError> {
    let count = required(arguments)?;
    let hosts = match listed(arguments)? {
        Some(hosts) => hosts,
        None => match jsrun::allocation(|name| std::env::var(name).ok()) {
            Some(nodes) if arguments.mpi.other() == Some(OtherLauncher::Jsrun) => {
                jsrun::hosts(&nodes, count)
            }
            _ => vec![Host::local(count)],
        },
    };
    let slots = hosts::assign(&hosts, count).map_err(|error| about_hosts(&error))?;
    Ok((hosts, slots))
}

/// The number of processes; fails if it or the command is missing.
fn required(arguments: &Arguments) -> Result<u32, UserError> {
    let mut missing = UserError { errors: Vec::new(), hint: EXAMPLE.into() };
    if arguments.num_proc.is_none() {
        missing.errors.push(NO_NUMBER.into());
    }
    if arguments.command.is_empty() {
        missing.errors.push("no command given".into());
    }
    match (count(arguments)?, arguments.command.as_slice()) {
        (Some(count), [_, ..]) => Ok(count),
        _ => Err(missing),
    }
}

/// The number of processes that `-np` asks for.
fn count(arguments: &Arguments) -> Result<Option<u32>, UserError> {
    let Some(wanted) = arguments.num_proc else { return Ok(None) };
    let listed = listed(arguments)?;
    let place = match &listed {
        Some(hosts) => CountBasis::Listed(hosts),
        None if arguments.elastic.discovers() || arguments.agents.are_wanted() => {
            CountBasis::Unknown
        }
        None => CountBasis::Here { gpus_per_rank: arguments.gpus_per_rank.unwrap_or(1) },
    };
    wanted.count(&place).map(Some)
}

/// The hosts that the user named, if any.
fn listed(arguments: &Arguments) -> Result<Option<Vec<Host>>, UserError> {
    if let Some(standing) = &arguments.standing {
        return Ok(Some(standing.iter().map(|(host, _)| host.clone()).collect()));
    }
    match (&arguments.hosts, &arguments.hostfile) {
        (Some(text), _) => hosts::parse(text).map(Some).map_err(|error| about_hosts(&error)),
        (None, Some(path)) => from_hostfile(path).map(Some),
        (None, None) => Ok(None),
    }
}

pub(crate) fn from_hostfile(path: &Path) -> Result<Vec<Host>, UserError> {
    let name = path.display();
    let text = files::read("hostfile", path)?;
    hostfile::parse(&text).map_err(|errors| UserError {
        errors: errors.iter().map(|error| format!("`{name}`: {error}")).collect(),
        hint: "write one host per line, as in `node-a slots=4`".into(),
    })
}

/// Whether rank 0 writes its files on this machine.
fn first_files(arguments: &Arguments) -> Rank0Files {
    let first = listed(arguments).ok().flatten().and_then(|hosts| hosts.into_iter().next());
    // Hosts from a script, agents that dial in and standing agents are not known yet; without a
    // list, ranks run here.
    let unknown_yet = arguments.elastic.discovers()
        || arguments.agents.are_wanted()
        || standing::named(arguments).is_some();
    match first.map_or(!unknown_yet, |host| hosts::is_here(&host)) {
        true => Rank0Files::Here,
        false => Rank0Files::Elsewhere,
    }
}

fn listen(interfaces: &[String]) -> Result<IpAddr, UserError> {
    if interfaces.is_empty() {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    interfaces::address_of(interfaces)
        .map_err(|HostProblem { reason, hint }| UserError::new(reason, hint))
}

/// This process's environment, with the variables that options set replaced.
fn environment(set: EnvVars) -> EnvVars {
    // The key of standing agents is no business of a rank.
    let is_left_out =
        |name: &OsString| *name == *RONDE_AGENT_KEY.name || set.iter().any(|(key, _)| key == name);
    let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| !is_left_out(name)).collect();
    all.extend(set);
    all
}

fn run(job: &Job) -> u8 {
    let viewer = if job.function.is_some() { ReportTo::Caller } else { ReportTo::Terminal };
    report(ronde_launch::run(job), viewer)
}

/// Who gets the report on how the job ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReportTo {
    Terminal,
    /// The Python that called `horovod.run`.
    Caller,
}

fn report(outcome: Result<JobOutcome, LaunchError>, viewer: ReportTo) -> u8 {
    match outcome {
        Ok(outcome) => {
            if viewer == ReportTo::Caller {
                // If the caller is gone, there is nobody to report to.
                let _ = write_stdout(&caller::over(&outcome));
            } else if let Some(text) = &outcome.verdict.text {
                let more =
                    outcome.verdict.code().map(|code| format!("more: `ronde explain {code}`"));
                print_stderr(&format!("{text}{}", more.unwrap_or_default()));
            }
            outcome.code
        }
        Err(error @ (LaunchError::Files { .. } | LaunchError::EventLog { .. })) => {
            report_error(&about_launch(&error), USAGE)
        }
        Err(error) => report_error(&about_launch(&error), 1),
    }
}

pub(crate) fn about_hosts(error: &HostsError) -> UserError {
    let hint = match error {
        HostsError::Invalid(_) | HostsError::NoSlot(_) => {
            "write each host with its number of slots, as in `-H localhost:4`"
        }
        HostsError::TooFew { .. } => "give the hosts more slots, or start fewer processes",
    };
    UserError::new(error, hint)
}

pub(crate) fn about_launch(error: &LaunchError) -> UserError {
    UserError::new(error, error.hint())
}

pub(crate) fn log_to_stderr(filter: &str) {
    // Fails if there is a subscriber already, for example in a test; that one will do.
    let _ = tracing_subscriber::fmt()
        .with_writer(|| ScreenLogWriter)
        .with_env_filter(EnvFilter::new(filter))
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .try_init();
}

pub(crate) fn report_error(error: &UserError, code: u8) -> u8 {
    print_stderr(&error.to_string());
    code
}

/// Writes help to standard output, in color on a terminal; returns the exit code.
pub(crate) fn show_help(help: &StyledStr) -> u8 {
    written(anstream::stdout().lock().write_all(help.ansi().to_string().as_bytes()))
}

/// Writes to standard output; returns the exit code.
pub(crate) fn print_stdout(text: &str) -> u8 {
    written(write_stdout(printable(text).as_bytes()))
}

/// The exit code of a command after writing its output. It is not an error if the reader has gone,
/// as `head` does.
pub(crate) fn written(result: io::Result<()>) -> u8 {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let error = format!("standard output cannot be written: {error}");
            report_error(
                &UserError::new(error, "free some disk space, or redirect the output elsewhere"),
                1,
            )
        }
        _ => 0,
    }
}

fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}
