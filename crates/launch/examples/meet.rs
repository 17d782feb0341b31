//! Measures how long a large number of ranks takes to form a world:
//! `cargo run --release -p ronde-launch --example meet`.
//!
//! The ranks are tasks of one process, each with a real connection; they join, learn the world,
//! report the first rank of their host, and learn the layout. The rendezvous is the one that jobs
//! use. Prints the time from the first connection to the last layout, and the memory of the whole
//! process.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ronde_control::wire::frame::{MAX_FRAME, Opener, Sealer, frame_length};
use ronde_control::wire::handshake::{Initiator, envelope_length};
use ronde_control::wire::{self, Callee, DriverToRank, Greeting, JobKey, Peer, RankToDriver};
use ronde_control::{Rank, VERSION};
use ronde_launch::rank0_rendezvous::server::RendezvousServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// One in this many ranks decodes the world.
const SAMPLE: u32 = 64;

/// Number of ranks per host.
const PER_HOST: u32 = 8;

fn main() -> io::Result<()> {
    let size: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(4096);
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    let before = memory();
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let key = JobKey::from_entropy([7; 32]);
    let server =
        RendezvousServer::start(listener, key.clone(), size, Duration::from_secs(60), None)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let start = Instant::now();
    let formed = runtime.block_on(run_all(size, address, &key))?;
    let all = start.elapsed();
    writeln!(
        io::stdout(),
        "{size} ranks formed a world in {:.2} s (all knew it after {:.2} s); {} MB for all of them \
         and the rendezvous",
        all.as_secs_f64(),
        formed.duration_since(start).as_secs_f64(),
        (memory() - before) >> 20
    )?;
    drop((runtime, server));
    Ok(())
}

/// Runs all ranks and returns when the last one learned the world.
async fn run_all(size: u32, address: SocketAddr, key: &JobKey) -> io::Result<Instant> {
    let mut ranks = JoinSet::new();
    for rank in 0..size {
        ranks.spawn(join(Rank(rank), size, address, key.clone()));
    }
    let mut last = Instant::now();
    let mut connections = Vec::new();
    while let Some(joined) = ranks.join_next().await {
        let (formed, connection) = joined.map_err(io::Error::other)??;
        last = last.max(formed);
        connections.push(connection);
    }
    Ok(last)
}

async fn join(
    rank: Rank,
    size: u32,
    address: SocketAddr,
    key: JobKey,
) -> io::Result<(Instant, TcpStream)> {
    // All ranks here share one thread: with more at a time, handshakes would be slow enough to be
    // evicted.
    static CALLS: Semaphore = Semaphore::const_new(64);
    let turn = CALLS.acquire().await.map_err(io::Error::other)?;
    let (mut stream, mut sealer, mut opener) = call(rank, address, &key).await?;
    drop(turn);
    let host = rank.0 / PER_HOST;
    let join = RankToDriver::Join(Peer {
        pid: 1000 + rank.0,
        host: format!("node-{host:04}"),
        machine: String::new(),
        local_rank: rank.0 % PER_HOST,
        addresses: vec![SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], 40_000))],
        unix: Some(format!("ronde-{:024x}", rank.0)),
    });
    stream.write_all(&sealer.seal(&wire::encode(&join))).await?;
    // In a real job each rank decodes this once, on its own core; here one thread would do it for
    // all. So every frame is opened, and only a sample is decoded.
    let world = open(&mut stream, &mut opener).await?;
    if rank.0.is_multiple_of(SAMPLE) {
        match wire::decode(&world).map_err(io::Error::other)? {
            DriverToRank::World { peers, .. } if peers.len() == size as usize => {}
            other => return Err(io::Error::other(format!("{other:?}"))),
        }
    }
    let formed = Instant::now();
    let located = RankToDriver::Located { leader: Rank(host * PER_HOST) };
    stream.write_all(&sealer.seal(&wire::encode(&located))).await?;
    match receive(&mut stream, &mut opener).await? {
        DriverToRank::Layout { leaders } if leaders.len() == size as usize => Ok((formed, stream)),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

async fn call(
    rank: Rank,
    address: SocketAddr,
    key: &JobKey,
) -> io::Result<(TcpStream, Sealer, Opener)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (initiator, hello) = Initiator::start(key, Callee::Launcher);
    stream.write_all(&hello).await?;
    let mut header = [0; 2];
    stream.read_exact(&mut header).await?;
    let mut answer = vec![0; envelope_length(header).map_err(io::Error::other)?];
    stream.read_exact(&mut answer).await?;
    let (mut sealer, opener) = initiator.finish(&answer).map_err(io::Error::other)?;
    let greeting = Greeting::Rendezvous { version: VERSION.into(), rank };
    stream.write_all(&sealer.seal(&wire::encode(&greeting))).await?;
    Ok((stream, sealer, opener))
}

async fn receive(stream: &mut TcpStream, opener: &mut Opener) -> io::Result<DriverToRank> {
    wire::decode(&open(stream, opener).await?).map_err(io::Error::other)
}

async fn open(stream: &mut TcpStream, opener: &mut Opener) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let length = frame_length(header).map_err(io::Error::other)?;
    assert!(length <= MAX_FRAME + 64, "the rendezvous never sends larger frames");
    let mut sealed = vec![0; length];
    stream.read_exact(&mut sealed).await?;
    opener.open(&sealed).map_err(io::Error::other)
}

/// Memory of this process, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
