//! `ronde test`: runs what is installed on two ranks of this machine and says what works.
//!
//! What is tried is in the Python package (`horovod._selftest`), beside the frameworks.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::horovodrun::complain;
use crate::script;
use crate::words::Mistake;

/// Try this installation on two ranks, with every framework that is here, and say what works.
#[derive(Clone, Debug, Args)]
#[command(after_help = "It ends with code 0 if all that is installed works, with 1 if not.")]
pub(crate) struct Arguments {
    /// Only these: collectives, sockets, torch, tensorflow, keras, jax, mxnet [default: all]
    parts: Vec<String>,
}

/// Becomes the test; comes back if it cannot.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let python = script::python(program);
    let horovodrun = program.with_file_name("horovodrun");
    let mut command = Command::new(&python);
    command.args(["-m", "horovod._selftest"]).arg(horovodrun).args(&arguments.parts);
    let error = command.exec();
    let what = format!("`{}` cannot be started: {error}", python.display());
    complain(&Mistake::new(what, "install Ronde into an environment with a Python of its own"), 1)
}
