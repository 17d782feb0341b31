//! `ronde`: the command for everything that Horovod has no command for. Each subcommand has its own
//! file.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use ronde_control::VERSION;

use crate::agent;
use crate::bench;
use crate::completion;
use crate::cp;
use crate::doctor;
use crate::environment;
use crate::explain;
use crate::flags::{self, described};
use crate::horovodrun::{hidden_part, log_to_stderr, print_stdout, report_error, show_help};
use crate::hosts;
use crate::hub;
use crate::messages::{USAGE, UserError, print_stderr};
use crate::selftest;
use crate::status;
use crate::up;

const ALL_COMMANDS: &str = "`ronde --help` lists all commands";

/// Test, measure and monitor Ronde; `horovodrun` starts jobs.
#[derive(Debug, Parser)]
#[command(name = "ronde", disable_version_flag = true, disable_help_subcommand = true)]
struct Arguments {
    version: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Agent(agent::Arguments),
    Bench(Box<bench::Arguments>),
    Completion(completion::Arguments),
    Cp(Box<cp::Arguments>),
    Doctor(doctor::Arguments),
    Down(up::DownArguments),
    Env(environment::Arguments),
    Explain(explain::Arguments),
    Hosts(hosts::Arguments),
    Hub(Box<hub::Arguments>),
    Login(hub::LoginArguments),
    Status(status::Arguments),
    Test(selftest::Arguments),
    Up(Box<up::Arguments>),
}

/// Runs `ronde` and returns its exit code. `arguments` do not include the name; `program` is this
/// executable, which also serves as agent and other internal processes of a job.
pub fn ronde_main(program: &Path, arguments: Vec<OsString>) -> u8 {
    if let Some(code) = hidden_part(program, &arguments) {
        return code;
    }
    let arguments = match parse(arguments) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if arguments.version {
        return print_stdout(&format!("{VERSION}\n"));
    }
    match arguments.command {
        Some(Command::Agent(arguments)) => {
            log_to_stderr("warn");
            agent::run(program, &arguments)
        }
        Some(Command::Bench(arguments)) => {
            log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
            bench::run(program, &arguments)
        }
        Some(Command::Doctor(arguments)) => {
            log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
            doctor::run(program, &arguments)
        }
        Some(Command::Cp(arguments)) => {
            log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
            cp::run(program, &arguments)
        }
        Some(Command::Hosts(arguments)) => {
            log_to_stderr("warn");
            hosts::run(&arguments)
        }
        Some(Command::Hub(arguments)) => {
            log_to_stderr("warn");
            hub::run(&arguments)
        }
        Some(Command::Login(arguments)) => hub::run_login(&arguments),
        Some(Command::Down(arguments)) => {
            log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
            up::run_down(&arguments)
        }
        Some(Command::Up(arguments)) => {
            log_to_stderr(if arguments.verbose { "ronde_launch=debug" } else { "warn" });
            up::run(program, &arguments)
        }
        Some(Command::Completion(arguments)) => completion::run(&arguments, command()),
        Some(Command::Env(arguments)) => environment::run(program, &arguments),
        Some(Command::Explain(arguments)) => explain::run(&arguments),
        Some(Command::Status(arguments)) => status::run(&arguments),
        Some(Command::Test(arguments)) => selftest::run(program, &arguments),
        None => show_help(&command().render_help()),
    }
}

fn command() -> clap::Command {
    described(Arguments::command())
}

fn parse(arguments: Vec<OsString>) -> Result<Arguments, u8> {
    let first = arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    let help = match command().find_subcommand(first) {
        Some(command) => format!("`ronde {} --help`", command.get_name()),
        None => "`ronde --help`".into(),
    };
    let arguments = arguments.into_iter().map(spelled_for_clap);
    flags::parse(arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => show_help(&error.render()),
        ErrorKind::InvalidSubcommand => report_error(&unknown_command(&error), USAGE),
        ErrorKind::UnknownArgument => report_error(&unknown_option(&error, &help), USAGE),
        _ => {
            let text = error.render().to_string();
            let hint = format!("hint: {help} lists all options");
            let text =
                text.replace("For more information, try '--help'.", &hint).replace('\'', "`");
            print_stderr(&text);
            USAGE
        }
    })
}

/// Makes `-np` a single option, as in `horovodrun`; clap would split it.
fn spelled_for_clap(argument: OsString) -> OsString {
    match argument.to_str().and_then(|text| text.strip_prefix("-np")) {
        Some("") => "--num-proc".into(),
        Some(value) if value.starts_with('=') => format!("--num-proc{value}").into(),
        _ => argument,
    }
}

fn unknown_command(error: &clap::Error) -> UserError {
    let name = context(error, ContextKind::InvalidSubcommand).unwrap_or_default();
    let hint = match context(error, ContextKind::SuggestedSubcommand) {
        Some(similar) => format!("did you mean `ronde {similar}`?"),
        None => ALL_COMMANDS.into(),
    };
    UserError::new(format!("there is no command `{name}`"), hint)
}

fn unknown_option(error: &clap::Error, help: &str) -> UserError {
    let name = context(error, ContextKind::InvalidArg).unwrap_or_default();
    let hint = match context(error, ContextKind::SuggestedArg) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("{help} lists all options"),
    };
    UserError::new(format!("there is no option `{name}`"), hint)
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    error.get(kind).map(|value| value.to_string())
}
