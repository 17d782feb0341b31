//! Process sets: several in use at the same time, overlapping, created and removed.

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::Transport;
use ronde_control::{Rank, ReduceOp, SetId};
use ronde_core::engine::AfterSubmit;
use ronde_testkit::{Tensor, TestRank, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];

fn sum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

#[test]
fn process_sets_work_at_the_same_time_and_may_overlap() {
    for transport in TRANSPORTS {
        World::new(4).over(transport).run(|member| {
            let me = member.rank() as u32;
            let sets = [&[1, 3][..], &[0, 2], &[1, 2, 3], &[2]];
            let ids: Vec<SetId> = sets.iter().map(|set| member.add_set(set).unwrap()).collect();
            assert_eq!(ids, [1, 2, 3, 4].map(SetId));
            for length in [5, 100_000] {
                for _ in 0..5 {
                    for (set, id) in sets.iter().zip(&ids) {
                        let tensor = Tensor::floats(&vec![me as f32; length]);
                        let result = member.run_in(*id, "x", sum(), &tensor, &tensor);
                        if set.contains(&me) {
                            result.unwrap();
                            let expected: u32 = set.iter().sum();
                            assert!(tensor.as_floats().iter().all(|v| *v == expected as f32));
                        } else {
                            let text = result.unwrap_err().to_string();
                            assert!(text.contains("is not a member"), "{text}");
                        }
                    }
                    let tensor = Tensor::floats(&vec![1.0; length]);
                    member.run("x", sum(), &tensor, &tensor).unwrap();
                    assert!(tensor.as_floats().iter().all(|v| *v == 4.0));
                }
            }
            if me == 2 {
                // A set of one, out of place and with factors.
                for length in [3, 50_000] {
                    let (tensor, out) =
                        (Tensor::floats(&vec![1.0; length]), Tensor::floats(&vec![0.0; length]));
                    let kind = CollectiveKind::Allreduce {
                        op: ReduceOp::Sum,
                        prescale: 2.0,
                        postscale: 3.0,
                    };
                    member.run_in(ids[3], "one", kind, &tensor, &out).unwrap();
                    assert!(out.as_floats().iter().all(|v| *v == 6.0));
                }
            }
            member.remove_set(ids[2]).unwrap();
            member.remove_set(ids[0]).unwrap();
            assert_eq!(
                member.add_set(&[0, 3]).unwrap(),
                ids[2],
                "freed numbers are reused in order"
            );
            if [0, 3].contains(&me) {
                let tensor = Tensor::floats(&[1.0; 70_000]);
                let kind = CollectiveKind::Broadcast { root: Rank(3) };
                member.run_in(ids[2], "y", kind, &tensor, &tensor).unwrap();
                member.run_in(ids[2], "x", sum(), &tensor, &tensor).unwrap();
                assert!(tensor.as_floats().iter().all(|v| *v == 2.0));
            }
            member.barrier("end").unwrap();
        });
    }
}

#[test]
fn a_rank_outside_a_busy_set_does_not_hold_it_up() {
    for transport in TRANSPORTS {
        World::new(3).over(transport).run(|member| {
            let set = member.add_set(&[0, 1]).unwrap();
            if member.rank() < 2 {
                // More messages than the log holds, none of them for rank 2.
                for i in 0..500 {
                    let tensor = Tensor::floats(&[1.0]);
                    let name =
                        format!("a tensor with a {} name.noname.{i}", "very long ".repeat(100));
                    member.run_in(set, &name, sum(), &tensor, &tensor).unwrap();
                }
            }
            member.barrier("end").unwrap();
        });
    }
}

#[test]
fn partially_submitted_tensors_fail_when_their_set_is_removed() {
    for transport in TRANSPORTS {
        World::new(3).over(transport).run(|member| {
            let set = member.add_set(&[0, 1]).unwrap();
            let tensor = Tensor::floats(&[1.0; 10]);
            let pending = (member.rank() == 1).then(|| {
                let request = Request { set, ..TestRank::request("late", sum(), &tensor) };
                let tensors = Tensor::submission(&sum(), [(&tensor, &tensor)]);
                member.engine.submit(request, tensors, AfterSubmit::GoesOn).unwrap()
            });
            member.remove_set(set).unwrap();
            if let Some(pending) = pending {
                let text = member.wait(&pending).unwrap_err().to_string();
                assert!(text.contains("`late@1`") && text.contains("removed"), "{text}");
            }
            member.run("x", sum(), &tensor, &tensor).unwrap();
        });
    }
}
