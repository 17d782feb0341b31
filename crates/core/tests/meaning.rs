//! What holds for every submission, whatever its tensors: names, groups, barriers, joining, and
//! errors when the ranks' requests do not match.

use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::AfterSubmit;
use ronde_testkit::{Tensor, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn a_joined_rank_contributes_zeros_until_all_have_joined() {
    for transport in TRANSPORTS {
        for length in [1, 30_000] {
            World::new(3).over(transport).run(|member| {
                let me = member.rank();
                for step in 0..3 * (me + 1) {
                    let alive = (0..3).filter(|rank| step < 3 * (rank + 1)).count();
                    let tensor = Tensor::floats(&vec![1.0; length]);
                    member.run("x", sum(), &tensor, &tensor).unwrap();
                    assert!(tensor.as_floats().iter().all(|v| *v == alive as f32), "step {step}");
                }
                assert_eq!(member.join().unwrap(), Rank(2));
                let tensor = Tensor::floats(&[1.0]);
                member.run("x", sum(), &tensor, &tensor).unwrap();
                assert_eq!(tensor.as_floats(), [3.0]);
            });
        }
    }
}

#[test]
fn an_average_is_the_sum_over_all_ranks_even_if_one_has_joined() {
    let average =
        CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 / 3.0 };
    for transport in TRANSPORTS {
        for length in [3, 30_000] {
            World::new(3).over(transport).run(|member| {
                if member.rank() != 2 {
                    let values: Vec<f32> = (0..length).map(|i| i as f32 - 100.0).collect();
                    let tensor = Tensor::floats(&values);
                    member.run("x", average.clone(), &tensor, &tensor).unwrap();
                    let exact = values.iter().map(|value| (value + value) / 3.0);
                    assert!(tensor.as_floats().into_iter().eq(exact), "{transport:?} {length}");
                }
                member.join().unwrap();
            });
        }
    }
}

#[test]
fn a_joined_rank_cannot_join_again_before_all_have() {
    for transport in TRANSPORTS {
        let tried = std::sync::Barrier::new(2);
        World::new(2).over(transport).run(|member| {
            if member.rank() == 0 {
                let first = member.engine.join_in(AfterSubmit::GoesOn).unwrap();
                let again = member.join();
                assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
                tried.wait();
                member.wait(&first).unwrap();
            } else {
                tried.wait();
                member.join().unwrap();
            }
            member.join().unwrap();
        });
    }
}

#[test]
fn no_rank_passes_a_barrier_before_all_have_arrived() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for transport in TRANSPORTS {
        let arrived = AtomicUsize::new(0);
        World::new(4).over(transport).run(|member| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                member.barrier("b").unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
                member.barrier("c").unwrap();
            }
        });
    }
}

#[test]
fn a_group_is_one_submission_of_several_tensors() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let tensors = [Tensor::floats(&[1.0; 5]), Tensor::floats(&[2.0; 70_000])];
            let request = ronde_control::negotiate::Request {
                name: "group".into(),
                set: SetId::WORLD,
                kind: sum(),
                dtype: DType::F32,
                shapes: tensors.iter().map(|tensor| tensor.shape().to_vec()).collect(),
                device: DeviceKind::Cpu,
            };
            let pairs = tensors.iter().map(|tensor| (tensor, tensor));
            let memory = Tensor::submission(&request.kind, pairs);
            let ticket = member.engine.submit(request, memory, AfterSubmit::GoesOn).unwrap();
            member.wait(&ticket).unwrap();
            assert_eq!(tensors[0].as_floats(), [2.0; 5]);
            assert!(tensors[1].as_floats().iter().all(|value| *value == 4.0));
        });
    }
}

#[test]
fn ranks_that_differ_get_an_error_and_continue() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let tensor = Tensor::floats(&vec![1.0; 4 + member.rank()]);
            let error = member.run("x", sum(), &tensor, &tensor).unwrap_err();
            let Error::Mismatch(text) = error else { panic!("{error:?}") };
            assert!(text.contains("shape [4]") && text.contains("shape [5]"), "{text}");
            let fine = Tensor::floats(&[1.0]);
            member.run("x", sum(), &fine, &fine).unwrap();
            assert_eq!(fine.as_floats(), [2.0]);
        });
    }
}

#[test]
fn a_name_that_is_already_in_flight_is_refused_immediately() {
    World::new(2).run(|member| {
        let (a, b) = (Tensor::floats(&[1.0]), Tensor::floats(&[1.0]));
        if member.rank() == 0 {
            let ticket = member.reduce("x", ReduceOp::Sum, &a, &a).unwrap();
            let error = member.reduce("x", ReduceOp::Sum, &b, &b).unwrap_err();
            assert!(
                matches!(&error, Error::Invalid(text) if text.contains("same name")),
                "{error}"
            );
            member.barrier("go").unwrap();
            member.wait(&ticket).unwrap();
        } else {
            member.barrier("go").unwrap();
            member.run("x", sum(), &a, &a).unwrap();
        }
    });
}
