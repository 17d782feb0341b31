//! Workers of an elastic job: worlds of any size one after the other in the same processes, attempts
//! that fail at every step of the way into one, and what worker and launcher say to each other.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use ronde_control::negotiate::{Kind, Request};
use ronde_control::settings::{Settings, Transport};
use ronde_control::watching::DumpTo;
use ronde_control::wire::{Change, DriverToRank, Milestone, RankToDriver};
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{Engine, News, Next, Outcome, Tensors};
use ronde_testkit::{ElasticLauncher, Member, Tensor};

/// Nobody waits longer for anything here, on however busy a machine.
const PROMISE: Duration = Duration::from_secs(10);

/// Whoever counts what the process has wants to be alone in it.
static ALONE: RwLock<()> = RwLock::new(());

fn settings(transport: Transport) -> Settings {
    let (mut settings, _) = ronde_control::settings::read(|_| None).expect("defaults are valid");
    settings.watching.dump = DumpTo::Nowhere;
    settings.transport = transport;
    settings
}

fn sum() -> Kind {
    Kind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

/// Runs one collective on some floats, and gives what came of it.
fn run(engine: &Engine, kind: Kind, values: &[f32]) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(values);
    let tensors = Tensor::submission(&kind, [(&tensor, &tensor)]);
    let request: Request = Member::request(kind.name(), kind, &tensor);
    let ticket = engine.submit(request, tensors, Next::Waits)?;
    engine.wait(&ticket, Instant::now() + PROMISE);
    match ticket.take().expect("no call blocks for ever")? {
        Outcome::Made(made) => {
            let bytes = made[0].buffer.bytes();
            let (chunks, _) = bytes.as_chunks::<4>();
            Ok(chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect())
        }
        _ => Ok(tensor.as_floats()),
    }
}

/// Joins with all of these workers at once, while the launcher does something.
fn join_all(
    launcher: &ElasticLauncher,
    workers: &[u32],
    settings: &Settings,
    meanwhile: impl FnOnce(),
) -> Vec<Result<Engine, Error>> {
    std::thread::scope(|scope| {
        let join = |worker: &u32| {
            let worker = *worker;
            scope.spawn(move || launcher.join(worker, settings))
        };
        let joining: Vec<_> = workers.iter().map(join).collect();
        meanwhile();
        joining.into_iter().map(|thread| thread.join().expect("no worker panics")).collect()
    })
}

fn world(launcher: &ElasticLauncher, workers: &[u32], settings: &Settings) -> Vec<Engine> {
    let engines = join_all(launcher, workers, settings, || launcher.form(workers));
    engines.into_iter().map(|engine| engine.expect("the world forms")).collect()
}

/// All ranks sum up their numbers, each on a thread of its own.
fn agree(engines: &[Engine]) {
    let expected = (0..engines.len()).sum::<usize>() as f32;
    std::thread::scope(|scope| {
        for (rank, engine) in engines.iter().enumerate() {
            let place = engine.place();
            assert_eq!((place.rank.index(), place.size as usize), (rank, engines.len()));
            scope.spawn(move || {
                let reduced = run(engine, sum(), &[rank as f32; 1000]);
                let reduced = reduced.expect("nobody dies here");
                assert_eq!(reduced, [expected; 1000]);
            });
        }
    });
}

#[test]
fn one_worker_alone_can_do_everything_and_hears_the_launcher() {
    let _shared = ALONE.read().unwrap();
    for transport in [Transport::Auto, Transport::Tcp] {
        let (launcher, settings) = (ElasticLauncher::start(), settings(transport));
        let engine = world(&launcher, &[4], &settings).remove(0);
        let place = engine.place();
        assert_eq!((place.rank, place.size, place.local_rank), (Rank(0), 1, 0));
        let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
        let kinds = [
            Kind::Allreduce { op, prescale, postscale },
            Kind::Allreduce { op: ReduceOp::Adasum, prescale, postscale },
            Kind::Reducescatter { op, prescale, postscale },
            Kind::Broadcast { root: Rank(0) },
            Kind::Allgather,
        ];
        for length in [1, 100_000] {
            let alltoall = Kind::Alltoall { splits: vec![length] };
            for kind in kinds.iter().cloned().chain([alltoall]) {
                let values = vec![3.0; length as usize];
                assert_eq!(run(&engine, kind.clone(), &values).unwrap(), values, "{kind:?}");
            }
        }
        let add = Kind::AddSet { ranks: vec![Rank(0)] };
        for (name, kind) in [("add", add), ("barrier", Kind::Barrier)] {
            let (set, dtype) = (SetId::WORLD, DType::U8);
            let request = Request { name: name.into(), set, kind, dtype, shapes: vec![] };
            let ticket = engine.submit(request, Tensors::NONE, Next::Waits).unwrap();
            engine.wait(&ticket, Instant::now() + PROMISE);
            assert!(ticket.take().unwrap().is_ok(), "{name}");
        }
        let ticket = engine.join_in(Next::Waits).unwrap();
        engine.wait(&ticket, Instant::now() + PROMISE);
        assert!(matches!(ticket.take(), Some(Ok(Outcome::Joined { last: Rank(0) }))));

        let updates = engine.updates().unwrap();
        let change = Change { added: true, ..Change::default() };
        launcher.tell(&[4], &DriverToRank::Update { change });
        let heard = updates.wait(0, Instant::now() + PROMISE);
        assert!(matches!(heard, News::Heard { change: seen, .. } if seen == change), "{heard:?}");
        run(&engine, sum(), &[1.0]).expect("news end nothing");
        drop(launcher);
        let error = (0..).find_map(|_| run(&engine, sum(), &[1.0]).err()).unwrap();
        assert!(matches!(error, Error::LauncherGone { .. }), "{error}");
    }
}

