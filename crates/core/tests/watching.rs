//! Observing a running world: the timeline, the flight recorder and the metrics.
#![expect(clippy::unwrap_used, reason = "a failing step fails the test")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::status::RankReport;
use ronde_control::watching::{Cycles, DumpTo, MetricsAt, TimelineRequest};
use ronde_control::{Rank, ReduceOp};
use ronde_testkit::{Tensor, TestLauncher, World};

const TRANSPORTS: [(Transport, &str); 2] = [(Transport::Auto, "SHM"), (Transport::Tcp, "TCP")];
const TIME_LIMIT: Duration = Duration::from_secs(20);

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ronde-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn texts(&self) -> Vec<String> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that a text is an array with one object per line; returns these lines.
fn records(text: &str) -> Vec<&str> {
    let body = text.strip_prefix("[\n").and_then(|rest| rest.strip_suffix("\n]\n"));
    let lines: Vec<&str> = body.unwrap_or_else(|| panic!("{text}")).split(",\n").collect();
    assert!(lines.iter().all(|line| line.starts_with('{') && line.ends_with('}')), "{text}");
    lines
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn the_timeline_shows_each_step_and_is_complete_while_it_grows() {
    for (transport, way) in TRANSPORTS {
        let folder = Folder::new(&format!("timeline-{way}"));
        let path = folder.0.join("timeline.json");
        let request = TimelineRequest { path: Some(path.clone()), cycles: Cycles::Marked };
        let world = World::new(3).over(transport).with(|s| s.watching.timeline = Some(request));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                until("the timeline exists", || path.exists());
                let mut seen = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let begin = Instant::now();
                    let text = fs::read_to_string(&path).unwrap();
                    // A read that takes longer than the writer's pause may see a later state.
                    if begin.elapsed() < Duration::from_millis(40) {
                        seen = seen.max(records(&text).len());
                    }
                }
                seen
            });
            world.run(|member| {
                let tensor = Tensor::floats(&[1.0; 100]);
                for _ in 0..300 {
                    member.run("allreduce.x", sum(), &tensor, &tensor).unwrap();
                }
                member
                    .run(
                        "broadcast.y",
                        CollectiveKind::Broadcast { root: Rank(1) },
                        &tensor,
                        &tensor,
                    )
                    .unwrap();
            });
            is_over.store(true, Ordering::SeqCst);
            assert!(reader.join().unwrap() > 2);
        });
        let text = fs::read_to_string(&path).unwrap();
        let count = |part: &str| records(&text).iter().filter(|line| line.contains(part)).count();
        assert_eq!(count(r#""name":"allreduce.x""#), 1);
        assert_eq!(count(r#""name":"NEGOTIATE_ALLREDUCE""#), 300);
        assert_eq!(count(r#""name":"ALLREDUCE""#), 300);
        assert_eq!(count(r#""name":"QUEUE""#), 301);
        assert_eq!(count(&format!("\"name\":\"{way}_ALLREDUCE\"")), 300);
        assert_eq!(count(&format!("\"name\":\"{way}_BROADCAST\"")), 1);
        assert_eq!(count(r#""name":"CYCLE_START""#), 301);
        (0..3).for_each(|rank| assert_eq!(count(&format!("\"X\",\"name\":\"{rank}\"")), 301));
        assert_eq!(count(r#""ph":"B""#), count(r#""ph":"E""#));
        assert_eq!(count(r#""args":{"dtype":"float32","shape":"[100]"}"#), 301);
    }
}

#[test]
fn a_timeline_starts_and_stops_at_run_time() {
    let folder = Folder::new("dynamic");
    let request = TimelineRequest { path: None, cycles: Cycles::Unmarked };
    let world = World::new(2).with(|settings| settings.watching.timeline = Some(request));
    world.run(|member| {
        let tensor = Tensor::floats(&[1.0; 10]);
        let reduce = |name: &str| drop(member.run(name, sum(), &tensor, &tensor).unwrap());
        reduce("before");
        for (file, name) in [("first.json", "during"), ("second.json", "again")] {
            let path = folder.0.join(file);
            member.engine.start_timeline(&path, Cycles::Unmarked).unwrap();
            member.barrier("started").unwrap();
            reduce(name);
            member.engine.stop_timeline().unwrap();
            member.barrier("stopped").unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let name_of = |name: &str| format!("{{\"name\":\"{name}\"}}");
            assert!(text.contains(&name_of(name)), "{text}");
            assert!(!text.contains(&name_of("before")), "{text}");
            assert!(!text.contains("CYCLE_START"));
            records(&text);
        }
        member.engine.stop_timeline().unwrap();
        let error = member.engine.start_timeline(Path::new("no/such/x"), Cycles::Marked);
        assert_eq!(error.is_err(), member.rank() == 0);
    });
}

#[test]
fn a_timeline_that_was_not_enabled_at_the_start_is_refused() {
    World::new(2).run(|member| {
        let error = member.engine.start_timeline(Path::new("x"), Cycles::Unmarked).unwrap_err();
        let text = "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.";
        assert_eq!(error.to_string(), text);
        assert_eq!(member.engine.stop_timeline().unwrap_err().to_string(), text);
    });
}

#[test]
fn a_world_of_one_has_a_timeline_too() {
    let folder = Folder::new("alone");
    let path = folder.0.join("t.json");
    let request = TimelineRequest { path: Some(path.clone()), cycles: Cycles::Marked };
    World::new(1).with(|settings| settings.watching.timeline = Some(request)).run(|member| {
        let tensor = Tensor::floats(&[1.0; 10]);
        member.run("x", sum(), &tensor, &tensor).unwrap();
    });
    let text = fs::read_to_string(&path).unwrap();
    for name in ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "LOCAL_ALLREDUCE", "CYCLE_START"] {
        assert!(text.contains(&format!("\"name\":\"{name}\"")), "{name}: {text}");
    }
    records(&text);
}

#[test]
fn a_death_makes_the_others_dump_their_flight_recorder() {
    for (transport, way) in TRANSPORTS {
        let folder = Folder::new(&format!("death-{way}"));
        let dump = DumpTo::Directory(folder.0.clone());
        let (ready, done) = (Barrier::new(3), Barrier::new(3));
        let world = World::new(3).over(transport).with(|settings| settings.watching.dump = dump);
        world.run(|member| {
            let tensor = Tensor::floats(&[1.0; 100]);
            member.run("good", sum(), &tensor, &tensor).unwrap();
            if member.rank() == 2 {
                ready.wait();
                member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
            } else {
                let pending = member.reduce("pending", ReduceOp::Sum, &tensor, &tensor).unwrap();
                ready.wait();
                member.wait(&pending).unwrap_err();
            }
            done.wait();
        });
        let texts = folder.texts();
        assert_eq!(texts.len(), 2, "{texts:?}");
        for (rank, text) in texts.iter().enumerate() {
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with(&format!("{{\"rank\":{rank},\"size\":3")), "{text}");
            assert!(lines[0].contains("lost rank 2 (testhost, slot 2)"), "{text}");
            assert!(lines[1].contains(r#""state":"finished","kind":"ALLREDUCE","name":"good""#));
            assert!(
                lines[1].contains(&format!("\"ranks\":3,\"bucket\":1,\"transport\":\"{way}\""))
            );
            assert!(lines[1].contains(if way == "SHM" { "express" } else { "doubling" }), "{text}");
            assert!(lines[1].contains(r#""bytes":400"#) && lines[1].contains("finished_us"));
            assert!(lines[2].contains(r#""state":"failed""#), "{text}");
            assert!(lines[2].contains(r#""name":"pending""#) && lines[2].contains("lost rank 2"));
        }
    }
}

#[test]
fn an_orderly_end_dumps_nothing() {
    let folder = Folder::new("orderly");
    let dump = DumpTo::Directory(folder.0.clone());
    World::new(2).with(|settings| settings.watching.dump = dump).run(|member| {
        let tensor = Tensor::floats(&[1.0; 100]);
        member.run("good", sum(), &tensor, &tensor).unwrap();
        let other = Tensor::floats(&vec![1.0; 50 + member.rank()]);
        member.run("mismatch", sum(), &other, &other).unwrap_err();
        member.barrier("end").unwrap();
    });
    assert_eq!(folder.texts(), [] as [String; 0]);
}

#[test]
fn a_stall_makes_every_rank_dump_its_flight_recorder() {
    let folder = Folder::new("stall");
    let dump = DumpTo::Directory(folder.0.clone());
    let world = World::new(2).with(|settings| {
        settings.watching.dump = dump;
        settings.stall_warning = Some(Duration::from_millis(100));
    });
    world.run(|member| {
        let tensor = Tensor::floats(&[1.0; 100]);
        member.run("both", sum(), &tensor, &tensor).unwrap();
        if member.rank() == 1 {
            until("both ranks write", || fs::read_dir(&folder.0).unwrap().count() == 2);
        }
        member.run("late", sum(), &tensor, &tensor).unwrap();
    });
    let texts = folder.texts();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts.iter().all(|text| text.contains(r#""reason":"a rank is late""#)));
    assert!(texts[0].contains(r#""state":"waiting","kind":"ALLREDUCE","name":"late""#));
    assert!(!texts[1].contains("late\", \"set\""), "{}", texts[1]);
}

#[test]
fn a_stall_that_ends_the_job_makes_the_late_rank_dump_too() {
    let folder = Folder::new("give-up");
    let dump = DumpTo::Directory(folder.0.clone());
    let world = World::new(2).with(|settings| {
        settings.watching.dump = dump;
        settings.stall_warning = None;
        settings.stall_shutdown = Some(Duration::from_millis(200));
    });
    world.run(|member| {
        let tensor = Tensor::floats(&[1.0; 100]);
        member.run("both", sum(), &tensor, &tensor).unwrap();
        match member.rank() {
            0 => drop(member.run("late", sum(), &tensor, &tensor).unwrap_err()),
            _ => until("the world ends", || member.engine.verdict().is_some()),
        }
    });
    let texts = folder.texts();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts.iter().all(|text| text.contains("waiting for the remainder of ranks")));
}

#[test]
fn a_rank_reports_what_it_has_done_and_what_it_waits_for() {
    for (transport, way) in TRANSPORTS {
        let together = Barrier::new(2);
        World::new(2).over(transport).run(|member| {
            let tensor = Tensor::floats(&[1.0; 100]);
            member.run("done", sum(), &tensor, &tensor).unwrap();
            let ticket = (member.rank() == 0).then(|| {
                let ticket = member.reduce("late", ReduceOp::Sum, &tensor, &tensor).unwrap();
                // An answer may be as old as the first question, and the other rank a step behind.
                let (own, other) = reports_of_two(&member.launcher, |own, other| {
                    own.outstanding == 1 && other.collectives == 1
                });
                assert_eq!((own.collectives, own.bytes), (1, 400), "{way}");
                assert_eq!(
                    (own.waiting[0].name.as_str(), own.waiting[0].released),
                    ("late", false)
                );
                assert_eq!(own.last.as_ref().unwrap().name, "done", "{way}");
                assert_eq!((other.collectives, other.outstanding), (1, 0), "{way}");
                ticket
            });
            together.wait();
            match ticket {
                Some(ticket) => drop(member.wait(&ticket).unwrap()),
                None => drop(member.run("late", sum(), &tensor, &tensor).unwrap()),
            }
        });
    }
}

/// Asks until the answers of both ranks are as wanted.
fn reports_of_two(
    launcher: &TestLauncher,
    wanted: impl Fn(&RankReport, &RankReport) -> bool,
) -> (RankReport, RankReport) {
    let mut answers = None;
    until("both ranks report it", || {
        launcher.ask();
        let mut last = [None, None];
        until("both ranks answer", || {
            for (rank, report) in launcher.reports() {
                last[rank.index()] = Some(report);
            }
            last.iter().all(Option::is_some)
        });
        let [own, other] = last.map(Option::unwrap);
        let is_wanted = wanted(&own, &other);
        answers = Some((own, other));
        is_wanted
    });
    answers.unwrap()
}

fn ask(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn each_rank_serves_its_metrics() {
    for (transport, _) in TRANSPORTS {
        let folder = Folder::new(&format!("metrics-{transport:?}"));
        let path = folder.0.join("metrics.sock");
        let at = MetricsAt::Unix(path.clone());
        World::new(2).over(transport).with(|s| s.watching.metrics = Some(at)).run(|member| {
            let tensor = Tensor::floats(&[1.0; 100]);
            for _ in 0..5 {
                member.run("x", sum(), &tensor, &tensor).unwrap();
            }
            let own = path.with_file_name(format!("metrics.sock.{}", member.rank()));
            let text = ask(UnixStream::connect(own).unwrap(), "/metrics");
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            let rank = member.rank();
            let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}: {text}");
            has("ronde_collectives_total{kind=\"allreduce\"} 5");
            has("ronde_collective_bytes_total{kind=\"allreduce\"} 2000");
            has("ronde_allreduce_seconds_count 5");
            has("ronde_queue_seconds_count 5");
            has("ronde_bucket_tensors_sum 5");
            has("ronde_stalls_total 0");
            assert!(text.contains(&format!("ronde_info{{rank=\"{rank}\",size=\"2\"")));
            let sent = text.lines().find_map(|l| l.strip_prefix("ronde_link_sent_bytes_total "));
            let sent: u64 = sent.unwrap().parse().unwrap();
            assert!(transport == Transport::Auto || sent >= 400, "{text}");
            member.barrier("end").unwrap();
        });
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "no socket is left over");
    }
}

#[test]
fn metrics_are_served_on_the_loopback_address_to_one_client_at_a_time() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    World::new(1).with(|s| s.watching.metrics = Some(MetricsAt::Loopback(free))).run(|member| {
        // A silent client holds up the others for a moment, not forever.
        let silent = TcpStream::connect(free).unwrap();
        let tensor = Tensor::floats(&[1.0; 100]);
        member.run("x", sum(), &tensor, &tensor).unwrap();
        let text = ask(TcpStream::connect(free).unwrap(), "/metrics");
        assert!(text.contains("ronde_collectives_total{kind=\"allreduce\"} 1\n"), "{text}");
        let text = ask(TcpStream::connect(free).unwrap(), "/");
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
        drop(silent);
    });
    assert!(TcpStream::connect(free).is_err(), "nothing listens any more");
}
