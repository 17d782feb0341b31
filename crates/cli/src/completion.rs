//! `ronde completion`: what a shell needs to complete the options of both commands.

use clap::{Args, Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::flags::described;
use crate::horovodrun;
use crate::horovodrun::tell;

/// Print what completes `ronde` and `horovodrun` in a shell.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  source <(ronde completion bash)        # for this shell\n  \
                        ronde completion bash > ~/.local/share/bash-completion/completions/ronde\n  \
                        ronde completion fish > ~/.config/fish/completions/ronde.fish")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints it.
pub(crate) fn run(arguments: &Arguments, mut ronde: Command) -> u8 {
    let mut out = Vec::new();
    generate(arguments.shell, &mut ronde, "ronde", &mut out);
    let mut horovodrun = described(horovodrun::Arguments::command());
    generate(arguments.shell, &mut horovodrun, "horovodrun", &mut out);
    tell(&String::from_utf8_lossy(&out))
}
