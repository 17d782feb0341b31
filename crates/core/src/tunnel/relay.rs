//! Relays the bytes of two connections to each other, plain or encrypted.
//!
//! An encrypted stream is a sequence of frames; an empty frame marks its end, so that nobody in
//! between can cut it short unnoticed. Each direction has a thread. When one fails, both
//! connections are closed.

use std::io;
use std::time::Duration;

use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use rustix::event::PollFlags;

use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::{SealedWire, read_exact, write_all};

/// Bytes per read, and maximum bytes per frame.
const PIECE: usize = 256 << 10;
/// Interval between checks of a wait; ending a relay closes its sockets, which wakes it at once.
const LOOK: Duration = Duration::from_secs(60);

/// Relays bytes between two connections on this host until both directions have ended.
pub(super) fn plain(a: &Socket, b: &Socket) {
    std::thread::scope(|scope| {
        let back = spawn(scope, || both(a, b, copy(b, a)));
        if back.is_ok() {
            both(a, b, copy(a, b));
        } else {
            hang_up(a, b);
        }
    });
}

/// Relays bytes between a connection on this host and an encrypted one to another host.
pub(super) fn sealed(near: &Socket, wire: SealedWire) {
    let Ok((far, sealer, opener, ahead)) = wire.split() else { return near.hang_up() };
    std::thread::scope(|scope| {
        let out = spawn(scope, || both(near, &far, seal(near, &far, sealer)));
        if out.is_ok() {
            both(near, &far, open((&far, ahead), near, opener));
        } else {
            hang_up(near, &far);
        }
    });
}

fn spawn<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> io::Result<()> {
    std::thread::Builder::new().name("ronde-tunnel".into()).spawn_scoped(scope, work).map(|_| ())
}

/// Handles the end of a direction: after an error, both connections are useless.
fn both(a: &Socket, b: &Socket, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection through the tunnel failed");
        hang_up(a, b);
    }
}

fn hang_up(a: &Socket, b: &Socket) {
    a.hang_up();
    b.hang_up();
}

fn copy(from: &Socket, to: &Socket) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    while let Some(count) = next(from, &mut buffer)? {
        write_all(to, &buffer[..count], &mut wait)?;
    }
    to.finish();
    Ok(())
}

fn seal(from: &Socket, to: &Socket, mut sealer: Sealer) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    while let Some(count) = next(from, &mut buffer)? {
        write_all(to, &sealer.seal(&buffer[..count]), &mut wait)?;
    }
    write_all(to, &sealer.seal(&[]), &mut wait)?;
    to.finish();
    Ok(())
}

/// `ahead` contains bytes that were read together with the messages before the stream.
fn open((from, mut ahead): (&Socket, Vec<u8>), to: &Socket, mut opener: Opener) -> io::Result<()> {
    let mut take = |buffer: &mut [u8]| {
        let known = ahead.len().min(buffer.len());
        buffer[..known].copy_from_slice(&ahead[..known]);
        ahead.drain(..known);
        read_exact(from, &mut buffer[known..], &mut wait)
    };
    let mut frame = Vec::new();
    loop {
        let mut header = [0; 4];
        take(&mut header)?;
        frame.resize(frame_length(header).map_err(io::Error::other)?, 0);
        take(&mut frame)?;
        let bytes = opener.open(&frame).map_err(io::Error::other)?;
        if bytes.is_empty() {
            to.finish();
            return Ok(());
        }
        write_all(to, &bytes, &mut wait)?;
    }
}

/// The next bytes, or `None` at the end.
fn next(from: &Socket, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match from.read(buffer) {
            Ok(Some(count)) => return Ok(Some(count)),
            Ok(None) => wait(from, PollFlags::IN)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "callers need the signature of a wait")]
fn wait(socket: &Socket, flags: PollFlags) -> io::Result<()> {
    sleep(&[(std::os::fd::AsFd::as_fd(socket), flags)], LOOK);
    Ok(())
}
