//! The command `ronde`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let arguments = std::env::args_os().skip(1).collect();
    ExitCode::from(ronde_cli::ronde_main(&program, arguments))
}
