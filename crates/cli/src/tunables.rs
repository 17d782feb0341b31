//! Adds the options that only set variables for the ranks to the help. [`crate::arguments`] parses
//! them; clap never sees them on a command line.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::flags::{FLAGS, Flag};

/// Adds these options to the help.
#[derive(Debug)]
pub(crate) struct Tunables;

impl Args for Tunables {
    fn augment_args(command: Command) -> Command {
        let shown = |flag: &&Flag| flag.variable().is_some() && !flag.is_hidden();
        command.args(FLAGS.iter().filter(shown).map(|flag| {
            let arg = flag.describe(Arg::new(flag.names[0]));
            if flag.form.values() == 0 { arg.action(ArgAction::SetTrue) } else { arg }
        }))
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
