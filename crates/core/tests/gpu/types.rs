//! Every element type, with NCCL and through host memory; also those that NCCL does not know.

use half::{bf16, f16};
use ronde_control::negotiate::CollectiveKind;
use ronde_control::{DType, Rank, ReduceOp};
use ronde_testkit::World;

use crate::standin::{PATHS, Standin, Stream, gpu_of, request};

/// Small numbers as elements of a type; a boolean is whether the number is odd.
fn elements(dtype: DType, values: &[u8]) -> Vec<u8> {
    let one = |value: &u8| -> Vec<u8> {
        let (value, float) = (*value, f32::from(*value));
        match dtype {
            DType::U8 | DType::I8 => vec![value],
            DType::Bool => vec![value % 2],
            DType::U16 | DType::I16 => u16::from(value).to_ne_bytes().to_vec(),
            DType::I32 => i32::from(value).to_ne_bytes().to_vec(),
            DType::I64 => i64::from(value).to_ne_bytes().to_vec(),
            DType::F16 => f16::from_f32(float).to_ne_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(float).to_ne_bytes().to_vec(),
            DType::F32 => float.to_ne_bytes().to_vec(),
            DType::F64 => f64::from(value).to_ne_bytes().to_vec(),
        }
    };
    values.iter().flat_map(one).collect()
}

#[test]
fn every_type_is_reduced_gathered_and_sent() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(2).run(|rank| {
            let me = rank.rank() as u8;
            let stream = Stream::on(&standin.gpu(gpu_of(path, rank.rank())));
            for &dtype in DType::ALL {
                let what = format!("{dtype} {path}");
                let mine = elements(dtype, &[me, 1, me + 2]);
                for (op, expected) in [
                    (ReduceOp::Sum, [1, 2, 5]),
                    (ReduceOp::Max, [1, 1, 3]),
                    (ReduceOp::Min, [0, 1, 2]),
                    (ReduceOp::Product, [0, 1, 6]),
                ] {
                    if dtype == DType::Bool && op != ReduceOp::Max {
                        continue;
                    }
                    let tensor = stream.tensor(&mine);
                    let kind = CollectiveKind::Allreduce { op, prescale: 1.0, postscale: 1.0 };
                    stream.reduce(rank, request("x", kind, dtype, &[&[3]]), &[&tensor]).unwrap();
                    let expected = match dtype {
                        DType::Bool => elements(dtype, &[1, 1, 1]),
                        _ => elements(dtype, &expected),
                    };
                    assert_eq!(stream.read(&tensor), expected, "{op} of {what}");
                }
                let tensor = stream.tensor(&mine);
                let gather = request("g", CollectiveKind::Allgather, dtype, &[&[3]]);
                let (outcome, made) = stream.make(rank, gather, &[&tensor]);
                outcome.unwrap();
                let expected = elements(dtype, &[0, 1, 2, 1, 1, 3]);
                assert_eq!(stream.read(&made[0]), expected, "allgather of {what}");
                let send = CollectiveKind::Broadcast { root: Rank(1) };
                stream.reduce(rank, request("b", send, dtype, &[&[3]]), &[&tensor]).unwrap();
                let expected = elements(dtype, &[1, 1, 3]);
                assert_eq!(stream.read(&tensor), expected, "broadcast of {what}");
            }
        });
    }
}

#[test]
fn adasum_and_scaled_integers_are_those_of_host_memory() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(4).run(|rank| {
            let stream = Stream::on(&standin.gpu(gpu_of(path, rank.rank())));
            let reduce = |name: &str, op, dtype, (prescale, postscale), mine: &[u8]| {
                let kind = CollectiveKind::Allreduce { op, prescale, postscale };
                let tensor = stream.tensor(mine);
                let on_gpu = request(name, kind, dtype, &[&[mine.len() as u64 / 4]]);
                stream.reduce(rank, on_gpu, &[&tensor]).unwrap();
                stream.read(&tensor)
            };
            let all = |value: u8| vec![value; 5];
            // Equal vectors stay as they are, and orthogonal ones add up.
            let same = elements(DType::F32, &all(3));
            assert_eq!(reduce("same", ReduceOp::Adasum, DType::F32, (1.0, 1.0), &same), same);
            let mut apart = vec![0; 4];
            apart[rank.rank()] = 2;
            let apart = elements(DType::F32, &apart);
            let sum = reduce("apart", ReduceOp::Adasum, DType::F32, (1.0, 1.0), &apart);
            assert_eq!(sum, elements(DType::F32, &[2; 4]), "{path}");
            let mine = elements(DType::I32, &all(7));
            let average = reduce("average", ReduceOp::Sum, DType::I32, (1.0, 0.25), &mine);
            assert_eq!(average, mine, "{path}");
        });
    }
}
