//! What happens to the others when a rank dies, leaves or stalls: they always get an error that
//! names it, in time, and never wait forever.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ronde_control::cause::CauseKind;
use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::{Rank, ReduceOp};
use ronde_core::{Error, Loss};
use ronde_testkit::{Tensor, TestRank, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];
const TIME_LIMIT: Duration = Duration::from_secs(2);

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn a_death_reported_by_the_launcher_ends_every_call_of_every_other_rank() {
    for transport in TRANSPORTS {
        let (ready, done) = (Barrier::new(3), Barrier::new(3));
        World::new(3).over(transport).run(|member| {
            let tensor = Tensor::floats(&[1.0; 100]);
            if member.rank() == 2 {
                ready.wait();
                member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
                done.wait();
                return;
            }
            let pending = member.reduce("pending", ReduceOp::Sum, &tensor, &tensor).unwrap();
            ready.wait();
            let start = Instant::now();
            let error = member.wait(&pending).unwrap_err();
            assert!(start.elapsed() < TIME_LIMIT);
            let text = error.to_string();
            assert!(text.contains("lost rank 2 (testhost, slot 2): was killed"), "{text}");
            assert!(text.contains("`pending`"), "{text}");
            let loss = error.loss().unwrap();
            assert_eq!((loss.ranks, loss.kind), (vec![Rank(2)], CauseKind::Signal));
            assert_eq!(
                (loss.hosts, loss.tensor),
                (vec!["testhost".into()], Some("pending".into()))
            );
            let later = member.run("later", sum(), &tensor, &tensor).unwrap_err();
            assert_eq!(later.blames(), Some(Rank(2)));
            done.wait();
        });
    }
}

#[test]
fn a_death_in_the_middle_of_adasum_ends_it_with_an_error_that_names_the_rank() {
    for transport in TRANSPORTS {
        for fatal in 0..4 {
            World::new(3).over(transport).run(|member| {
                let tensor = Tensor::floats(&vec![1.0; 500_000]);
                let error = (0..).find_map(|turn| {
                    let pending = member.reduce("x", ReduceOp::Adasum, &tensor, &tensor);
                    if member.rank() == 2 && turn == fatal {
                        member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
                        member.engine.shutdown(None);
                        return Some(Error::Shutdown);
                    }
                    pending.and_then(|pending| member.wait(&pending)).err()
                });
                let error = error.expect("it ends only with an error");
                if member.rank() != 2 {
                    assert_eq!(error.blames(), Some(Rank(2)), "{transport:?}: {error}");
                }
            });
        }
    }
}

#[test]
fn a_rank_that_leaves_while_others_wait_is_named_with_its_reason() {
    for transport in TRANSPORTS {
        for leaver in 0..3 {
            World::new(3).over(transport).run(|member| {
                let tensor = Tensor::floats(&[1.0; 100]);
                if member.rank() == leaver {
                    member.engine.shutdown(Some("ValueError: boom".into()));
                    return;
                }
                let start = Instant::now();
                let error = member.run("x", sum(), &tensor, &tensor).unwrap_err();
                assert!(start.elapsed() < TIME_LIMIT, "{transport:?} {leaver}");
                assert!(matches!(error, Error::Left { .. }), "{error:?}");
                let text = error.to_string();
                assert!(text.contains("it failed with ValueError: boom"), "{text}");
                assert_eq!(error.blames(), Some(Rank(leaver as u32)));
            });
        }
    }
}

#[test]
fn results_completed_before_a_rank_leaves_are_correct_on_all_ranks() {
    for transport in TRANSPORTS {
        for round in 0..20 {
            World::new(3).over(transport).run(|member| {
                let tensor = Tensor::floats(&vec![1.0; 1 + round * 5000]);
                member.run("x", sum(), &tensor, &tensor).unwrap();
                // The first rank shuts down while the others may still be reading.
                member.engine.shutdown(None);
                assert!(tensor.as_floats().iter().all(|value| *value == 3.0));
            });
        }
    }
}

#[test]
fn work_in_flight_at_shutdown_fails_here_and_elsewhere() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let tensor = Tensor::floats(&[1.0; 10]);
            if member.rank() == 1 {
                let mine = member.reduce("mine", ReduceOp::Sum, &tensor, &tensor).unwrap();
                member.engine.shutdown(None);
                assert_eq!(member.wait(&mine).unwrap_err(), Error::Shutdown);
                let later = member.reduce("later", ReduceOp::Sum, &tensor, &tensor).unwrap_err();
                assert_eq!(later, Error::Shutdown);
            } else {
                let error = member.run("other", sum(), &tensor, &tensor).unwrap_err();
                assert_eq!(error.blames(), Some(Rank(1)));
            }
        });
    }
}

#[test]
fn a_stall_ends_the_job_when_asked_to_and_names_the_late_ranks() {
    for transport in TRANSPORTS {
        let done = Barrier::new(2);
        let world = World::new(2).over(transport).with(|settings| {
            settings.stall_warning = Some(Duration::from_millis(100));
            settings.stall_shutdown = Some(Duration::from_millis(300));
        });
        world.run(|member: &TestRank| {
            let tensor = Tensor::floats(&[1.0; 10]);
            if member.rank() == 1 {
                let start = Instant::now();
                let error = member.run("lonely", sum(), &tensor, &tensor).unwrap_err();
                assert!(start.elapsed() < Duration::from_secs(5));
                let late = "0: [lonely] (testhost, slot 0; has submitted nothing yet)";
                assert!(error.to_string().contains(late), "{error}");
                let loss = Loss {
                    ranks: vec![Rank(0)],
                    hosts: vec!["testhost".into()],
                    kind: CauseKind::Stalled,
                    tensor: Some("lonely".into()),
                };
                assert_eq!(error.loss(), Some(loss));
            }
            done.wait();
        });
    }
}

#[test]
fn worlds_leave_no_threads_or_descriptors() {
    let count = |folder: &str| std::fs::read_dir(folder).expect("procfs is mounted").count();
    let before = (count("/proc/self/task"), count("/proc/self/fd"));
    for transport in TRANSPORTS {
        for _ in 0..30 {
            World::new(3).over(transport).run(|member| member.barrier("b").unwrap());
        }
    }
    // Threads of the world are joined; the kernel may need a moment to forget them.
    let deadline = Instant::now() + Duration::from_secs(5);
    while (count("/proc/self/task"), count("/proc/self/fd")) > before {
        assert!(
            Instant::now() < deadline,
            "threads or descriptors are left over, before: {before:?}"
        );
        std::thread::yield_now();
    }
}
