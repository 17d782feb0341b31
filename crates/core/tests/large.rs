//! Tensors of more than 2^31 bytes. They need gigabytes of memory, so `make soak` runs them, one at
//! a time.

use ronde_control::negotiate::CollectiveKind;
use ronde_control::settings::Transport;
use ronde_control::{DType, Rank, ReduceOp};
use ronde_core::engine::Outcome;
use ronde_testkit::{Tensor, TestRank, TestRng, World};

/// A little more than 2^31 bytes, and not a round number.
const LENGTH: usize = (1 << 31) + 123_457;
/// The positions of nonzero bytes.
const MARKS: [usize; 6] = [0, 12_345_678, (1 << 31) - 1, 1 << 31, (1 << 31) + 9, LENGTH - 1];

fn marked(value: u8) -> Tensor {
    let tensor = Tensor::zeros(DType::U8, &[LENGTH as u64]);
    MARKS.iter().for_each(|at| tensor.mark(*at, &[value]));
    tensor
}

/// Checks that the marks are in place, counted from `start`, and that other bytes are zero.
fn check(bytes: &[u8], start: usize, value: u8) {
    let mut rng = TestRng::of(start as u64 + 1);
    let places = MARKS.into_iter().chain((0..1000).map(|_| rng.below(LENGTH)));
    for at in places.collect::<Vec<_>>() {
        let expected = if MARKS.contains(&at) { value } else { 0 };
        assert_eq!(bytes[start + at], expected, "at {at}");
    }
}

fn run(member: &TestRank, kind: CollectiveKind, tensor: &Tensor) -> Outcome {
    member.run("large", kind, tensor, tensor).expect("it completes")
}

fn all_collectives(world: &World) {
    world.run(|member| {
        let mine = member.rank() as u8 + 1;
        let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
        let tensor = marked(mine);
        run(member, CollectiveKind::Allreduce { op, prescale, postscale }, &tensor);
        tensor.look(|bytes| check(bytes, 0, 3));
        run(member, CollectiveKind::Broadcast { root: Rank(1) }, &tensor);
        tensor.look(|bytes| check(bytes, 0, 3));
        drop(tensor);
        // Almost everything comes from rank 1, which halves the memory needed.
        let rows = if member.rank() == 1 { LENGTH } else { 1 };
        let part = Tensor::zeros(DType::U8, &[rows as u64]);
        if member.rank() == 1 {
            MARKS.iter().for_each(|at| part.mark(*at, &[7]));
        }
        let Outcome::Made(made) = run(member, CollectiveKind::Allgather, &part) else { panic!() };
        assert_eq!(made[0].rows, [1, LENGTH as u64]);
        check(made[0].buffer.bytes(), 1, 7);
    });
}

#[test]
#[ignore = "takes several gigabytes of memory"]
fn more_than_two_gigabytes_pass_through_shared_memory() {
    all_collectives(&World::new(2));
}

#[test]
#[ignore = "takes several gigabytes of memory"]
fn more_than_two_gigabytes_pass_over_sockets() {
    all_collectives(&World::new(2).over(Transport::Tcp));
}
