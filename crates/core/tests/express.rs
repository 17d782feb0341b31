//! Small collectives without negotiation: they give the same results and the same errors, and leave
//! everything else in order.

use std::sync::{Arc, Barrier};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Ticket};
use ronde_testkit::{Tensor, TestRank, World};

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

fn run_sum(member: &TestRank, name: &str, length: usize) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(&vec![1.0; length]);
    member.run(name, sum(), &tensor, &tensor)?;
    Ok(tensor.as_floats())
}

/// Submits a sum for which this thread will wait.
fn submit_sum(member: &TestRank, name: &str) -> Arc<Ticket> {
    let tensor = Tensor::floats(&[1.0]);
    let request = Request {
        name: name.into(),
        set: SetId::WORLD,
        kind: sum(),
        dtype: DType::F32,
        shapes: vec![vec![1]],
        device: DeviceKind::Cpu,
    };
    let submission = Tensor::submission(&request.kind, [(&tensor, &tensor)]);
    member.engine.submit(request, submission, AfterSubmit::Waits).expect("it is submitted")
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
    let (ready, done) = (Barrier::new(3), Barrier::new(3));
    let errors = World::new(3).run(|member| {
        assert_eq!(run_sum(member, "good", 1).unwrap(), [3.0]);
        let ticket = (member.rank() != 2).then(|| submit_sum(member, "never"));
        ready.wait();
        let error = match ticket {
            None => {
                member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
                None
            }
            Some(ticket) => member.wait(&ticket).err(),
        };
        done.wait();
        error.map(|error| error.to_string())
    });
    for error in errors[..2].iter().flatten() {
        assert!(error.contains("lost rank 2") && error.contains("`never`"), "{error}");
    }
    assert_eq!(errors.iter().flatten().count(), 2);
}
