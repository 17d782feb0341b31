//! Reductions of tensors in the arena: the same bits as through staging memory, whichever ranks
//! have which tensors there.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::Transport;
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::buffer::{Operand, Output};
use ronde_core::engine::{AfterSubmit, ArenaBlock, Tensors};
use ronde_testkit::{Tensor, TestRank, World};

const SUM: CollectiveKind =
    CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };

/// Whether a rank has a tensor of the bucket in the arena.
type InArena = fn(usize, usize) -> bool;

/// A tensor in the arena or elsewhere.
enum Memory {
    Arena(Tensor<ArenaBlock>),
    Plain(Tensor),
}

impl Memory {
    fn of(member: &TestRank, in_arena: bool, bytes: &[u8]) -> Memory {
        let (dtype, shape) = (DType::U8, [bytes.len() as u64]);
        match in_arena {
            true => {
                let block = member.engine.allocate(bytes.len()).expect("there is space");
                Memory::Arena(Tensor::lying_in(block, dtype, &shape, bytes))
            }
            false => Memory::Plain(Tensor::new(dtype, &shape, bytes)),
        }
    }

    fn lend(&self) -> Output {
        match self {
            Memory::Arena(tensor) => tensor.lend(),
            Memory::Plain(tensor) => tensor.lend(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Memory::Arena(tensor) => tensor.bytes(),
            Memory::Plain(tensor) => tensor.bytes(),
        }
    }
}

/// Numbers whose sum depends on the order of summation.
fn floats(rank: usize, length: usize) -> Vec<u8> {
    let value = |i: usize| 1.0f32 / (1.0 + (i * 7 + rank * 13) as f32);
    (0..length).map(value).flat_map(f32::to_ne_bytes).collect()
}

fn request(name: &str, kind: CollectiveKind, dtype: DType, lengths: &[usize]) -> Request {
    let shapes = lengths.iter().map(|length| vec![(length / dtype.size()) as u64]).collect();
    Request { name: name.into(), set: SetId::WORLD, kind, dtype, shapes, device: DeviceKind::Cpu }
}

/// Reduces these tensors as one bucket, in place.
fn reduce(member: &TestRank, name: &str, kind: CollectiveKind, dtype: DType, memory: &[Memory]) {
    let outputs: Vec<Output> = memory.iter().map(Memory::lend).collect();
    let lengths: Vec<usize> = outputs.iter().map(Output::length).collect();
    let request = request(name, kind, dtype, &lengths);
    let tensors = Tensors::Given(outputs.into_iter().map(Operand::InPlace).collect());
    let ticket = member.engine.submit(request, tensors, AfterSubmit::Waits);
    member.wait(&ticket.expect("it is accepted")).expect("it is reduced");
}

/// The results of `reduce` for the same numbers; `in_arena` says which rank has which tensor in the
/// arena.
fn results(size: usize, lengths: &[usize], in_arena: InArena) -> Vec<Vec<Vec<u8>>> {
    World::new(size).run(|member| {
        let me = member.rank();
        // The offsets differ between ranks.
        let _shift = member.engine.allocate(1 + 1000 * me);
        let memory: Vec<Memory> = lengths
            .iter()
            .enumerate()
            .map(|(index, length)| Memory::of(member, in_arena(me, index), &floats(me, *length)))
            .collect();
        // Twice, so that leftovers of the first reduction would be noticed.
        reduce(member, "x", SUM, DType::F32, &memory);
        reduce(member, "x", SUM, DType::F32, &memory);
        let everywhere = |index: &usize| (0..size).all(|rank| in_arena(rank, *index));
        let common = (0..lengths.len()).filter(everywhere).map(|index| 4 * lengths[index]);
        assert_eq!(member.engine.bytes_in_place(), 2 * common.sum::<usize>() as u64);
        memory.iter().map(Memory::bytes).collect()
    })
}

#[test]
fn the_bits_are_those_of_staging_whichever_tensors_are_in_the_arena() {
    for size in [2, 3, 5] {
        for lengths in [vec![5_000], vec![300_001], vec![1, 70_000, 0, 3, 16, 40_001, 33]] {
            let staged = results(size, &lengths, |_, _| false);
            assert!(staged[1..].iter().all(|rank| *rank == staged[0]));
            let ways: [(&str, InArena); 5] = [
                ("all", |_, _| true),
                ("all but one rank", |rank, _| rank != 1),
                ("one rank", |rank, _| rank == 0),
                ("some tensors of one rank not", |rank, index| rank != 0 || index % 2 == 1),
                ("no tensor of all ranks", |rank, index| (rank == 0) == (index % 2 == 0)),
            ];
            for (way, in_arena) in ways {
                let got = results(size, &lengths, in_arena);
                assert!(got == staged, "{way} on {size} ranks, lengths {lengths:?}");
            }
        }
    }
}

#[test]
fn every_type_operation_and_factor_gives_the_bits_of_staging() {
    let kinds = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product]
        .map(|op| CollectiveKind::Allreduce { op, prescale: 1.0, postscale: 1.0 });
    let scaled = CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 0.5, postscale: 3.0 };
    World::new(3).run(|member| {
        for &dtype in DType::ALL {
            for (number, kind) in kinds.iter().chain([&scaled]).enumerate() {
                let bytes: Vec<u8> =
                    (0..40_000usize).map(|i| (i * 31 + member.rank() * 17) as u8).collect();
                let both = [true, false].map(|way| vec![Memory::of(member, way, &bytes)]);
                for (way, memory) in both.iter().enumerate() {
                    let name = format!("{dtype}.{number}.{way}");
                    reduce(member, &name, kind.clone(), dtype, memory);
                }
                assert!(both[0][0].bytes() == both[1][0].bytes(), "{dtype} {kind:?}");
            }
        }
    });
}

