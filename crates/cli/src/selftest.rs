//! `ronde test`: runs what is installed on two ranks of this machine and says what works.
//!
//! What is tried is in the Python package (`horovod._selftest`), beside the frameworks.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::horovodrun::report_error;
use crate::messages::UserError;
use crate::script;

/// Test this installation on two ranks with every installed framework
#[derive(Clone, Debug, Args)]
#[command(after_help = "Exits with 0 if everything installed works, and with 1 otherwise.")]
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
    report_error(
        &UserError::new(what, "install Ronde into an environment with a Python of its own"),
        1,
    )
}
