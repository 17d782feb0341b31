//! A worker's pseudo-terminal, in raw mode: output is unchanged, and nothing is echoed.
//!
//! It is not the worker's controlling terminal: the worker's session has none. So the kernel does
//! not send SIGWINCH for a new size; the agent sends it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ronde_control::wire::agent::WindowSize;
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

/// Opens both ends: the agent's, which is non-blocking, and the worker's.
pub(super) fn open_pair(size: WindowSize) -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let mut attributes = tcgetattr(&theirs)?;
    attributes.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &attributes)?;
    resize(&ours, size)?;
    fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

/// Sets a terminal's size.
pub(super) fn resize(
    terminal: impl AsFd,
    WindowSize { rows, columns }: WindowSize,
) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use rustix::termios::{isatty, tcgetwinsize};

    use super::*;

    #[test]
    fn bytes_pass_unchanged_and_are_followed_by_an_error_at_the_end() {
        let (ours, theirs) = open_pair(WindowSize { rows: 30, columns: 111 }).unwrap();
        assert!(isatty(&theirs));
        let size = tcgetwinsize(&theirs).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (30, 111));
        resize(&ours, WindowSize { rows: 31, columns: 99 }).unwrap();
        assert_eq!(tcgetwinsize(&theirs).unwrap().ws_col, 99);
        let (mut ours, mut theirs) = (File::from(ours), File::from(theirs));
        let text = b"a\nb\r\n\ttab\x03\x04\xff\r";
        theirs.write_all(text).unwrap();
        drop(theirs);
        let mut received = Vec::new();
        let error = ours.read_to_end(&mut received).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        assert_eq!(received, text);
    }
}
