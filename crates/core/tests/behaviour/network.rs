//! Network faults at every stage of every algorithm over sockets: a rank dies, a connection is
//! closed, reset, slow or corrupted. Every rank gets an error in time or the correct result, never
//! anything else. All ranks name a rank that dies; if a connection between two living ranks breaks,
//! each of them names the other, and the rest name one of the two.
//!
//! Every algorithm first runs without a fault, which shows how many bytes each connection carries;
//! then it runs again and again with a fault at one of those bytes, from the first one of the
//! handshake to the last. Corruption is noticed on all sealed connections and in every handshake.
//! Tensors that are not encrypted are protected only by the checksums of the network, so their
//! bytes are not corrupted here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ronde_control::{Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_testkit::{Net, NetFault, NetStream, TestRng, TimedFault, effort, seed};

use crate::case::{Case, Collective};
use crate::reference::Arithmetic;
use crate::run::{Circle, Flight, Trial};
use crate::worlds::{Sealing, Setup, faulty};

const RANKS: usize = 3;
/// No fault keeps a rank waiting longer, however busy the machine.
const TIME_LIMIT: Duration = Duration::from_secs(8);
/// The number of worlds that run at the same time; mostly they wait.
const CONCURRENT_WORLDS: usize = 12;
/// Bytes of a connection's handshake that the dialing rank sends before its greeting.
const HELLO: u64 = 50;

