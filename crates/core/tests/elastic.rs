//! Workers of an elastic job: worlds of any size one after another in the same processes, attempts
//! to join that fail at every step, and the messages between worker and launcher.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::{Settings, Transport};
use ronde_control::watching::DumpTo;
use ronde_control::wire::{Change, DriverToRank, Milestone, RankToDriver};
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Engine, Outcome, Tensors, UpdateWait};
use ronde_testkit::{ElasticLauncher, Tensor, TestRank};

/// Nothing here waits longer, however busy the machine.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Locked exclusively by the test that counts the resources of this process.
static PROCESS: RwLock<()> = RwLock::new(());

fn settings(transport: Transport) -> Settings {
    let (mut settings, _) = ronde_control::settings::read(|_| None).expect("defaults are valid");
    settings.watching.dump = DumpTo::Nowhere;
    settings.transport = transport;
    settings
}

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

/// Runs one collective on some floats, and returns the result.
fn run(engine: &Engine, kind: CollectiveKind, values: &[f32]) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(values);
    let tensors = Tensor::submission(&kind, [(&tensor, &tensor)]);
    let request: Request = TestRank::request(kind.name(), kind, &tensor);
    let ticket = engine.submit(request, tensors, AfterSubmit::Waits)?;
    engine.wait(&ticket, Instant::now() + TIME_LIMIT);
    match ticket.take().expect("no call blocks forever")? {
        Outcome::Made(made) => {
            let bytes = made[0].buffer.bytes();
            let (chunks, _) = bytes.as_chunks::<4>();
            Ok(chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect())
        }
        _ => Ok(tensor.as_floats()),
    }
}

/// Joins with all of these workers at once, while `meanwhile` runs on the launcher's side.
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

/// All ranks sum up their rank numbers, each on its own thread.
fn check_sum(engines: &[Engine]) {
    let expected = (0..engines.len()).sum::<usize>() as f32;
    std::thread::scope(|scope| {
        for (rank, engine) in engines.iter().enumerate() {
            let place = engine.place();
            assert_eq!((place.rank.index(), place.size as usize), (rank, engines.len()));
            scope.spawn(move || {
                let reduced = run(engine, sum(), &[rank as f32; 1000]);
                let reduced = reduced.expect("no rank dies here");
                assert_eq!(reduced, [expected; 1000]);
            });
        }
    });
}

#[test]
fn a_single_worker_can_do_everything_and_receives_updates() {
    let _shared = PROCESS.read().unwrap();
    for transport in [Transport::Auto, Transport::Tcp] {
        let (launcher, settings) = (ElasticLauncher::start(), settings(transport));
        let engine = world(&launcher, &[4], &settings).remove(0);
        let place = engine.place();
        assert_eq!((place.rank, place.size, place.local_rank), (Rank(0), 1, 0));
        let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
        let kinds = [
            CollectiveKind::Allreduce { op, prescale, postscale },
            CollectiveKind::Allreduce { op: ReduceOp::Adasum, prescale, postscale },
            CollectiveKind::Reducescatter { op, prescale, postscale },
            CollectiveKind::Broadcast { root: Rank(0) },
            CollectiveKind::Allgather,
        ];
        for length in [1, 100_000] {
            let alltoall = CollectiveKind::Alltoall { splits: vec![length] };
            for kind in kinds.iter().cloned().chain([alltoall]) {
                let values = vec![3.0; length as usize];
                assert_eq!(run(&engine, kind.clone(), &values).unwrap(), values, "{kind:?}");
            }
        }
        let add = CollectiveKind::AddSet { ranks: vec![Rank(0)] };
        for (name, kind) in [("add", add), ("barrier", CollectiveKind::Barrier)] {
            let (set, dtype) = (SetId::WORLD, DType::U8);
            let request = Request {
                name: name.into(),
                set,
                kind,
                dtype,
                shapes: vec![],
                device: DeviceKind::Cpu,
            };
            let ticket = engine.submit(request, Tensors::NONE, AfterSubmit::Waits).unwrap();
            engine.wait(&ticket, Instant::now() + TIME_LIMIT);
            assert!(ticket.take().unwrap().is_ok(), "{name}");
        }
        let ticket = engine.join_in(AfterSubmit::Waits).unwrap();
        engine.wait(&ticket, Instant::now() + TIME_LIMIT);
        assert!(matches!(ticket.take(), Some(Ok(Outcome::Joined { last: Rank(0) }))));

        let updates = engine.updates().unwrap();
        let change = Change { added: true, ..Change::default() };
        launcher.tell(&[4], &DriverToRank::Update { change });
        let update = updates.wait(0, Instant::now() + TIME_LIMIT);
        assert!(
            matches!(update, UpdateWait::Heard { change: seen, .. } if seen == change),
            "{update:?}"
        );
        run(&engine, sum(), &[1.0]).expect("an update ends nothing");
        drop(launcher);
        let error = (0..).find_map(|_| run(&engine, sum(), &[1.0]).err()).unwrap();
        assert!(matches!(error, Error::LauncherGone { .. }), "{error}");
    }
}

