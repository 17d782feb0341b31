//! The options that only tell the ranks something, as the help shows them. They are read elsewhere:
//! clap never sees them on a command line.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::flags::{FLAGS, Flag, Form};

/// Adds these options to the help.
#[derive(Debug)]
pub(crate) struct Tunables;

impl Args for Tunables {
    fn augment_args(command: Command) -> Command {
        let shown = FLAGS.iter().filter(|flag| !flag.is_hidden());
        shown.filter_map(argument).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Tunables::augment_args(command)
    }
}

impl FromArgMatches for Tunables {
    fn from_arg_matches(_: &ArgMatches) -> Result<Tunables, clap::Error> {
        Ok(Tunables)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

fn argument(flag: &Flag) -> Option<Arg> {
    let name = flag.names[0].trim_start_matches('-');
    let argument = Arg::new(name).long(name).help(flag.about).help_heading(flag.group);
    Some(match flag.sets?.form {
        Form::Says(_) => argument.action(ArgAction::SetTrue),
        Form::File => argument.value_name("FILE"),
        Form::Level => argument.value_name("LEVEL"),
        Form::Whole | Form::Mebibytes | Form::Decimal | Form::Fraction | Form::Cores => {
            argument.value_name("N")
        }
    })
}