#[test]
fn a_world_shrinks_and_grows_in_the_same_processes() {
    let _shared = ALONE.read().unwrap();
    for transport in [Transport::Auto, Transport::Tcp] {
        let (launcher, settings) = (ElasticLauncher::start(), settings(transport));
        let mut engines = world(&launcher, &[0, 1, 2], &settings);
        agree(&engines);
        let lost = engines.remove(1);
        launcher.lose(&[0, 2], 1, "was killed by signal 9 (SIGKILL)");
        let error = run(&engines[0], sum(), &[1.0]).unwrap_err();
        assert_eq!(error.blames(), Some(Rank(1)));
        drop((engines, lost));
        // The first worker comes last, and worker 7 is new.
        for workers in [&[2, 0][..], &[2], &[2, 7, 0]] {
            let engines = world(&launcher, workers, &settings);
            agree(&engines);
            let places: Vec<_> = engines.iter().map(|it| it.place().local_rank).collect();
            let mut sorted = workers.to_vec();
            sorted.sort_unstable();
            let seat = |worker: &u32| sorted.binary_search(worker).unwrap() as u32;
            assert_eq!(places, workers.iter().map(seat).collect::<Vec<_>>());
            assert_eq!(engines[0].place().local_size as usize, workers.len());
        }
    }
}

#[test]
fn what_a_worker_has_to_say_reaches_the_launcher() {
    let _shared = ALONE.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let engines = world(&launcher, &[0, 1], &settings);
    engines[1].reached(Milestone::State);
    engines[1].reached(Milestone::Commit);
    engines[1].departing("it was sent SIGTERM".into());
    assert_eq!(launcher.said(1), RankToDriver::Reached(Milestone::State));
    assert_eq!(launcher.said(1), RankToDriver::Reached(Milestone::Commit));
    assert_eq!(launcher.said(1), RankToDriver::Departing { reason: "it was sent SIGTERM".into() });
    let updates = engines[0].updates().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| updates.wait(0, Instant::now() + PROMISE));
        engines[0].shutdown(None);
        assert_eq!(waits.join().unwrap(), News::Over, "nobody waits for a world that has ended");
    });
    drop(launcher);
    engines[1].reached(Milestone::Commit);
}

#[test]
fn a_loss_is_written_down_only_where_somebody_has_asked_for_it() {
    let _shared = ALONE.read().unwrap();
    let folder = std::env::temp_dir().join(format!("ronde-losses-{}", std::process::id()));
    for (dump, written) in [(DumpTo::Temporary, 0), (DumpTo::Directory(folder.clone()), 1)] {
        let (launcher, mut settings) = (ElasticLauncher::start(), settings(Transport::Auto));
        settings.watching.dump = dump;
        let engines = world(&launcher, &[0, 1], &settings);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| run(&engines[0], sum(), &[1.0]).unwrap_err());
            launcher.lose(&[0, 1], 1, "was killed");
            assert_eq!(waits.join().unwrap().blames(), Some(Rank(1)));
        });
        drop(engines);
        let mine = format!("-{}-", std::process::id());
        let names = [folder.as_path(), &std::env::temp_dir()].map(|folder| {
            let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
            files
                .filter(|file| {
                    let name = file.file_name().to_string_lossy().into_owned();
                    name.starts_with("ronde-flight-") && name.contains(&mine)
                })
                .count()
        });
        assert_eq!(names, [written, 0]);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_worker_comes_again_when_the_launcher_says_so_at_any_step() {
    let _shared = ALONE.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let again = DriverToRank::Again { reason: "worker 9 has died".into() };
    let everybody = [0, 1, 2];
    let engines = join_all(&launcher, &everybody, &settings, || {
        // 1. Before anybody is a rank.
        launcher.await_all(&everybody);
        launcher.tell(&everybody, &again);
        // 2. Between the world and its layout; two of them are faster than the third.
        launcher.seat(&everybody);
        launcher.located(&[0, 2]);
        launcher.tell(&everybody, &again);
        // 3. When all wait for the layout.
        launcher.seat(&everybody);
        launcher.located(&everybody);
        launcher.lose(&everybody, 9, "was killed");
        // 4. While they share memory: the world has a third rank that never was a process.
        launcher.await_all(&everybody);
        launcher.seat(&[0, 1]);
        launcher.located(&[0, 1]);
        let leaders = vec![Rank(0), Rank(0)];
        launcher.tell(&[1], &DriverToRank::Layout { leaders });
        launcher.lose(&[0, 1], 0, "was killed");
        // 5. Without a word.
        launcher.await_all(&everybody);
        launcher.hang_up(1);
        launcher.form(&[1, 2, 0]);
    });
    let engines: Vec<Engine> = engines.into_iter().map(|engine| engine.unwrap()).collect();
    let ranks: Vec<u32> = engines.iter().map(|engine| engine.place().rank.0).collect();
    assert_eq!(ranks, [2, 0, 1]);
}