#[test]
fn a_world_shrinks_and_grows_in_the_same_processes() {
    let _shared = PROCESS.read().unwrap();
    for transport in [Transport::Auto, Transport::Tcp] {
        let (launcher, settings) = (ElasticLauncher::start(), settings(transport));
        let mut engines = world(&launcher, &[0, 1, 2], &settings);
        check_sum(&engines);
        let lost = engines.remove(1);
        launcher.lose(&[0, 2], 1, "was killed by signal 9 (SIGKILL)");
        let error = run(&engines[0], sum(), &[1.0]).unwrap_err();
        assert_eq!(error.blames(), Some(Rank(1)));
        drop((engines, lost));
        // The first worker gets the last rank, and worker 7 is new.
        for workers in [&[2, 0][..], &[2], &[2, 7, 0]] {
            let engines = world(&launcher, workers, &settings);
            check_sum(&engines);
            let places: Vec<_> = engines.iter().map(|it| it.place().local_rank).collect();
            let mut sorted = workers.to_vec();
            sorted.sort_unstable();
            let slot = |worker: &u32| sorted.binary_search(worker).unwrap() as u32;
            assert_eq!(places, workers.iter().map(slot).collect::<Vec<_>>());
            assert_eq!(engines[0].place().local_size as usize, workers.len());
        }
    }
}

#[test]
fn messages_of_a_worker_reach_the_launcher() {
    let _shared = PROCESS.read().unwrap();
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
        let waits = scope.spawn(|| updates.wait(0, Instant::now() + TIME_LIMIT));
        engines[0].shutdown(None);
        assert_eq!(
            waits.join().unwrap(),
            UpdateWait::Over,
            "waiting for updates stops when the world has ended"
        );
    });
    drop(launcher);
    engines[1].reached(Milestone::Commit);
}

#[test]
fn a_loss_is_dumped_only_to_a_directory_that_was_set() {
    let _shared = PROCESS.read().unwrap();
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
fn a_worker_joins_again_when_told_to_at_any_step() {
    let _shared = PROCESS.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let again = DriverToRank::Again { reason: "worker 9 has died".into() };
    let all = [0, 1, 2];
    let engines = join_all(&launcher, &all, &settings, || {
        // 1. Before any worker has a rank.
        launcher.await_all(&all);
        launcher.tell(&all, &again);
        // 2. Between the world and its layout; two of them are faster than the third.
        launcher.assign(&all);
        launcher.located(&[0, 2]);
        launcher.tell(&all, &again);
        // 3. When all wait for the layout.
        launcher.assign(&all);
        launcher.located(&all);
        launcher.lose(&all, 9, "was killed");
        // 4. While they share memory: the world has a third rank that never was a process.
        launcher.await_all(&all);
        launcher.assign(&[0, 1]);
        launcher.located(&[0, 1]);
        let leaders = vec![Rank(0), Rank(0)];
        launcher.tell(&[1], &DriverToRank::Layout { leaders });
        launcher.lose(&[0, 1], 0, "was killed");
        // 5. Without any message.
        launcher.await_all(&all);
        launcher.hang_up(1);
        launcher.form(&[1, 2, 0]);
    });
    let engines: Vec<Engine> = engines.into_iter().map(|engine| engine.unwrap()).collect();
    let ranks: Vec<u32> = engines.iter().map(|engine| engine.place().rank.0).collect();
    assert_eq!(ranks, [2, 0, 1]);
}

#[test]
fn updates_received_while_joining_are_kept() {
    let _shared = PROCESS.read().unwrap();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let change = Change { removed: true, ..Change::default() };
    let engines = join_all(&launcher, &[0, 1], &settings, || {
        launcher.assign(&[0, 1]);
        launcher.tell(&[0, 1], &DriverToRank::Ask);
        launcher.tell(&[0], &DriverToRank::Update { change });
        launcher.lay_out(&[0, 1]);
    });
    let engine = engines.into_iter().next().unwrap().unwrap();
    let UpdateWait::Heard { change: kept, .. } = engine.updates().unwrap().wait(0, Instant::now())
    else {
        panic!("nothing was kept")
    };
    assert_eq!(kept, change);
}

#[test]
fn a_removed_worker_reports_the_reason_and_a_refused_one_does_not_retry() {
    let _shared = PROCESS.read().unwrap();
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
    let _shared = PROCESS.read().unwrap();
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
    assert!(start.elapsed() < TIME_LIMIT);
}

#[test]
fn lost_worlds_leave_no_threads_descriptors_or_memory() {
    let _alone = PROCESS.write().unwrap();
    let count = |folder: &str| std::fs::read_dir(folder).expect("procfs is mounted").count();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("ronde").count();
    let (launcher, settings) = (ElasticLauncher::start(), settings(Transport::Auto));
    let all = [0, 1, 2];
    let once = |turn: u32| {
        let engines = world(&launcher, &all, &settings);
        let victim = turn % 3;
        let pending = Tensor::floats(&[1.0; 10]);
        let request = TestRank::request("pending", sum(), &pending);
        let tensors = Tensor::submission(&sum(), [(&pending, &pending)]);
        let survivor = &engines[(turn as usize + 1) % 3];
        let ticket = survivor.submit(request, tensors, AfterSubmit::GoesOn).unwrap();
        launcher.lose(&all, victim, "was killed");
        survivor.wait(&ticket, Instant::now() + TIME_LIMIT);
        assert_eq!(ticket.take().unwrap().unwrap_err().blames(), Some(Rank(victim)));
    };
    once(0);
    let before = (count("/proc/self/task"), count("/proc/self/fd"), maps());
    (0..50).for_each(once);
    let deadline = Instant::now() + TIME_LIMIT;
    let now = || (count("/proc/self/task"), count("/proc/self/fd"), maps());
    while now() > before {
        assert!(Instant::now() < deadline, "{before:?} became {:?}", now());
        std::thread::yield_now();
    }
}