/// Every algorithm, as a collective and a length that select it.
fn algorithms() -> Vec<(Collective, usize)> {
    let sum = Arithmetic { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    vec![
        (Collective::Allreduce(sum), 100),
        (Collective::Allreduce(sum), 30_000),
        (Collective::Broadcast { root: 1 }, 100),
        (Collective::Broadcast { root: 1 }, 30_000),
        (Collective::Allgather, 10_000),
        (Collective::Alltoall, 10_000),
        (Collective::Reducescatter(sum), 20_000),
    ]
}

/// The result on one rank.
#[derive(Debug)]
#[expect(dead_code, reason = "the contents are printed when a test fails")]
enum End {
    Right,
    Wrong(String),
    Failed(Error),
    Unformed(Error),
}

/// Runs the collective three times and returns each rank's result, with the time it took.
fn trial(case: &Case, setup: &Setup, net: &Arc<Net>) -> Vec<(End, Duration)> {
    let world = setup.world.clone().through(net);
    let world = world.with(|settings| settings.join_timeout = Duration::from_secs(3));
    world.attempt(|member| {
        let start = Instant::now();
        let member = match member {
            Ok(member) => member,
            Err(error) => return (End::Unformed(error), start.elapsed()),
        };
        // The launcher, which started it, reports a dead process.
        let launcher = Arc::downgrade(&member.launcher);
        net.on_harm(move |harm| {
            if let (NetFault::Kill(rank), Some(launcher)) = (harm, launcher.upgrade()) {
                launcher.lose(Rank(rank as u32), "was killed");
            }
        });
        let circle = Circle { set: SetId::WORLD, ranks: &[0, 1, 2] };
        for _ in 0..3 {
            let trial = Trial::of(case, &circle, &member, TestRng::of(1)).expect("all are members");
            if let Err(text) = trial.begin("").and_then(Flight::end) {
                // A call ends with the verdict, or else with an incorrect result.
                let end = member.engine.verdict().map_or(End::Wrong(text), End::Failed);
                return (end, start.elapsed());
            }
        }
        (End::Right, start.elapsed())
    })
}

/// Chooses the fault of a stream after this many bytes.
fn choose_fault(stream: NetStream, after: u64, sealing: Sealing, rng: &mut TestRng) -> NetFault {
    let is_control = stream.to == 0 && stream.number == 0;
    let sealed = is_control || after < HELLO || sealing == Sealing::On;
    let victim = rng.pick(&[stream.from, stream.to]);
    let all = [
        NetFault::Reset,
        NetFault::Close,
        NetFault::Slow,
        NetFault::Kill(victim),
        NetFault::Garble,
    ];
    rng.pick(if sealed { &all } else { &all[..4] })
}

fn faults(
    case: &Case,
    (setup, sealing): &(Setup, Sealing),
    count: usize,
    rng: &mut TestRng,
) -> Vec<TimedFault> {
    let net = Net::new(None);
    for (rank, (end, _)) in trial(case, setup, &net).iter().enumerate() {
        assert!(matches!(end, End::Right), "rank {rank}, without a fault: {end:?}");
    }
    let traffic = net.traffic();
    let fault = |_| {
        let (stream, bytes) = rng.pick(&traffic);
        let after = match rng.below(3) {
            // In the handshake and just after it.
            0 => rng.below(120) as u64,
            _ => rng.roll() % (bytes + 1),
        };
        TimedFault {
            stream,
            after: after.min(bytes),
            harm: choose_fault(stream, after, *sealing, rng),
        }
    };
    (0..count).map(fault).collect()
}

/// What is wrong with the way a world ended, if anything.
fn problem(fault: TimedFault, ends: &[(End, Duration)]) -> Option<String> {
    let TimedFault { stream: NetStream { from, to, .. }, harm, .. } = fault;
    let is_unformed = |(end, _): &(End, Duration)| matches!(end, End::Unformed(_));
    let never_formed = ends.iter().any(is_unformed);
    for (rank, (end, time)) in ends.iter().enumerate() {
        let blamed = match end {
            End::Failed(error) => error.blames(),
            _ => None,
        };
        let is_guilty = |blamed: Rank| match harm {
            NetFault::Kill(victim) => blamed.index() == victim,
            _ if rank == from => blamed.index() == to,
            _ if rank == to => blamed.index() == from,
            _ => blamed.index() == from || blamed.index() == to,
        };
        let fine = match end {
            End::Right => true,
            End::Wrong(_) => false,
            _ if harm == NetFault::Kill(rank) => true,
            _ if harm == NetFault::Slow => false,
            // Some ranks saw the world formed before others gave up waiting for the rest.
            End::Unformed(_) | End::Failed(_) if never_formed => true,
            End::Unformed(_) => false,
            End::Failed(_) => blamed.is_some_and(is_guilty),
        };
        if !fine || *time > TIME_LIMIT {
            return Some(format!("rank {rank} after {time:?}: {end:?}"));
        }
    }
    None
}

#[test]
fn a_fault_at_any_byte_ends_in_an_error_that_names_the_peer_or_in_the_correct_result() {
    let seed = seed();
    let mut trials = Vec::new();
    for (number, world) in faulty().iter().enumerate() {
        for (collective, length) in algorithms() {
            let mut rng = TestRng::part(seed, 1000 * number + trials.len());
            let case = Arc::new(Case::of(collective, length, RANKS, &mut rng));
            let faults = faults(&case, world, effort(5), &mut rng);
            trials.extend(faults.into_iter().map(|fault| (case.clone(), world.0.clone(), fault)));
        }
    }
    let (next, triggered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((case, setup, fault)) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            let net = Net::new(Some(*fault));
            let ends = std::panic::catch_unwind(|| trial(case, setup, &net)).unwrap_or_else(|_| {
                panic!("seed {seed}: {}: {case}\n{fault:?}\na call that never ended", setup.name)
            });
            if let Some(problem) = problem(*fault, &ends) {
                panic!("seed {seed}: {}: {case}\n{fault:?}\n{problem}\nall: {ends:?}", setup.name);
            }
            triggered.fetch_add(usize::from(net.has_struck()), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..CONCURRENT_WORLDS).for_each(|_| drop(scope.spawn(work))));
    let triggered = triggered.into_inner();
    assert!(triggered * 2 > trials.len(), "only {triggered} of {} faults happened", trials.len());
}
