//! `ronde completion`: shell completions for both commands.

use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::flags::described;
use crate::horovodrun;
use crate::horovodrun::print_stdout;

/// Print shell completions for `ronde` and `horovodrun`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  source <(ronde completion bash)        # for this shell\n  \
                        ronde completion bash > ~/.local/share/bash-completion/completions/ronde\n  \
                        ronde completion fish > ~/.config/fish/completions/ronde.fish")]
pub(crate) struct Arguments {
    /// The shell to complete in
    shell: Shell,
}

/// Prints the completions; returns the exit code.
pub(crate) fn run(arguments: &Arguments, mut ronde: Command) -> u8 {
    let mut out = Vec::new();
    generate(arguments.shell, &mut ronde, "ronde", &mut out);
    let mut horovodrun = described(horovodrun::Arguments::command());
    generate(arguments.shell, &mut horovodrun, "horovodrun", &mut out);
    print_stdout(&String::from_utf8_lossy(&out))
}