#[test]
fn process_sets_and_the_world_take_turns_in_the_arena() {
    World::new(4).run(|member| {
        let me = member.rank();
        let pair = member.add_set(&[0, 2]).unwrap();
        for round in 0..20 {
            let length = 10_000 + 1000 * round;
            let whole = [Memory::of(member, round % 3 > 0 || me == 3, &floats(me, length))];
            reduce(member, "w", SUM, DType::F32, &whole);
            if me % 2 == 0 {
                let mine = Memory::of(member, round % 2 == 0, &floats(me, length));
                let tensors = Tensors::Given(vec![Operand::InPlace(mine.lend())]);
                let request = Request { set: pair, ..request("p", SUM, DType::F32, &[4 * length]) };
                let ticket = member.engine.submit(request, tensors, AfterSubmit::Waits).unwrap();
                member.wait(&ticket).unwrap();
                let sum = Tensor::new(DType::F32, &[length as u64], &mine.bytes()).as_floats();
                let expected = |i: usize| {
                    [0, 2]
                        .map(|rank| 1.0f32 / (1.0 + (i * 7 + rank * 13) as f32))
                        .iter()
                        .sum::<f32>()
                };
                assert!((0..length).all(|i| sum[i] == expected(i)), "round {round}");
            }
        }
        // The first rank to leave would end what the pair still does.
        member.barrier("end").unwrap();
    });
}

#[test]
fn the_others_use_staging_if_a_rank_has_joined() {
    World::new(3).run(|member| {
        if member.rank() == 2 {
            member.join().unwrap();
            return;
        }
        let memory = [Memory::of(member, true, &floats(0, 20_000))];
        reduce(member, "x", SUM, DType::F32, &memory);
        let twice = Tensor::new(DType::F32, &[20_000], &floats(0, 20_000)).as_floats();
        let expected: Vec<u8> =
            twice.iter().flat_map(|value| (value * 2.0).to_ne_bytes()).collect();
        assert!(memory[0].bytes() == expected);
        member.join().unwrap();
    });
}

#[test]
fn a_separate_result_leaves_its_source_unchanged() {
    World::new(2).run(|member| {
        let source = Memory::of(member, true, &floats(member.rank(), 50_000));
        let target = Memory::of(member, true, &[0; 200_000]);
        let request = request("x", SUM, DType::F32, &[200_000]);
        let apart = Operand::Apart { input: source.lend().into(), output: target.lend() };
        let tensors = Tensors::Given(vec![apart]);
        let ticket = member.engine.submit(request, tensors, AfterSubmit::Waits).unwrap();
        member.wait(&ticket).unwrap();
        assert!(source.bytes() == floats(member.rank(), 50_000));
        assert!(target.bytes() != source.bytes());
    });
}

#[test]
fn the_death_of_a_peer_ends_the_reduction_and_further_allocations() {
    let (ready, done) = (Barrier::new(3), Barrier::new(3));
    World::new(3).run(|member| {
        let memory = Memory::of(member, true, &floats(0, 3_000_000));
        if member.rank() == 2 {
            ready.wait();
            member.launcher.lose(Rank(2), "was killed by signal 9 (SIGKILL)");
            done.wait();
            return;
        }
        let tensors = Tensors::Given(vec![Operand::InPlace(memory.lend())]);
        let request = request("x", SUM, DType::F32, &[12_000_000]);
        let ticket = member.engine.submit(request, tensors, AfterSubmit::GoesOn).unwrap();
        ready.wait();
        let start = Instant::now();
        let error = member.wait(&ticket).unwrap_err();
        assert_eq!(error.blames(), Some(Rank(2)));
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(member.engine.allocate(1).is_none());
        done.wait();
    });
}

#[test]
fn ranks_without_an_arena_get_no_block() {
    let worlds = [World::new(2).over(Transport::Tcp), World::new(2).with(|s| s.arena = 0)];
    for world in worlds.into_iter().chain([World::new(1)]) {
        world.run(|member| assert!(member.engine.allocate(100).is_none()));
    }
}

#[test]
fn a_block_outlives_its_world_and_then_leaves_nothing_mapped() {
    let blocks = World::new(2).run(|member| {
        let memory = Memory::of(member, true, &floats(member.rank(), 30_000));
        reduce(member, "x", SUM, DType::F32, std::slice::from_ref(&memory));
        memory
    });
    assert!(blocks[0].bytes() == blocks[1].bytes());
    let marks: Vec<usize> = blocks.iter().map(|block| block.lend().start() as usize).collect();
    drop(blocks);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs is mounted");
    for line in maps.lines().filter(|line| line.contains("ronde-arena")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (low, high) = range.split_once('-').unwrap();
        let [low, high] = [low, high].map(|text| usize::from_str_radix(text, 16).unwrap());
        assert!(marks.iter().all(|mark| !(low..high).contains(mark)));
    }
}
