//! Floats of all magnitudes: the bits are the same on every rank and in every run, and close to the
//! exact result.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use half::{bf16, f16};
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DType, DeviceKind, ReduceOp, SetId};
use ronde_core::engine::{AfterSubmit, Outcome, Ticket};
use ronde_testkit::{Tensor, TestRank, TestRng};

use crate::worlds::Setup;

/// Reduces random tensors, each twice, one at a time: the order of additions depends on which
/// tensors share a bucket, and that is a matter of timing when several are in flight.
pub(crate) fn run(setup: &Setup, count: usize, seed: u64) {
    let rows = setup.world.run(|member| {
        let number = |number| {
            let trial = Trial::any(setup.ranks, &mut TestRng::part(seed, number));
            let mine = encode(trial.dtype, &trial.values(member.rank()));
            let reduce = || {
                let tensor = Tensor::new(trial.dtype, &[trial.length as u64], &mine);
                match member.run("x", trial.kind.clone(), &tensor, &tensor).expect("it completes") {
                    Outcome::Made(made) => made[0].buffer.bytes().to_vec(),
                    _ => tensor.bytes(),
                }
            };
            let (first, second) = (reduce(), reduce());
            let name = &setup.name;
            assert!(
                first == second,
                "{name}, seed {seed}: {trial:?} has different bits in each run"
            );
            if let CollectiveKind::Allreduce { .. } = trial.kind {
                trial.check(&first, &format!("{name}, seed {seed}"));
                digest(&first)
            } else {
                0
            }
        };
        (0..count).map(number).collect::<Vec<u64>>()
    });
    for (rank, row) in rows.iter().enumerate() {
        assert_eq!(*row, rows[0], "{}, seed {seed}: rank {rank} has different bits", setup.name);
    }
}

/// The elements of the tensors that `run_in_one_bucket` reduces; together they are several pieces.
const LENGTHS: [usize; 5] = [5, 1000, 60_000, 1_100_000, 3];

/// Reduces tensors one at a time, then all in one bucket: with reproducible bits, that makes no
/// difference.
pub(crate) fn run_in_one_bucket(setup: &Setup) {
    setup.world.run(|member| {
        let tensor = |(index, length): (usize, &usize)| {
            let rng = TestRng::part(index as u64, member.rank());
            Tensor::floats(&floats(rng, *length).map(|value| value as f32).collect::<Vec<f32>>())
        };
        let apart: Vec<Tensor> = LENGTHS.iter().enumerate().map(tensor).collect();
        let together: Vec<Tensor> = LENGTHS.iter().enumerate().map(tensor).collect();
        let reduce = |tensors: &[Tensor]| {
            let ticket = submit(member, tensors);
            member.wait(&ticket).expect("it completes");
        };
        apart.chunks(1).for_each(reduce);
        reduce(&together);
        for ((length, apart), together) in LENGTHS.iter().zip(&apart).zip(&together) {
            let is_same = apart.bytes() == together.bytes();
            assert!(is_same, "{}: a tensor of {length} elements differs", setup.name);
        }
    });
}

fn submit(member: &TestRank, tensors: &[Tensor]) -> Arc<Ticket> {
    let kind = CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 0.3, postscale: 0.7 };
    let submission = Tensor::submission(&kind, tensors.iter().zip(tensors));
    let request = Request {
        name: format!("{} tensors", tensors.len()),
        set: SetId::WORLD,
        kind,
        dtype: DType::F32,
        shapes: tensors.iter().map(|tensor| tensor.shape().to_vec()).collect(),
        device: DeviceKind::Cpu,
    };
    member.engine.submit(request, submission, AfterSubmit::Waits).expect("it is submitted")
}

#[derive(Debug)]
struct Trial {
    kind: CollectiveKind,
    dtype: DType,
    length: usize,
    ranks: usize,
    salt: u64,
}

impl Trial {
    fn any(ranks: usize, rng: &mut TestRng) -> Trial {
        let (op, prescale, postscale) = (ReduceOp::Sum, rng.pick(&[1.0, 0.3]), 1.0 / ranks as f64);
        let kind = match rng.once_in(4) {
            true => CollectiveKind::Reducescatter { op, prescale, postscale },
            false => CollectiveKind::Allreduce { op, prescale, postscale },
        };
        let dtype = rng.pick(&[DType::F16, DType::BF16, DType::F32, DType::F64]);
        let most = rng.pick(&[10, 3000, 40_000, 200_000]);
        Trial { kind, dtype, length: rng.below(most), ranks, salt: rng.roll() }
    }

    fn values(&self, rank: usize) -> Vec<f64> {
        floats(TestRng::part(self.salt, rank), self.length).collect()
    }

    /// Every addition may round once, and so may each factor.
    fn check(&self, bytes: &[u8], name: &str) {
        let CollectiveKind::Allreduce { prescale, postscale, .. } = self.kind else { return };
        let epsilon = match self.dtype {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::F32 => f64::from(f32::EPSILON),
            _ => f64::EPSILON,
        };
        let all: Vec<Vec<f64>> = (0..self.ranks)
            .map(|rank| decode(self.dtype, &encode(self.dtype, &self.values(rank))))
            .collect();
        for (i, seen) in decode(self.dtype, bytes).into_iter().enumerate() {
            let values = all.iter().map(|row| row[i] * prescale * postscale);
            let (sum, size) =
                values.fold((0.0, 1e-3), |(sum, size), v| (sum + v, size + f64::abs(v)));
            let tolerance = (self.ranks as f64 + 3.0) * epsilon * size;
            assert!((seen - sum).abs() <= tolerance, "{name}: {self:?} at {i}: {seen} for {sum}");
        }
    }
}

/// Numbers between one thousandth and ten, of both signs.
fn floats(mut rng: TestRng, length: usize) -> impl Iterator<Item = f64> {
    let number = |bits: u64| {
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        sign * 10f64.powi((bits >> 1) as i32 % 4 - 3) * (1.0 + (bits >> 20 & 0xFFFF) as f64 / 7e3)
    };
    (0..length).map(move |_| number(rng.roll()))
}

fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let bytes = |value: &f64| match dtype {
        DType::F16 => f16::from_f64(*value).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(*value).to_ne_bytes().to_vec(),
        DType::F32 => (*value as f32).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let value = |bytes: &[u8]| match *bytes {
        [a, b] if dtype == DType::F16 => f16::from_ne_bytes([a, b]).to_f64(),
        [a, b] => bf16::from_ne_bytes([a, b]).to_f64(),
        [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
        _ => f64::from_ne_bytes(bytes.try_into().expect("an element of eight bytes")),
    };
    bytes.chunks(dtype.size()).map(value).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
