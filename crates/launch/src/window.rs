//! The launcher's own terminal.

use std::io;

use ronde_control::wire::agent::WindowSize;
use rustix::termios::{isatty, tcgetwinsize};

/// The terminal that the launcher writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its size when the job starts.
    pub size: WindowSize,
    /// Whether standard error is a terminal, too.
    pub stderr: bool,
}

/// The size to assume for a terminal that does not report one.
pub const USUAL: WindowSize = WindowSize { rows: 24, columns: 80 };

impl Window {
    /// The terminal behind standard output, if there is one and it can erase lines. `term` is the
    /// value of `TERM`.
    pub fn of_stdout(term: Option<&str>) -> Option<Window> {
        let is_capable = term.is_none_or(|term| !matches!(term, "dumb" | ""));
        let window = || Window { size: size(), stderr: isatty(io::stderr()) };
        (is_capable && isatty(io::stdout())).then(window)
    }
}

/// The current size of the terminal behind standard output.
pub fn size() -> WindowSize {
    let size = tcgetwinsize(io::stdout()).ok();
    let size = size.map(|size| WindowSize { rows: size.ws_row, columns: size.ws_col });
    size.filter(|size| size.rows > 0 && size.columns > 0).unwrap_or(USUAL)
}
