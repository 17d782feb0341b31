//! A rank as the rendezvous sees it: a small blocking client that uses the real protocol.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ronde_control::wire::frame::{Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{Callee, Initiator, envelope_length};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver, decode, encode};
use ronde_control::{Rank, VERSION};
use serde::de::DeserializeOwned;

use super::{Launched, TIME_LIMIT};

/// The address and key of a job's rendezvous.
#[derive(Clone)]
pub(crate) struct TestRendezvous {
    pub(crate) address: SocketAddr,
    pub(crate) key: JobKey,
}

/// A script that prints the rendezvous and then waits to be killed.
pub(crate) const PRINT_RENDEZVOUS: &str =
    r#"test "$RANK" != 0 || echo "rendezvous $RONDE_RENDEZVOUS $RONDE_JOB_KEY"; exec sleep 300"#;

impl TestRendezvous {
    pub(crate) fn printed_by(launched: &Launched) -> TestRendezvous {
        let line = launched.wait_for("rendezvous", 1).remove(0);
        let (address, key) = line.split_once(' ').unwrap();
        TestRendezvous { address: address.parse().unwrap(), key: JobKey::from_hex(key).unwrap() }
    }
}

/// A connection to the rendezvous.
pub(crate) struct FakeRank {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    rank: u32,
    /// Everything sent up to and including the greeting, for replay tests.
    pub(crate) recorded: Vec<u8>,
}

impl FakeRank {
    pub(crate) fn greet(rendezvous: &TestRendezvous, rank: u32, version: &str) -> FakeRank {
        let greeting = Greeting::Rendezvous { version: version.into(), rank: Rank(rank) };
        FakeRank::connect(rendezvous, rank, &greeting)
    }

    pub(crate) fn connect(rendezvous: &TestRendezvous, rank: u32, greeting: &Greeting) -> FakeRank {
        let mut stream = TcpStream::connect(rendezvous.address).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let (initiator, hello) = Initiator::start(&rendezvous.key, Callee::Launcher);
        stream.write_all(&hello).unwrap();
        let mut header = [0; 2];
        stream.read_exact(&mut header).unwrap();
        let mut answer = vec![0; envelope_length(header).unwrap()];
        stream.read_exact(&mut answer).unwrap();
        let (mut sealer, opener) = initiator.finish(&answer).unwrap();
        let sealed = sealer.seal(&encode(greeting));
        stream.write_all(&sealed).unwrap();
        FakeRank { stream, sealer, opener, rank, recorded: [hello, sealed].concat() }
    }

    pub(crate) fn join(rendezvous: &TestRendezvous, rank: u32) -> FakeRank {
        let mut fake = FakeRank::greet(rendezvous, rank, VERSION);
        fake.send(&RankToDriver::Join(Peer {
            pid: std::process::id(),
            host: "test".into(),
            machine: String::new(),
            local_rank: rank,
            addresses: Vec::new(),
            unix: None,
        }));
        fake
    }

    pub(crate) fn send(&mut self, message: &RankToDriver) {
        self.stream.write_all(&self.sealer.seal(&encode(message))).unwrap();
    }

    /// The next message other than `Ping`, which may arrive at any time and is answered.
    pub(crate) fn receive(&mut self) -> DriverToRank {
        loop {
            match self.try_receive().expect("a message from the rendezvous") {
                DriverToRank::Ping => self.send(&RankToDriver::Pong { waits: None }),
                message => return message,
            }
        }
    }

    pub(crate) fn try_receive<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        let mut sealed = vec![0; frame_length(header).unwrap()];
        self.stream.read_exact(&mut sealed)?;
        Ok(decode(&self.opener.open(&sealed).unwrap()).unwrap())
    }

    /// Takes part until the world is complete; returns its epoch and size.
    pub(crate) fn join_world(&mut self) -> (u64, usize) {
        let DriverToRank::World { epoch, peers } = self.next_message() else { panic!("no world") };
        self.send(&RankToDriver::Located { leader: Rank(0) });
        let DriverToRank::Layout { leaders } = self.next_message() else { panic!("no layout") };
        assert_eq!(leaders.len(), peers.len());
        assert_eq!(peers[self.rank as usize].local_rank, self.rank);
        (epoch.0, peers.len())
    }

    /// The next message other than `Ask`, which may arrive at any time.
    fn next_message(&mut self) -> DriverToRank {
        loop {
            match self.receive() {
                DriverToRank::Ask => {}
                other => return other,
            }
        }
    }

    pub(crate) fn leave(mut self) {
        self.send(&RankToDriver::Leaving { error: None, blames: None });
    }
}

/// Whether the peer closes an unauthenticated connection within `limit`.
pub(crate) fn is_dropped(stream: &mut TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                );
            }
        }
    }
}
