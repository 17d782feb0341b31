//! Adasum over every transport and with several numbers of ranks, compared with its definition.
#![expect(clippy::unwrap_used, reason = "a failing step fails the test")]

use half::{bf16, f16};
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::Transport;
use ronde_control::{DType, DeviceKind, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::AfterSubmit;
use ronde_testkit::{Tensor, TestRank, World};

/// The transport between the ranks, and how many of them share memory.
type Way = (Transport, Option<u32>);

const WAYS: [Way; 4] = [
    (Transport::Auto, None),
    (Transport::Tcp, None),
    (Transport::Auto, Some(2)),
    (Transport::Auto, Some(3)),
];

fn world(size: usize, (transport, shared_ranks): Way) -> World {
    World::new(size).over(transport).with(|settings| settings.shared_ranks = shared_ranks)
}

fn adasum() -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Adasum, prescale: 1.0, postscale: 1.0 }
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The combination of two tensors.
fn pair(a: &[f64], b: &[f64]) -> Vec<f64> {
    let factor = |square: f64| if square == 0.0 { 1.0 } else { 1.0 - inner(a, b) / (2.0 * square) };
    let (left, right) = (factor(inner(a, a)), factor(inner(b, b)));
    a.iter().zip(b).map(|(a, b)| left * a + right * b).collect()
}

/// The combination of the tensors of all ranks: those beyond the largest power of two are folded in
/// first, then neighbors are combined, then neighboring pairs, and so on.
fn tree(ranks: &[Vec<f64>]) -> Vec<f64> {
    let core = 1 << ranks.len().ilog2();
    let (leaves, rest) = ranks.split_at(core);
    let mut level = leaves.to_vec();
    for (leaf, extra) in level.iter_mut().zip(rest) {
        *leaf = pair(leaf, extra);
    }
    while level.len() > 1 {
        level = level.chunks(2).map(|two| pair(&two[0], &two[1])).collect();
    }
    level.remove(0)
}

/// Pseudorandom numbers, the same on every rank.
fn numbers(rank: usize, tensor: usize, length: usize) -> Vec<f64> {
    let mut state = (rank * 7919 + tensor * 104_729 + 1) as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 24) as f64 - 0.4
    };
    (0..length).map(|_| next()).collect()
}