#[test]
fn news_that_come_while_a_worker_joins_are_kept() {
    let _shared = ALONE.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let change = Change { removed: true, ..Change::default() };
    let engines = join_all(&launcher, &[0, 1], &settings, || {
        launcher.seat(&[0, 1]);
        launcher.tell(&[0, 1], &DriverToRank::Ask);
        launcher.tell(&[0], &DriverToRank::Update { change });
        launcher.lay_out(&[0, 1]);
    });
    let engine = engines.into_iter().next().unwrap().unwrap();
    let News::Heard { change: heard, .. } = engine.updates().unwrap().wait(0, Instant::now())
    else {
        panic!("nothing was kept")
    };
    assert_eq!(heard, change);
}

#[test]
fn a_worker_that_is_not_wanted_says_why_and_one_that_is_refused_comes_once() {
    let _shared = ALONE.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let removed = join_all(&launcher, &[3], &settings, || {
        launcher.await_all(&[3]);
        launcher.tell(&[3], &DriverToRank::Removed { reason: "its host is gone".into() });
    });
    let error = removed.into_iter().next().unwrap().err().unwrap();
    let text = "testhost[3] has been removed from elastic job: its host is gone";
    assert_eq!(error.to_string(), text);
    let refused = join_all(&launcher, &[3], &settings, || {
        launcher.await_all(&[3]);
        launcher.tell(&[3], &DriverToRank::Refused { reason: "wrong version".into() });
    });
    let error = refused.into_iter().next().unwrap().err().unwrap();
    assert_eq!(error, Error::Setup("wrong version".into()));
}

#[test]
fn a_worker_whose_launcher_is_gone_does_not_wait() {
    let _shared = ALONE.read().unwrap();
    let launcher = Arc::new(ElasticLauncher::start());
    let (address, key) = (launcher.address(), launcher.key().clone());
    let waits = std::thread::spawn(move || {
        let place = ronde_testkit::elastic_place(0, address, key);
        Engine::join(&settings(Transport::Auto), place).err()
    });
    launcher.await_all(&[0]);
    let start = Instant::now();
    drop(launcher);
    let error = waits.join().unwrap().unwrap();
    assert!(error.to_string().contains("could not be reached"), "{error}");
    assert!(start.elapsed() < PROMISE);
}

#[test]
fn worlds_that_are_lost_leave_neither_threads_nor_descriptors_nor_memory() {
    let _alone = ALONE.write().unwrap();
    let count = |folder: &str| std::fs::read_dir(folder).expect("procfs is mounted").count();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("ronde").count();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let everybody = [0, 1, 2];
    let once = |turn: u32| {
        let engines = world(&launcher, &everybody, &settings);
        let victim = turn % 3;
        let pending = Tensor::floats(&[1.0; 10]);
        let request = Member::request("pending", sum(), &pending);
        let tensors = Tensor::submission(&sum(), [(&pending, &pending)]);
        let survivor = &engines[(turn as usize + 1) % 3];
        let ticket = survivor.submit(request, tensors, Next::GoesOn).unwrap();
        launcher.lose(&everybody, victim, "was killed");
        survivor.wait(&ticket, Instant::now() + PROMISE);
        assert_eq!(ticket.take().unwrap().unwrap_err().blames(), Some(Rank(victim)));
    };
    once(0);
    let before = (count("/proc/self/task"), count("/proc/self/fd"), maps());
    (0..50).for_each(once);
    let deadline = Instant::now() + PROMISE;
    let now = || (count("/proc/self/task"), count("/proc/self/fd"), maps());
    while now() > before {
        assert!(Instant::now() < deadline, "{before:?} became {:?}", now());
        std::thread::yield_now();
    }
}
