//! Concurrency: many sets and threads, different orders on every rank, thousands of tensors in
//! flight.

use ronde_control::ReduceOp;
use ronde_testkit::{Tensor, TestRng, effort, seed};

use crate::case::Case;
use crate::run::{Circle, Flight, Trial};
use crate::worlds::{Setup, linked, make, shared};

fn both(ranks: usize) -> Vec<Setup> {
    [shared(ranks..ranks + 1), linked(ranks..ranks + 1)].concat()
}

#[test]
fn many_sets_work_at_once_with_a_thread_for_each() {
    let seed = seed();
    for setup in both(4) {
        // Every possible set of ranks, the world first.
        let mut sets: Vec<Vec<u32>> =
            (1..16u32).map(|bits| (0..4).filter(|rank| bits >> rank & 1 == 1).collect()).collect();
        sets.reverse();
        let rounds = effort(8);
        let cases: Vec<Vec<Case>> = sets
            .iter()
            .enumerate()
            .map(|(index, set)| {
                let case = |round| {
                    let number = index * rounds + round;
                    Case::any(number, &[set.len()], &mut TestRng::part(seed, number))
                };
                (0..rounds).map(case).collect()
            })
            .collect();
        setup.world.run(|member| {
            let ids = make(&sets, member);
            std::thread::scope(|scope| {
                for (index, ranks) in sets.iter().enumerate() {
                    let circle = Circle { set: ids[index], ranks };
                    let (cases, name) = (&cases[index], &setup.name);
                    scope.spawn(move || {
                        for (round, case) in cases.iter().enumerate() {
                            let rng = TestRng::part(seed, index * 1000 + round);
                            let Some(trial) = Trial::of(case, &circle, member, rng) else {
                                return;
                            };
                            trial.begin("").and_then(Flight::end).unwrap_or_else(|error| {
                                panic!("{name}, seed {seed}, {ranks:?}, {round}: {case}: {error}")
                            });
                        }
                    });
                }
            });
            member.barrier("end").unwrap();
        });
    }
}

#[test]
fn all_kinds_of_collectives_match_when_submitted_in_different_orders() {
    let seed = seed();
    for setup in both(3) {
        for round in 0..effort(3) {
            let count = 60;
            let case =
                |number| Case::any(number, &[3], &mut TestRng::part(seed, round * count + number));
            let cases: Vec<Case> = (0..count).map(case).collect();
            setup.world.run(|member| {
                let circle = Circle { set: ronde_control::SetId::WORLD, ranks: &[0, 1, 2] };
                let mut rng = TestRng::part(seed, member.rank());
                let mut order: Vec<usize> = (0..count).collect();
                rng.shuffle(&mut order);
                let begin = |at: &usize| {
                    let trial = Trial::of(&cases[*at], &circle, member, TestRng::part(seed, *at));
                    trial.expect("all are members").begin(&format!("{at}.")).unwrap()
                };
                let mut flights: Vec<Flight<'_>> = order.iter().map(begin).collect();
                rng.shuffle(&mut flights);
                for flight in flights {
                    flight.end().unwrap_or_else(|error| {
                        panic!("{}, seed {seed}, round {round}: {error}", setup.name)
                    });
                }
            });
        }
    }
}

#[test]
fn ten_thousand_tensors_in_flight_all_complete() {
    const COUNT: usize = 10_000;
    let seed = seed();
    for setup in both(2) {
        setup.world.run(|member| {
            let tensors: Vec<Tensor> =
                (0..COUNT).map(|i| Tensor::floats(&vec![i as f32; i % 4])).collect();
            let mut order: Vec<usize> = (0..COUNT).collect();
            TestRng::part(seed, member.rank()).shuffle(&mut order);
            let submit = |i: &usize| {
                member.reduce(&format!("t{i}"), ReduceOp::Sum, &tensors[*i], &tensors[*i]).unwrap()
            };
            let tickets: Vec<_> = order.iter().map(submit).collect();
            tickets.iter().for_each(|ticket| drop(member.wait(ticket).unwrap()));
            for (i, tensor) in tensors.iter().enumerate() {
                assert_eq!(tensor.as_floats(), vec![2.0 * i as f32; i % 4], "{}", setup.name);
            }
        });
    }
}

#[test]
fn tensors_submitted_from_many_threads_match() {
    for setup in both(3) {
        setup.world.run(|member| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        for round in 0..10 {
                            let tensors: Vec<Tensor> =
                                (0..8).map(|i| Tensor::floats(&vec![1.0; 10 + i])).collect();
                            let order = (0..8).map(|i| (i * 3 + member.rank() * 5 + thread) % 8);
                            let submit = |i: usize| {
                                let (name, tensor) = (format!("t{thread}.{i}"), &tensors[i]);
                                member.reduce(&name, ReduceOp::Sum, tensor, tensor).unwrap()
                            };
                            let tickets: Vec<_> = order.map(submit).collect();
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
