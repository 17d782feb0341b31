//! Small collectives without negotiation: they give the same results and the same errors, and leave
//! everything else in order.

use std::sync::Barrier;

use ronde_control::negotiate::CollectiveKind;
use ronde_control::{Rank, ReduceOp};
use ronde_core::Error;
use ronde_testkit::{Tensor, TestRank, World};

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

fn run_sum(member: &TestRank, name: &str, length: usize) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(&vec![1.0; length]);
    member.run(name, sum(), &tensor, &tensor)?;
    Ok(tensor.as_floats())
}

#[test]
fn ranks_that_submit_different_things_get_the_error_of_a_mismatch_and_go_on() {
    World::new(3).run(|member| {
        for round in 0..20 {
            assert_eq!(run_sum(member, "good", 5).unwrap(), [3.0; 5], "{round}");
            let error = run_sum(member, "bad", 2 + member.rank() / 2).unwrap_err();
            assert!(matches!(error, Error::Mismatch(_)), "{error}");
            assert!(error.to_string().contains("[2]") && error.to_string().contains("[3]"));
        }
    });
}

#[test]
fn different_names_in_a_round_are_negotiated_and_each_finds_its_partner() {
    World::new(2).run(|member| {
        for round in 0..50 {
            // One rank offers `a`, the other `b`; both complete once each has submitted both.
            std::thread::scope(|scope| {
                for turn in 0..2 {
                    let name = if (turn + member.rank()) % 2 == 0 { "a" } else { "b" };
                    let thread = scope
                        .spawn(move || assert_eq!(run_sum(member, name, 3).unwrap(), [2.0; 3]));
                    if round % 2 == 0 {
                        std::thread::yield_now();
                    }
                    drop(thread);
                }
            });
            assert_eq!(run_sum(member, "together", 1).unwrap(), [2.0]);
        }
    });
}

#[test]
fn a_rank_with_something_else_in_flight_holds_nobody_up() {
    World::new(3).run(|member| {
        for round in 0..30 {
            let (own, late) = (Tensor::floats(&[1.0; 4]), Tensor::floats(&[2.0; 4]));
            let busy = (member.rank() == round % 3)
                .then(|| member.reduce("busy", ReduceOp::Sum, &late, &late).unwrap());
            member.run("small", sum(), &own, &own).unwrap();
            assert_eq!(own.as_floats(), [3.0; 4]);
            let busy =
                busy.unwrap_or_else(|| member.reduce("busy", ReduceOp::Sum, &late, &late).unwrap());
            member.wait(&busy).unwrap();
            assert_eq!(late.as_floats(), [6.0; 4]);
        }
    });
}

#[test]
fn the_others_do_not_wait_for_a_rank_that_has_joined() {
    World::new(3).run(|member| {
        for _ in 0..5 {
            assert_eq!(run_sum(member, "all", 2).unwrap(), [3.0; 2]);
            for extra in 0..member.rank() {
                let ranks = 2.0 - extra as f32;
                assert_eq!(run_sum(member, "some", 2).unwrap(), [ranks; 2]);
            }
            member.join().unwrap();
        }
    });
}

#[test]
fn a_rank_that_is_lost_ends_the_round_of_the_others_with_an_error_that_names_it() {
    let ready = Barrier::new(3);
    World::new(3).run(|member| {
        assert_eq!(run_sum(member, "good", 1).unwrap(), [3.0]);
        ready.wait();
        if member.rank() == 2 {
            member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
        } else {
            let error = run_sum(member, "never", 1).unwrap_err();
            assert!(error.to_string().contains("lost rank 2"), "{error}");
            assert!(error.to_string().contains("`never`"), "{error}");
        }
        ready.wait();
    });
}
