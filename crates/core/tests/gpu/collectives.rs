//! Every collective, with NCCL and through host memory, in the order of streams.

use ronde_control::negotiate::CollectiveKind;
use ronde_control::{DType, Rank, ReduceOp};
use ronde_core::engine::Outcome;
use ronde_testkit::World;

use crate::standin::{PATHS, Standin, Stream, gpu_of, request};

fn sum(prescale: f64, postscale: f64) -> CollectiveKind {
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale, postscale }
}

#[test]
fn reductions_wait_for_the_callers_stream_and_it_for_them() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(4).run(|rank| {
            let gpu = standin.gpu(gpu_of(path, rank.rank()));
            let stream = Stream::on(&gpu);
            for step in 0..3 {
                let mine = (rank.rank() + step) as f32;
                let (a, b) = (stream.floats(&[mine; 1000]), stream.floats(&[1.0, mine]));
                let request = request("x", sum(1.0, 0.25), DType::F32, &[&[1000], &[2]]);
                let outcome = stream.reduce(rank, request, &[&a, &b]).unwrap();
                assert!(matches!(outcome, Outcome::Launched { .. }), "{outcome:?}");
                let mean = 1.5 + step as f32;
                assert_eq!(stream.read_floats(&a), vec![mean; 1000], "{path}");
                assert_eq!(stream.read_floats(&b), [1.0, mean], "{path}");
            }
        });
    }
}

/// Then a launch may go on in the background, and nothing may overtake it.
#[test]
fn ranks_may_connect_in_the_first_collective() {
    let standin = Standin::with("devices=2,in-progress=always,lag=1ms");
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu_that_connects_late(rank.rank() as u32));
        for step in 0..3 {
            let (a, b) = (stream.floats(&[1.0; 9]), stream.floats(&[step as f32; 2]));
            let request = request("x", sum(1.0, 1.0), DType::F32, &[&[9], &[2]]);
            stream.reduce(rank, request, &[&a, &b]).unwrap();
            assert_eq!(stream.read_floats(&a), [2.0; 9]);
            assert_eq!(stream.read_floats(&b), [2.0 * step as f32; 2]);
        }
    });
}

#[test]
fn a_tensor_of_many_pieces_goes_through_host_memory_whole() {
    let standin = Standin::with("devices=1,nccl=22809");
    World::new(2).run(|rank| {
        let stream = Stream::on(&standin.gpu(0));
        let count = 3_500_000;
        let values: Vec<f32> = (0..count).map(|i| (i % 1000) as f32).collect();
        let tensor = stream.floats(&values);
        let request = request("x", sum(1.0, 1.0), DType::F32, &[&[count]]);
        stream.reduce(rank, request, &[&tensor]).unwrap();
        let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
        assert_eq!(stream.read_floats(&tensor), doubled);
    });
}

#[test]
fn tensors_are_gathered_exchanged_scattered_and_broadcast() {
    for path in PATHS {
        let standin = Standin::with(path);
        World::new(4).run(|rank| {
            let me = rank.rank();
            let stream = Stream::on(&standin.gpu(gpu_of(path, me)));
            // A ragged allgather, and an even one.
            for ragged in [true, false] {
                let rows = if ragged { me + 1 } else { 2 };
                let tensor = stream.floats(&vec![me as f32; rows * 3]);
                let shape = [rows as u64, 3];
                let request = request("g", CollectiveKind::Allgather, DType::F32, &[&shape]);
                let (outcome, made) = stream.make(rank, request, &[&tensor]);
                let Outcome::Launched { rows: counts, .. } = outcome.unwrap() else { panic!() };
                let rows_of = |rank: usize| if ragged { rank + 1 } else { 2 };
                let expected: Vec<f32> =
                    (0..4).flat_map(|rank| vec![rank as f32; rows_of(rank) * 3]).collect();
                assert_eq!(stream.read_floats(&made[0]), expected, "{path}");
                assert_eq!(counts, [(0..4).map(|rank| rows_of(rank) as u64).collect::<Vec<_>>()]);
            }
            // Rank r sends r rows to rank 0, one to rank 1, none to rank 2, and two to rank 3.
            let splits = vec![me as u64, 1, 0, 2];
            let tensor = stream.floats(&vec![me as f32; me + 3]);
            let shape = [me as u64 + 3];
            let kind = CollectiveKind::Alltoall { splits };
            let (outcome, made) =
                stream.make(rank, request("a", kind, DType::F32, &[&shape]), &[&tensor]);
            outcome.unwrap();
            let expected: Vec<f32> = match me {
                0 => vec![1.0, 2.0, 2.0, 3.0, 3.0, 3.0],
                1 => vec![0.0, 1.0, 2.0, 3.0],
                2 => vec![],
                _ => (0..4).flat_map(|rank| [rank as f32; 2]).collect(),
            };
            assert_eq!(stream.read_floats(&made[0]), expected, "{path}");
            let tensor = stream.floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
            let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
            let kind = CollectiveKind::Reducescatter { op, prescale, postscale };
            let (outcome, made) =
                stream.make(rank, request("s", kind, DType::F32, &[&[8]]), &[&tensor]);
            outcome.unwrap();
            let first = 2.0 * me as f32 + 1.0;
            assert_eq!(stream.read_floats(&made[0]), [4.0 * first, 4.0 * first + 4.0], "{path}");
            let tensor = stream.floats(&[me as f32; 5]);
            let kind = CollectiveKind::Broadcast { root: Rank(2) };
            stream.reduce(rank, request("b", kind, DType::F32, &[&[5]]), &[&tensor]).unwrap();
            assert_eq!(stream.read_floats(&tensor), [2.0; 5], "{path}");
        });
    }
}
