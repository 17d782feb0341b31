//! One behaviour suite over every transport: each collective against what it means.

use half::{bf16, f16};
use proptest::prelude::*;
use ronde_control::negotiate::Kind;
use ronde_control::settings::Transport;
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{Made, Next, Outcome};
use ronde_testkit::{Member, Tensor, World};

const TRANSPORTS: [Transport; 2] = [Transport::Auto, Transport::Tcp];

fn sum() -> Kind {
    Kind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 }
}

fn made(outcome: Outcome) -> Made {
    match outcome {
        Outcome::Made(mut made) if made.len() == 1 => made.remove(0),
        other => panic!("{other:?}"),
    }
}

/// Small whole numbers in any element type, so that every order of summation is exact.
fn numbers(dtype: DType, values: &[u8]) -> Vec<u8> {
    let bytes = |value: &u8| -> Vec<u8> {
        let value = *value;
        match dtype {
            DType::U8 | DType::I8 => vec![value],
            DType::Bool => vec![value % 2],
            DType::U16 | DType::I16 => u16::from(value).to_ne_bytes().to_vec(),
            DType::I32 => i32::from(value).to_ne_bytes().to_vec(),
            DType::I64 => i64::from(value).to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f32(value.into()).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(value.into()).to_ne_bytes().to_vec(),
            DType::F32 => f32::from(value).to_ne_bytes().to_vec(),
            DType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        }
    };
    values.iter().flat_map(bytes).collect()
}

fn expected(op: ReduceOp, dtype: DType, ranks: &[Vec<u8>]) -> Vec<u8> {
    let fold = |index: usize| {
        let values = ranks.iter().map(|rank| rank[index]);
        let logical = dtype == DType::Bool;
        match op {
            ReduceOp::Sum if logical => values.map(|value| value % 2).max(),
            ReduceOp::Product if logical => values.map(|value| value % 2).min(),
            ReduceOp::Max if logical => values.map(|value| value % 2).max(),
            ReduceOp::Min if logical => values.map(|value| value % 2).min(),
            ReduceOp::Sum => values.reduce(|a, b| a + b),
            ReduceOp::Product => values.reduce(|a, b| a * b),
            ReduceOp::Max => values.max(),
            ReduceOp::Min => values.min(),
        }
    };
    (0..ranks[0].len()).map(|index| fold(index).expect("there is a rank")).collect()
}

#[test]
fn every_type_and_operation_reduces_to_what_it_means() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 4] {
            let results = World::new(size).over(transport).run(|member| {
                let mut seen = Vec::new();
                for dtype in DType::ALL {
                    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
                        for length in [1usize, 31, 1000, 40_000] {
                            let ranks: Vec<Vec<u8>> = (0..size)
                                .map(|rank| (0..length).map(|i| ((i + rank) % 4) as u8).collect())
                                .collect();
                            let mine = numbers(dtype, &ranks[member.rank()]);
                            let tensor = Tensor::new(dtype, &[length as u64], &mine);
                            let out = Tensor::new(dtype, &[length as u64], &vec![0; mine.len()]);
                            let name = format!("{dtype}.{op}.{length}");
                            let kind = Kind::Allreduce { op, prescale: 1.0, postscale: 1.0 };
                            member.run(&name, kind, &tensor, &out).unwrap();
                            let right = numbers(dtype, &expected(op, dtype, &ranks));
                            assert!(out.bytes() == right, "{name} on {size} over {transport:?}");
                            assert_eq!(tensor.bytes(), mine, "the input stays as it was");
                            seen.push(name);
                        }
                    }
                }
                seen.len()
            });
            assert_eq!(results, vec![176; size]);
        }
    }
}

