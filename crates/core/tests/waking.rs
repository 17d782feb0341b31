//! No thread sleeps while there is work, and none works when there is nothing to do.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::{Rank, ReduceOp};
use ronde_testkit::{Tensor, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];

fn reduce(op: ReduceOp) -> CollectiveKind {
    CollectiveKind::Allreduce { op, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn no_wake_up_is_lost_with_more_ranks_than_cores() {
    for transport in TRANSPORTS {
        let missed = World::new(5).over(transport).run(|member| {
            let (a, b) = (Tensor::floats(&[1.0; 9]), Tensor::floats(&[1.0; 9]));
            for round in 0..400 {
                // Two operations that are never fused, so that one is left over.
                let first = member.reduce("a", ReduceOp::Max, &a, &a).unwrap();
                let second = member.reduce("b", ReduceOp::Min, &b, &b).unwrap();
                if (round + member.rank()) % 3 == 0 {
                    std::thread::yield_now();
                }
                member.wait(&second).unwrap();
                member.wait(&first).unwrap();
                member.run("c", reduce(ReduceOp::Max), &a, &a).unwrap();
            }
            member.engine.missed_wakeups()
        });
        assert_eq!(missed, [0; 5], "{transport:?}");
    }
}

#[test]
fn input_that_arrives_with_the_last_message_is_not_lost() {
    for transport in TRANSPORTS {
        let missed = World::new(3).over(transport).run(|member| {
            let (a, b) = (Tensor::floats(&[1.0; 9]), Tensor::floats(&[2.0; 9]));
            for _ in 0..200 {
                let kind = CollectiveKind::Broadcast { root: Rank(0) };
                let later = member.reduce("later", ReduceOp::Max, &b, &b).unwrap();
                member.run("now", kind, &a, &a).unwrap();
                let deadline = Instant::now() + Duration::from_secs(20);
                while !later.is_done() {
                    assert!(Instant::now() < deadline, "no thread drives");
                    std::thread::yield_now();
                }
            }
            member.engine.missed_wakeups()
        });
        assert_eq!(missed, [0; 3], "{transport:?}");
    }
}

#[test]
fn a_second_thread_does_not_wait_for_the_first() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let late = Tensor::floats(&[1.0]);
            let submit = || member.reduce("late", ReduceOp::Sum, &late, &late).unwrap();
            let waiting = (member.rank() == 0).then(submit);
            std::thread::scope(|scope| {
                // Rank 0 waits for something that rank 1 submits only when everything else is done.
                if let Some(ticket) = &waiting {
                    scope.spawn(move || member.wait(ticket).unwrap());
                }
                let start = Instant::now();
                for _ in 0..30 {
                    member.barrier("b").unwrap();
                }
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "each barrier waited for a timeout"
                );
                if waiting.is_none() {
                    member.wait(&submit()).unwrap();
                }
            });
        });
    }
}

#[test]
fn no_engine_thread_is_left_after_the_end_of_the_world() {
    let engines = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("procfs is mounted");
        let names = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "ronde-engine").count()
    };
    for transport in TRANSPORTS {
        let ended = Barrier::new(3);
        World::new(3).over(transport).run(|member| {
            let tensor = Tensor::floats(&[1.0]);
            if member.rank() == 2 {
                member.engine.shutdown(None);
            } else {
                member.run("x", reduce(ReduceOp::Sum), &tensor, &tensor).unwrap_err();
            }
            ended.wait();
            let deadline = Instant::now() + Duration::from_secs(10);
            while engines() > 0 {
                assert!(Instant::now() < deadline, "an engine thread is still running");
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn more_ranks_than_a_listener_handles_at_once_can_join() {
    World::new(80).run(|member| member.barrier("all").unwrap());
}

#[test]
fn a_long_reason_for_leaving_is_cut_short() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let tensor = Tensor::floats(&[1.0]);
            if member.rank() == 1 {
                member.engine.shutdown(Some("é".repeat(20 << 20)));
            } else {
                let error = member.run("x", reduce(ReduceOp::Sum), &tensor, &tensor).unwrap_err();
                assert!(error.to_string().len() < 20_000);
            }
        });
    }
}
