//! One behavior suite over every way to connect ranks: each collective compared with its
//! definition.
//!
//! The cases are random; `RONDE_TEST_SEED` repeats a run and `RONDE_TEST_EFFORT` makes it longer. A
//! new way to connect ranks, or to choose between algorithms, is a line in `worlds`.

mod bits;
mod case;
mod crowds;
mod network;
mod reference;
mod run;
mod worlds;

use ronde_testkit::{World, effort, seed};

use worlds::Setup;

/// Runs that many cases in each world. They are numbered consecutively, so that together the worlds
/// cover all collectives, operations and element types, however few cases each one has.
fn run_all(setups: &[Setup], count: usize) {
    let (seed, count) = (seed(), effort(count));
    for (index, setup) in setups.iter().enumerate() {
        run::run(setup, index * count..(index + 1) * count, seed);
        bits::run(setup, effort(3), seed);
    }
}

#[test]
fn every_collective_is_correct_in_shared_memory() {
    run_all(&worlds::shared(1..10), 50);
}

#[test]
fn every_collective_is_correct_over_sockets() {
    run_all(&worlds::linked(1..10), 50);
}

#[test]
fn every_algorithm_is_correct_for_every_length() {
    run_all(&worlds::forced(), 20);
}

#[test]
fn every_collective_is_correct_on_islands() {
    run_all(&worlds::islands(), 20);
}

#[test]
fn every_collective_is_correct_encrypted() {
    run_all(&worlds::encrypted(), 20);
}

#[test]
fn another_world_of_the_same_kind_gives_the_same_bits() {
    use ronde_control::ReduceOp;
    use ronde_testkit::Tensor;
    for setup in
        [worlds::shared(3..4), worlds::linked(3..4), worlds::islands()[3..5].to_vec()].concat()
    {
        for length in [7, 300_000] {
            let run = |world: &World| {
                world.run(|member| {
                    let value = |i: usize| 1.0 / (1.0 + (i * 7 + member.rank() * 13) as f32);
                    let tensor = Tensor::floats(&(0..length).map(value).collect::<Vec<f32>>());
                    let ticket = member.reduce("x", ReduceOp::Sum, &tensor, &tensor).unwrap();
                    member.wait(&ticket).unwrap();
                    tensor.bytes()
                })
            };
            let (first, second) = (run(&setup.world), run(&setup.world));
            assert!(first[1..].iter().all(|rank| *rank == first[0]), "{} {length}", setup.name);
            assert!(first == second, "{} {length}", setup.name);
        }
    }
}

#[test]
fn with_reproducible_bits_it_does_not_matter_which_tensors_share_a_bucket() {
    let islands = worlds::islands().into_iter().step_by(3).take(4);
    for setup in worlds::linked(2..7).into_iter().chain(islands) {
        bits::run_in_one_bucket(&setup.reproducible());
    }
}