#[test]
fn averages_and_factors_are_applied_once() {
    for transport in TRANSPORTS {
        for (size, length) in [(2, 3), (3, 20_000), (4, 100_000)] {
            World::new(size).over(transport).run(|member| {
                let tensor = Tensor::floats(&vec![member.rank() as f32 + 1.0; length]);
                let kind = Kind::Allreduce { op: ReduceOp::Sum, prescale: 2.0, postscale: 0.25 };
                member.run("x", kind, &tensor, &tensor).unwrap();
                let right = (1..=size).sum::<usize>() as f32 * 2.0 * 0.25;
                assert!(tensor.as_floats().iter().all(|value| *value == right), "{transport:?}");
            });
        }
    }
}

#[test]
fn results_have_the_same_bits_on_every_rank_and_every_run() {
    for transport in TRANSPORTS {
        for length in [7, 1000, 300_000] {
            let run = || {
                World::new(3).over(transport).run(|member| {
                    let values: Vec<f32> = (0..length)
                        .map(|i| 1.0 / (1.0 + (i * 7 + member.rank() * 13) as f32))
                        .collect();
                    let tensor = Tensor::floats(&values);
                    member.run("x", sum(), &tensor, &tensor).unwrap();
                    tensor.bytes()
                })
            };
            let (first, second) = (run(), run());
            assert!(first[1..].iter().all(|rank| *rank == first[0]), "{transport:?} {length}");
            assert!(first == second, "{transport:?} {length}");
        }
    }
}