fn tensor(dtype: DType, values: &[f64]) -> Tensor {
    let bytes = |value: &f64| match dtype {
        DType::F16 => f16::from_f64(*value).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(*value).to_ne_bytes().to_vec(),
        DType::F32 => (*value as f32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    let bytes: Vec<u8> = values.iter().flat_map(bytes).collect();
    Tensor::new(dtype, &[values.len() as u64], &bytes)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.bytes();
    let two = |bytes: &[u8]| [bytes[0], bytes[1]];
    let value = |bytes: &[u8]| match tensor.dtype() {
        DType::F16 => f16::from_ne_bytes(two(bytes)).to_f64(),
        DType::BF16 => bf16::from_ne_bytes(two(bytes)).to_f64(),
        DType::F32 => f64::from(f32::from_ne_bytes(bytes.try_into().unwrap())),
        _ => f64::from_ne_bytes(bytes.try_into().unwrap()),
    };
    bytes.chunks(tensor.dtype().size()).map(value).collect()
}

fn assert_close(got: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(close, "{what}: element {index} is {got}, not {expected}");
    }
}

#[test]
fn any_number_of_ranks_combines_along_the_tree_and_all_get_the_same_bits() {
    for size in 1..=9 {
        let run = |way| {
            world(size, way).run(|member| {
                [0usize, 1, 2, 7, 1000, 100_003].map(|length| {
                    let ranks: Vec<Vec<f64>> =
                        (0..size).map(|rank| numbers(rank, length, length)).collect();
                    let source = tensor(DType::F64, &ranks[member.rank()]);
                    let target = tensor(DType::F64, &vec![0.0; length]);
                    member.run(&format!("x{length}"), adasum(), &source, &target).unwrap();
                    let what = format!("{length} on {size} over {way:?}");
                    assert_close(&values(&target), &tree(&ranks), 1e-11, &what);
                    assert_eq!(values(&source), ranks[member.rank()], "the input is unchanged");
                    target.bytes()
                })
            })
        };
        let shared = run(WAYS[0]);
        assert!(shared.iter().all(|rank| *rank == shared[0]), "{size} ranks");
        for way in &WAYS[1..] {
            assert!(
                run(*way) == shared,
                "{size} ranks: other bits over {way:?} than in shared memory"
            );
        }
    }
}

#[test]
fn every_float_type_is_combined_and_rounded() {
    for (dtype, tolerance) in
        [(DType::F16, 4e-3), (DType::BF16, 3e-2), (DType::F32, 1e-6), (DType::F64, 1e-12)]
    {
        for way in WAYS {
            for size in [2, 3, 4] {
                world(size, way).run(|member| {
                    let ranks: Vec<Vec<f64>> =
                        (0..size).map(|rank| numbers(rank, 0, 5001)).collect();
                    let own = tensor(dtype, &ranks[member.rank()]);
                    let kind = CollectiveKind::Allreduce {
                        op: ReduceOp::Adasum,
                        prescale: 2.0,
                        postscale: 0.25,
                    };
                    member.run("x", kind, &own, &own).unwrap();
                    let expected: Vec<f64> = tree(&ranks).iter().map(|value| value * 0.5).collect();
                    assert_close(
                        &values(&own),
                        &expected,
                        tolerance,
                        &format!("{dtype} on {size}"),
                    );
                });
            }
        }
    }
}

#[test]
fn orthogonal_tensors_add_and_equal_ones_average() {
    for way in WAYS {
        for size in [2, 4, 5, 8] {
            world(size, way).run(|member| {
                let mut unit = vec![0.0f32; size];
                unit[member.rank()] = 3.0;
                let tensor = Tensor::floats(&unit);
                member.run("angles", adasum(), &tensor, &tensor).unwrap();
                assert_eq!(tensor.as_floats(), vec![3.0; size]);
                let tensor = Tensor::floats(&[1.5, -2.0, 0.25]);
                member.run("equals", adasum(), &tensor, &tensor).unwrap();
                assert_eq!(tensor.as_floats(), [1.5, -2.0, 0.25]);
            });
        }
    }
}

fn group(name: &str, tensors: &[Tensor]) -> Request {
    let shapes = tensors.iter().map(|tensor| tensor.shape().to_vec()).collect();
    let dtype = tensors[0].dtype();
    Request {
        name: name.into(),
        set: SetId::WORLD,
        kind: adasum(),
        dtype,
        shapes,
        device: DeviceKind::Cpu,
    }
}

fn run_group(member: &TestRank, name: &str, tensors: &[Tensor]) {
    let pairs = tensors.iter().map(|tensor| (tensor, tensor));
    let request = group(name, tensors);
    let memory = Tensor::submission(&request.kind, pairs);
    let ticket = member.engine.submit(request, memory, AfterSubmit::Waits).unwrap();
    member.wait(&ticket).unwrap();
}

#[test]
fn each_tensor_of_a_bucket_has_its_own_products() {
    let lengths = [3usize, 0, 4000, 1, 70_000, 2];
    for way in WAYS {
        for size in [2, 3, 4, 7] {
            world(size, way).run(|member| {
                let of = |rank, index| numbers(rank, index, lengths[index]);
                let tensors: Vec<Tensor> = (0..lengths.len())
                    .map(|index| tensor(DType::F64, &of(member.rank(), index)))
                    .collect();
                run_group(member, "group", &tensors);
                for (index, tensor) in tensors.iter().enumerate() {
                    let ranks: Vec<Vec<f64>> = (0..size).map(|rank| of(rank, index)).collect();
                    let what = format!("tensor {index} on {size} over {way:?}");
                    assert_close(&values(tensor), &tree(&ranks), 1e-11, &what);
                }
            });
        }
    }
}

#[test]
fn a_rank_that_has_joined_changes_nothing() {
    for way in WAYS {
        world(3, way).run(|member| {
            if member.rank() == 1 {
                member.join().unwrap();
                return;
            }
            let of = |rank, index: usize| numbers(rank, index, 10 + index);
            let tensors: Vec<Tensor> =
                (0..3).map(|index| tensor(DType::F64, &of(member.rank(), index))).collect();
            run_group(member, "group", &tensors);
            for (index, tensor) in tensors.iter().enumerate() {
                let expected = pair(&of(0, index), &of(2, index));
                assert_close(&values(tensor), &expected, 1e-12, &format!("{index} {way:?}"));
            }
            member.join().unwrap();
        });
    }
}

#[test]
fn a_process_set_combines_its_own_tensors() {
    for way in WAYS {
        world(4, way).run(|member| {
            let set = member.add_set(&[1, 2, 3]).unwrap();
            if member.rank() > 0 {
                let ranks: Vec<Vec<f64>> = (1..4).map(|rank| numbers(rank, 0, 500)).collect();
                let own = tensor(DType::F64, &ranks[member.rank() - 1]);
                member.run_in(set, "x", adasum(), &own, &own).unwrap();
                assert_close(&values(&own), &tree(&ranks), 1e-12, "a set of three");
            }
            member.barrier("end").unwrap();
        });
    }
}

#[test]
fn unsupported_types_and_collectives_are_refused() {
    for size in [1, 2] {
        World::new(size).run(|member| {
            let whole = Tensor::new(DType::I32, &[1], &[1, 0, 0, 0]);
            let refused = member.run("x", adasum(), &whole, &whole);
            assert!(matches!(refused, Err(Error::Invalid(text)) if text.contains("int32")));
            let (op, prescale, postscale) = (ReduceOp::Adasum, 1.0, 1.0);
            let scatter = CollectiveKind::Reducescatter { op, prescale, postscale };
            let tensor = Tensor::floats(&[1.0]);
            let refused = member.run("y", scatter, &tensor, &tensor);
            assert!(matches!(refused, Err(Error::Invalid(text)) if text.contains("AVERAGE")));
        });
    }
}
