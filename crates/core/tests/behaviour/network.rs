//! Harm on the network, at every stage of every algorithm over sockets: a rank dies, a connection is
//! closed, reset, slow or garbled. Every rank gets an error in time or the right result, never
//! anything else. A rank that dies is named by all; where a connection breaks between two who live, each
//! of them names the other, and the rest name one of the two.
//!
//! Every algorithm first runs unharmed, which shows how many bytes each connection carries; then it
//! runs again and again with harm at one of those bytes, from the first of the handshake to the last.
//! Garbage is noticed on all sealed connections and in every handshake. Where tensors are not encrypted
//! their bytes travel as they are, protected by no more than the checksums of the network; so there
//! they are left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ronde_control::{Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_testkit::{Dice, Fault, Harm, Net, Stream, effort, seed};

use crate::case::{Case, Collective};
use crate::reference::Arithmetic;
use crate::run::{Circle, Flight, Trial};
use crate::worlds::{Sealing, Setup, harmed};

const RANKS: usize = 3;
/// No harm keeps a rank waiting longer, on however busy a machine.
const PROMISE: Duration = Duration::from_secs(8);
/// Worlds that run at the same time; most of the time they wait.
const CROWD: usize = 12;
/// Bytes of a connection's handshake that the one who dialled sends before it greets.
const HELLO: u64 = 50;

/// Every algorithm, by a collective and a length that it is chosen for.
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

/// How a rank fared.
#[derive(Debug)]
#[expect(dead_code, reason = "what is in them is printed when a test fails")]
enum End {
    Right,
    Wrong(String),
    Failed(Error),
    Unformed(Error),
}

/// Runs the collective three times and gives how each rank fared, and the time it took.
fn trial(case: &Case, setup: &Setup, net: &Arc<Net>) -> Vec<(End, Duration)> {
    let world = setup.world.clone().through(net);
    let world = world.with(|settings| settings.join_timeout = Duration::from_secs(3));
    world.attempt(|member| {
        let start = Instant::now();
        let member = match member {
            Ok(member) => member,
            Err(error) => return (End::Unformed(error), start.elapsed()),
        };
        // A dead process is reported by whoever started it.
        let launcher = Arc::downgrade(&member.launcher);
        net.on_harm(move |harm| {
            if let (Harm::Kill(rank), Some(launcher)) = (harm, launcher.upgrade()) {
                launcher.lose(Rank(rank as u32), "was killed");
            }
        });
        let circle = Circle { set: SetId::WORLD, ranks: &[0, 1, 2] };
        for _ in 0..3 {
            let trial = Trial::of(case, &circle, &member, Dice::of(1)).expect("all are members");
            if let Err(text) = trial.begin("").and_then(Flight::end) {
                // What a call ends with is the verdict, or else a result that is not right.
                let end = member.engine.verdict().map_or(End::Wrong(text), End::Failed);
                return (end, start.elapsed());
            }
        }
        (End::Right, start.elapsed())
    })
}

/// What is done to a stream after so many bytes.
fn harm(stream: Stream, after: u64, sealing: Sealing, dice: &mut Dice) -> Harm {
    let is_control = stream.to == 0 && stream.number == 0;
    let sealed = is_control || after < HELLO || sealing == Sealing::On;
    let victim = dice.pick(&[stream.from, stream.to]);
    let all = [Harm::Reset, Harm::Close, Harm::Slow, Harm::Kill(victim), Harm::Garble];
    dice.pick(if sealed { &all } else { &all[..4] })
}

fn faults(
    case: &Case,
    (setup, sealing): &(Setup, Sealing),
    count: usize,
    dice: &mut Dice,
) -> Vec<Fault> {
    let net = Net::new(None);
    for (rank, (end, _)) in trial(case, setup, &net).iter().enumerate() {
        assert!(matches!(end, End::Right), "rank {rank}, unharmed: {end:?}");
    }
    let traffic = net.traffic();
    let fault = |_| {
        let (stream, bytes) = dice.pick(&traffic);
        let after = match dice.below(3) {
            // In the handshake and just behind it.
            0 => dice.below(120) as u64,
            _ => dice.roll() % (bytes + 1),
        };
        Fault { stream, after: after.min(bytes), harm: harm(stream, after, *sealing, dice) }
    };
    (0..count).map(fault).collect()
}

/// What is wrong with the way a world ended.
fn complaint(fault: Fault, ends: &[(End, Duration)]) -> Option<String> {
    let Fault { stream: Stream { from, to, .. }, harm, .. } = fault;
    let is_unformed = |(end, _): &(End, Duration)| matches!(end, End::Unformed(_));
    let never_formed = ends.iter().any(is_unformed);
    for (rank, (end, time)) in ends.iter().enumerate() {
        let blamed = match end {
            End::Failed(error) => error.blames(),
            _ => None,
        };
        let is_guilty = |blamed: Rank| match harm {
            Harm::Kill(victim) => blamed.index() == victim,
            _ if rank == from => blamed.index() == to,
            _ if rank == to => blamed.index() == from,
            _ => blamed.index() == from || blamed.index() == to,
        };
        let fine = match end {
            End::Right => true,
            End::Wrong(_) => false,
            _ if harm == Harm::Kill(rank) => true,
            _ if harm == Harm::Slow => false,
            // Some found the world formed before others gave up waiting for the rest.
            End::Unformed(_) | End::Failed(_) if never_formed => true,
            End::Unformed(_) => false,
            End::Failed(_) => blamed.is_some_and(is_guilty),
        };
        if !fine || *time > PROMISE {
            return Some(format!("rank {rank} after {time:?}: {end:?}"));
        }
    }
    None
}

#[test]
fn harm_at_any_byte_ends_in_an_error_that_names_the_peer_or_in_the_right_result() {
    let seed = seed();
    let mut trials = Vec::new();
    for (number, world) in harmed().iter().enumerate() {
        for (collective, length) in algorithms() {
            let mut dice = Dice::part(seed, 1000 * number + trials.len());
            let case = Arc::new(Case::of(collective, length, RANKS, &mut dice));
            let faults = faults(&case, world, effort(5), &mut dice);
            trials.extend(faults.into_iter().map(|fault| (case.clone(), world.0.clone(), fault)));
        }
    }
    let (next, struck) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((case, setup, fault)) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            let net = Net::new(Some(*fault));
            let ends = std::panic::catch_unwind(|| trial(case, setup, &net)).unwrap_or_else(|_| {
                panic!("seed {seed}: {}: {case}\n{fault:?}\na call without end", setup.name)
            });
            if let Some(complaint) = complaint(*fault, &ends) {
                panic!(
                    "seed {seed}: {}: {case}\n{fault:?}\n{complaint}\nall: {ends:?}",
                    setup.name
                );
            }
            struck.fetch_add(usize::from(net.has_struck()), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| (0..CROWD).for_each(|_| drop(scope.spawn(work))));
    let struck = struck.into_inner();
    assert!(struck * 2 > trials.len(), "only {struck} of {} faults happened", trials.len());
}