#[test]
fn a_gathering_takes_other_lengths_from_every_rank() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 5] {
            for base in [0usize, 1, 100, 70_000] {
                World::new(size).over(transport).run(|member| {
                    let rows = base * member.rank();
                    let values = vec![member.rank() as f32; rows * 2];
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
                    let tensor = Tensor::new(DType::F32, &[rows as u64, 2], &bytes);
                    // Twice, so that the second time it is known by number.
                    for _ in 0..2 {
                        let outcome = member.run("g", Kind::Allgather, &tensor, &tensor).unwrap();
                        let Made { buffer, rows } = made(outcome);
                        let right: Vec<u64> = (0..size).map(|rank| (base * rank) as u64).collect();
                        assert_eq!(rows, right);
                        let right: Vec<u8> = (0..size)
                            .flat_map(|rank| vec![rank as f32; base * rank * 2])
                            .flat_map(f32::to_ne_bytes)
                            .collect();
                        assert!(
                            buffer.bytes() == right,
                            "{size} ranks, {base} rows, {transport:?}"
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn a_broadcast_reaches_everybody_from_any_root() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 5] {
            World::new(size).over(transport).run(|member| {
                for root in 0..size {
                    for length in [0, 1, 5000, 300_000] {
                        let own = vec![member.rank() as f32; length];
                        let (tensor, out) = (Tensor::floats(&own), Tensor::floats(&own));
                        let kind = Kind::Broadcast { root: Rank(root as u32) };
                        let name = format!("b.{root}.{length}");
                        member.run(&name, kind, &tensor, &out).unwrap();
                        assert!(out.as_floats() == vec![root as f32; length], "{name} of {size}");
                        assert_eq!(tensor.as_floats(), own);
                    }
                }
            });
        }
    }
}

#[test]
fn a_reduction_is_scattered_by_rows_the_first_ranks_getting_one_more() {
    for transport in TRANSPORTS {
        for size in [1, 2, 3, 4] {
            World::new(size).over(transport).run(|member| {
                for rows in [0usize, 1, 2, 7, 1001, 50_000] {
                    let me = member.rank();
                    let values: Vec<f32> =
                        (0..rows * 3).map(|i| (i % 100) as f32 + me as f32).collect();
                    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
                    let tensor = Tensor::new(DType::F32, &[rows as u64, 3], &bytes);
                    let (op, prescale, postscale) = (ReduceOp::Sum, 2.0, 0.5);
                    let kind = Kind::Reducescatter { op, prescale, postscale };
                    let name = format!("r{rows}");
                    let Made { buffer, rows: got } =
                        made(member.run(&name, kind, &tensor, &tensor).unwrap());
                    let mine = |rank: usize| rows / size + usize::from(rank < rows % size);
                    assert_eq!(got, [mine(me) as u64]);
                    let start: usize = (0..me).map(mine).sum();
                    let offset: f32 = (0..size).sum::<usize>() as f32;
                    let right: Vec<u8> = (start * 3..(start + mine(me)) * 3)
                        .map(|i| (i % 100) as f32 * size as f32 + offset)
                        .flat_map(f32::to_ne_bytes)
                        .collect();
                    assert!(buffer.bytes() == right, "{name} on {size} over {transport:?}");
                    assert_eq!(tensor.bytes(), bytes, "the input stays as it was");
                }
            });
        }
    }
}

#[test]
fn everybody_gets_the_part_that_everybody_has_for_it() {
    for transport in TRANSPORTS {
        for size in [1usize, 2, 3, 4] {
            World::new(size).over(transport).run(|member| {
                let me = member.rank();
                for unit in [0usize, 1, 100, 40_000] {
                    let splits: Vec<u64> = (0..size).map(|to| (unit * (me + to)) as u64).collect();
                    let mut values: Vec<f32> = Vec::new();
                    for (to, rows) in splits.iter().enumerate() {
                        values.extend(vec![(10 * me + to) as f32; *rows as usize]);
                    }
                    // One row more than the splits cover, which is dropped.
                    values.push(-1.0);
                    let tensor = Tensor::floats(&values);
                    let kind = Kind::Alltoall { splits };
                    for _ in 0..2 {
                        let name = format!("a{unit}");
                        let outcome = member.run(&name, kind.clone(), &tensor, &tensor).unwrap();
                        let Made { buffer, rows } = made(outcome);
                        let from = |rank: usize| unit * (rank + me);
                        let expected: Vec<u64> = (0..size).map(|r| from(r) as u64).collect();
                        assert_eq!(rows, expected);
                        let right: Vec<u8> = (0..size)
                            .flat_map(|rank| vec![(10 * rank + me) as f32; from(rank)])
                            .flat_map(f32::to_ne_bytes)
                            .collect();
                        assert!(buffer.bytes() == right, "{name} on {size} over {transport:?}");
                    }
                }
            });
        }
    }
}

#[test]
fn whoever_has_joined_counts_as_zeros_until_all_have() {
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
fn sets_of_ranks_work_at_the_same_time_and_may_overlap() {
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
                            let right: u32 = set.iter().sum();
                            assert!(tensor.as_floats().iter().all(|v| *v == right as f32));
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
                    let kind = Kind::Allreduce { op: ReduceOp::Sum, prescale: 2.0, postscale: 3.0 };
                    member.run_in(ids[3], "one", kind, &tensor, &out).unwrap();
                    assert!(out.as_floats().iter().all(|v| *v == 6.0));
                }
            }
            member.remove_set(ids[2]).unwrap();
            member.remove_set(ids[0]).unwrap();
            assert_eq!(
                member.add_set(&[0, 3]).unwrap(),
                ids[2],
                "freed numbers come back in order"
            );
            if [0, 3].contains(&me) {
                let tensor = Tensor::floats(&[1.0; 70_000]);
                let kind = Kind::Broadcast { root: Rank(3) };
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
                // More messages than the log holds, none of which is rank 2's business.
                for i in 0..6000 {
                    let tensor = Tensor::floats(&[1.0]);
                    let name = format!("a tensor with a long name.noname.{i}");
                    member.run_in(set, &name, sum(), &tensor, &tensor).unwrap();
                }
            }
            member.barrier("end").unwrap();
        });
    }
}

#[test]
fn nobody_passes_a_barrier_before_everybody_has_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for transport in TRANSPORTS {
        let came = AtomicUsize::new(0);
        World::new(4).over(transport).run(|member| {
            for round in 1..=20 {
                came.fetch_add(1, Ordering::SeqCst);
                member.barrier("b").unwrap();
                assert!(came.load(Ordering::SeqCst) >= 4 * round);
                member.barrier("c").unwrap();
            }
        });
    }
}

