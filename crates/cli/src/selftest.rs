//! `ronde test`: tests the installation on two ranks of this machine and reports what works.
//!
//! The tests are in the Python package (`horovod._selftest`).

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
    /// Test only these: collectives, sockets, torch, tensorflow, keras, jax, mxnet [default: all]
    parts: Vec<String>,
}

/// Replaces this process with the test; returns only if that fails.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let python = script::python(program);
    let horovodrun = program.with_file_name("horovodrun");
    let mut command = Command::new(&python);
    command.args(["-m", "horovod._selftest"]).arg(horovodrun).args(&arguments.parts);
    let error = command.exec();
    let what = format!("cannot start `{}`: {error}", python.display());
    report_error(&UserError::new(what, "install Ronde into a virtual environment"), 1)
}
