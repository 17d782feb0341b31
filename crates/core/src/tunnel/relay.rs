//! Carries the bytes of a connection to another one and back, as they are or sealed.
//!
//! A sealed stream is a row of frames; an empty one is its end, so that nobody on the way can cut it
//! short unnoticed. Each direction has a thread. One that fails takes the other with it.

use std::io;
use std::time::Duration;

use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use rustix::event::PollFlags;

use crate::transport::socket::{Socket, sleep};
use crate::transport::wire::{Wire, read_exact, write_all};

/// Bytes that are read at once, and the most in one frame.
const PIECE: usize = 256 << 10;
/// A wait looks again after this time; who ends a relay hangs up, which wakes it at once.
const LOOK: Duration = Duration::from_secs(60);

/// Carries bytes between two connections of this host until both directions have ended.
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

/// Carries bytes between a connection of this host and a sealed one to another.
pub(super) fn sealed(near: &Socket, wire: Wire) {
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

/// A direction has ended: in order, or both connections are of no use any more.
fn both(a: &Socket, b: &Socket, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection through the tunnel has ended");
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

/// `ahead` are bytes that were read together with what came before the stream.
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

/// The next bytes, or none at the end.
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

#[expect(clippy::unnecessary_wraps, reason = "it is one of several ways to wait for a socket")]
fn wait(socket: &Socket, flags: PollFlags) -> io::Result<()> {
    sleep(&[(std::os::fd::AsFd::as_fd(socket), flags)], LOOK);
    Ok(())
}
