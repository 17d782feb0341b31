//! Passing file descriptors to another process over a unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::socket::{Socket, Waiting};

/// The kernel accepts at most 253 descriptors at once.
const BATCH: usize = 128;

pub(crate) fn give(
    socket: &Socket,
    fds: &[BorrowedFd<'_>],
    wait: &mut Waiting<'_>,
) -> io::Result<()> {
    for batch in fds.chunks(BATCH) {
        let message = SendAncillaryMessage::ScmRights(batch);
        let mut space = vec![MaybeUninit::uninit(); message.size()];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(message), "the space fits the message");
        loop {
            let bytes = [IoSlice::new(&[1])];
            match sendmsg(socket.as_fd(), &bytes, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => break,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    wait(socket, PollFlags::OUT)?;
                }
                // Too many descriptors are in flight: their receivers have not taken them yet.
                Err(rustix::io::Errno::TOOMANYREFS) => {
                    std::thread::sleep(Duration::from_millis(1));
                    wait(socket, PollFlags::OUT)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

pub(crate) fn take(
    socket: &Socket,
    count: usize,
    wait: &mut Waiting<'_>,
) -> io::Result<Vec<OwnedFd>> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        let batch = (count - taken.len()).min(BATCH);
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut buffers = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket.as_fd(), &mut buffers, &mut ancillary, flags) {
            Ok(message) if message.bytes == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                wait(socket, PollFlags::IN)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        let before = taken.len();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                taken.extend(fds);
            }
        }
        if taken.len() != before + batch {
            return Err(io::Error::other("received an unexpected number of descriptors"));
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::super::bell::Doorbell;
    use super::super::socket::await_socket;
    use super::*;

    #[test]
    fn any_number_of_descriptors_arrives_and_works() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Socket::unix(a).unwrap(), Socket::unix(b).unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut wait = |socket: &Socket, flags| await_socket(socket, flags, deadline);
        let bell = Doorbell::new().unwrap();
        for count in [1, 2, 128, 300] {
            give(&a, &vec![bell.as_fd(); count], &mut wait).unwrap();
            let taken = take(&b, count, &mut wait).unwrap();
            assert_eq!(taken.len(), count);
            bell.ring();
            let copy = taken.into_iter().next_back().unwrap();
            assert_eq!(rustix::io::read(copy, &mut [0; 8]).unwrap(), 8);
        }
    }
}