#[test]
fn tensors_submitted_in_any_order_from_many_threads_find_each_other() {
    for transport in TRANSPORTS {
        World::new(3).over(transport).run(|member| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for round in 0..10 {
                            let tensors: Vec<Tensor> =
                                (0..8).map(|i| Tensor::floats(&vec![1.0; 10 + i])).collect();
                            let order = (0..8).map(|i| (i * 3 + member.rank() * 5 + thread) % 8);
                            let tickets: Vec<_> = order
                                .map(|i| {
                                    let name = format!("t{thread}.{i}");
                                    let tensor = &tensors[i];
                                    member.reduce(&name, ReduceOp::Sum, tensor, tensor).unwrap()
                                })
                                .collect();
                            for ticket in tickets {
                                member.wait(&ticket).unwrap();
                            }
                            for tensor in tensors {
                                assert!(tensor.as_floats().iter().all(|v| *v == 3.0), "{round}");
                            }
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn thousands_of_tensors_in_flight_all_arrive() {
    for transport in TRANSPORTS {
        World::new(2).over(transport).run(|member| {
            let tensors: Vec<Tensor> = (0..3000).map(|i| Tensor::floats(&[i as f32])).collect();
            let order: Vec<usize> = match member.rank() {
                0 => (0..3000).collect(),
                _ => (0..3000).rev().collect(),
            };
            let submit = |i: &usize| {
                member.reduce(&format!("t{i}"), ReduceOp::Sum, &tensors[*i], &tensors[*i]).unwrap()
            };
            let tickets: Vec<_> = order.iter().map(submit).collect();
            tickets.iter().for_each(|ticket| drop(member.wait(ticket).unwrap()));
            for (i, tensor) in tensors.iter().enumerate() {
                assert_eq!(tensor.as_floats(), [2.0 * i as f32]);
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
            };
            let regions: Vec<_> = tensors.iter().map(Tensor::region).collect();
            let ticket =
                member.engine.submit(request, regions.clone(), regions, Next::GoesOn).unwrap();
            member.wait(&ticket).unwrap();
            assert_eq!(tensors[0].as_floats(), [2.0; 5]);
            assert!(tensors[1].as_floats().iter().all(|value| *value == 4.0));
        });
    }
}

#[test]
fn ranks_that_differ_get_an_error_and_go_on() {
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
fn the_same_name_twice_in_flight_is_refused_at_once() {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any mixture of lengths, submitted together and so fused in whatever way it happens.
    #[test]
    fn fused_buckets_keep_every_element_in_its_place(
        size in 2usize..6,
        tcp in any::<bool>(),
        lengths in proptest::collection::vec(0usize..30_000, 1..12),
    ) {
        let transport = TRANSPORTS[usize::from(tcp)];
        World::new(size).over(transport).run(|member: &Member| {
            let value = |tensor: usize, i: usize, rank: usize| ((tensor * 7 + i * 3 + rank) % 11) as f32;
            let tensors: Vec<Tensor> = lengths.iter().enumerate().map(|(tensor, length)| {
                let values: Vec<f32> =
                    (0..*length).map(|i| value(tensor, i, member.rank())).collect();
                Tensor::floats(&values)
            }).collect();
            let tickets: Vec<_> = tensors.iter().enumerate().map(|(i, tensor)| {
                member.reduce(&format!("t{i}"), ReduceOp::Sum, tensor, tensor).unwrap()
            }).collect();
            tickets.iter().for_each(|ticket| drop(member.wait(ticket).unwrap()));
            for (index, tensor) in tensors.iter().enumerate() {
                for (i, seen) in tensor.as_floats().into_iter().enumerate() {
                    let right: f32 = (0..size).map(|rank| value(index, i, rank)).sum();
                    assert_eq!(seen, right, "tensor {index} element {i}");
                }
            }
        });
    }
}
