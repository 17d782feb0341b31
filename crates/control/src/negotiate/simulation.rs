//! Simulated worlds of members and a coordinator, with messages delivered in every order that a
//! real network could produce.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{DType, DeviceKind, ReduceOp, SetId};

struct SimulatedWorld {
    coordinator: Coordinator,
    members: Vec<Member>,
    up: Vec<VecDeque<MemberToCoordinator>>,
    down: Vec<VecDeque<CoordinatorToMember>>,
    ran: Vec<Vec<Vec<String>>>,
    failed: Vec<Vec<(String, String)>>,
    joined: Vec<Vec<Rank>>,
    sets: Vec<Vec<SetId>>,
}

impl SimulatedWorld {
    fn new(size: usize, threshold: u64, capacity: usize) -> SimulatedWorld {
        SimulatedWorld {
            coordinator: Coordinator::new(size, threshold, capacity),
            members: (0..size).map(|rank| Member::new(Rank(rank as u32))).collect(),
            up: vec![VecDeque::new(); size],
            down: vec![VecDeque::new(); size],
            ran: vec![Vec::new(); size],
            failed: vec![Vec::new(); size],
            joined: vec![Vec::new(); size],
            sets: vec![Vec::new(); size],
        }
    }

    fn submit(&mut self, rank: usize, request: Request) {
        let message = self.members[rank].submit(request);
        self.up[rank].push_back(message);
    }

    fn deliver_up(&mut self, rank: usize) {
        if let Some(message) = self.up[rank].pop_front() {
            self.coordinator.on(Rank(rank as u32), message, Duration::ZERO);
        }
        self.post();
    }

    fn release(&mut self) {
        self.coordinator.release(|_| true);
        self.post();
    }

    fn post(&mut self) {
        for message in self.coordinator.take_messages() {
            self.down.iter_mut().for_each(|queue| queue.push_back(message.clone()));
        }
    }

    fn deliver_down(&mut self, rank: usize) {
        let Some(message) = self.down[rank].pop_front() else { return };
        match self.members[rank].on(message) {
            Some(MemberEvent::Run(bucket)) => {
                self.ran[rank].push(bucket.into_iter().map(|work| work.request.name).collect());
            }
            Some(MemberEvent::Bulletin(Announcement::Fail { name, error })) => {
                self.failed[rank].push((name, error));
            }
            Some(MemberEvent::Send(message)) => self.up[rank].push_back(message),
            Some(MemberEvent::Malformed(text)) => panic!("rank {rank}: {text}"),
            Some(MemberEvent::Bulletin(Announcement::Joined { last })) => {
                self.joined[rank].push(last);
            }
            Some(MemberEvent::SetAdded { id, .. }) => self.sets[rank].push(id),
            Some(MemberEvent::Bulletin(_)) | None => {}
        }
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            for rank in 0..self.members.len() {
                while !self.up[rank].is_empty() {
                    self.deliver_up(rank);
                }
            }
            while self.coordinator.has_ready(|_| true) {
                self.release();
            }
            for rank in 0..self.members.len() {
                while !self.down[rank].is_empty() {
                    self.deliver_down(rank);
                }
            }
        }
        assert!(self.up.iter().all(VecDeque::is_empty), "messages never settle");
    }
}

fn sum(name: &str, length: u64) -> Request {
    let kind = CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let (name, set, dtype) = (name.into(), SetId::WORLD, DType::F32);
    Request { name, set, kind, dtype, shapes: vec![vec![length]], device: DeviceKind::Cpu }
}

fn gather(name: &str, rows: u64) -> Request {
    Request { kind: CollectiveKind::Allgather, shapes: vec![vec![rows, 2]], ..sum(name, 0) }
}

#[test]
fn tensors_that_become_ready_while_a_bucket_is_in_flight_travel_together() {
    let mut world = SimulatedWorld::new(2, 1 << 20, 16);
    for name in ["a", "b", "c"] {
        (0..2).for_each(|rank| world.submit(rank, sum(name, 4)));
    }
    world.settle();
    assert_eq!(world.ran[0], [["a", "b", "c"]]);
    assert_eq!(world.ran[1], world.ran[0]);
}

#[test]
fn a_bucket_holds_no_more_than_the_threshold() {
    let mut world = SimulatedWorld::new(2, 32, 16);
    for name in ["a", "b", "c"] {
        (0..2).for_each(|rank| world.submit(rank, sum(name, 4)));
    }
    world.settle();
    assert_eq!(world.ran[0], [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn tensors_on_a_device_that_is_kept_apart_travel_alone() {
    let mut world = SimulatedWorld::new(2, 1 << 20, 16);
    world.coordinator.keep_apart(DeviceKind::Gpu);
    let on_gpu = |name| Request { device: DeviceKind::Gpu, ..sum(name, 4) };
    for rank in 0..2 {
        [on_gpu("a"), sum("b", 4), on_gpu("c"), sum("d", 4)]
            .into_iter()
            .for_each(|request| world.submit(rank, request));
    }
    world.settle();
    assert_eq!(world.ran[0], [vec!["a"], vec!["b", "d"], vec!["c"]]);
}

#[test]
fn a_request_is_sent_in_full_once() {
    let mut world = SimulatedWorld::new(2, 0, 16);
    for round in 0..3 {
        for rank in 0..2 {
            world.submit(rank, sum("a", 4));
            let known = matches!(world.up[rank][0], MemberToCoordinator::Known(_));
            assert_eq!(known, round > 0);
        }
        world.settle();
    }
    assert_eq!(world.ran[1].len(), 3);
}

#[test]
fn an_allgather_tells_all_ranks_the_rows_of_each_even_by_number() {
    let mut world = SimulatedWorld::new(3, 0, 16);
    for (round, rows) in [[1, 2, 3], [1, 2, 3], [1, 5, 3]].into_iter().enumerate() {
        for (rank, rows) in rows.into_iter().enumerate() {
            world.submit(rank, gather("g", rows));
        }
        (0..3).for_each(|rank| world.deliver_up(rank));
        world.release();
        let messages: Vec<_> = world.down[2].drain(..).collect();
        let events: Vec<_> =
            messages.iter().filter_map(|m| world.members[2].on(m.clone())).collect();
        let [MemberEvent::Run(bucket)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(bucket[0].shares.concat(), rows, "round {round}");
        (0..2).for_each(|rank| {
            while !world.down[rank].is_empty() {
                world.deliver_down(rank);
            }
        });
    }
}

#[test]
fn a_mismatch_fails_that_tensor_on_all_ranks_and_nothing_else() {
    let mut world = SimulatedWorld::new(3, 1 << 20, 16);
    (0..3).for_each(|rank| world.submit(rank, sum("bad", 4 + rank as u64 / 2)));
    (0..3).for_each(|rank| world.submit(rank, sum("good", 4)));
    world.settle();
    for rank in 0..3 {
        assert_eq!(world.ran[rank], [["good"]]);
        assert!(world.failed[rank][0].1.contains("rank 0 against rank 2"), "{:?}", world.failed);
    }
}

#[test]
fn nothing_is_released_after_a_rank_has_left() {
    let mut world = SimulatedWorld::new(2, 1 << 20, 16);
    world.submit(0, sum("a", 4));
    world.up[1].push_back(MemberToCoordinator::Leave { reason: Some("ValueError: x".into()) });
    world.settle();
    world.submit(0, sum("b", 4));
    world.settle();
    assert!(world.ran.iter().all(Vec::is_empty));
    assert_eq!(world.failed[0][0].0, "b");
}

#[test]
fn a_joined_rank_contributes_zeros_until_all_have_joined() {
    let mut world = SimulatedWorld::new(3, 0, 16);
    (0..3).for_each(|rank| world.submit(rank, sum("a", 4)));
    world.settle();
    let message = world.members[1].join();
    world.up[1].push_back(message);
    for name in ["a", "b", "c.noname.1"] {
        world.submit(0, sum(name, 4));
        world.submit(2, sum(name, 4));
        world.settle();
    }
    assert_eq!(world.ran[1].len(), 4);
    assert_eq!(world.ran[1], world.ran[0]);
    world.submit(0, gather("g", 1));
    world.submit(2, gather("g", 1));
    world.settle();
    assert!(world.failed[0][0].1.contains("Allgather is not supported with Join"));
    for rank in [2, 0] {
        let message = world.members[rank].join();
        world.up[rank].push_back(message);
        world.settle();
    }
    assert_eq!(world.joined, vec![vec![Rank(0)]; 3]);
    (0..3).for_each(|rank| world.submit(rank, sum("a", 4)));
    world.settle();
    assert_eq!(world.ran[1].len(), 5);
}

#[test]
fn a_tensor_no_longer_waits_for_a_rank_that_joins() {
    let mut world = SimulatedWorld::new(2, 0, 16);
    world.submit(0, sum("a", 4));
    world.settle();
    let message = world.members[1].join();
    world.up[1].push_back(message);
    world.settle();
    assert_eq!((world.ran[0].len(), world.ran[1].len()), (1, 1));
}

#[test]
fn a_process_set_concerns_only_its_members() {
    let mut world = SimulatedWorld::new(4, 0, 16);
    let add = |ranks: &[u32]| Request {
        kind: CollectiveKind::AddSet { ranks: ranks.iter().map(|rank| Rank(*rank)).collect() },
        shapes: vec![],
        ..sum("add", 0)
    };
    for (ranks, id) in [(&[1, 3][..], SetId(1)), (&[0, 1], SetId(2))] {
        (0..4).for_each(|rank| world.submit(rank, add(ranks)));
        world.settle();
        assert!(world.sets.iter().all(|sets| sets.last() == Some(&id)));
    }
    let of_set = |set, name: &str| Request { set: SetId(set), ..sum(name, 4) };
    for _ in 0..2 {
        [1, 3].iter().for_each(|rank| world.submit(*rank, of_set(1, "x@1")));
        [0, 1].iter().for_each(|rank| world.submit(*rank, of_set(2, "x@2")));
        world.settle();
    }
    assert_eq!(world.ran.iter().map(Vec::len).collect::<Vec<_>>(), [2, 4, 0, 2]);
    let remove = || Request {
        kind: CollectiveKind::RemoveSet { set: SetId(1) },
        shapes: vec![],
        ..sum("rm", 0)
    };
    (0..4).for_each(|rank| world.submit(rank, remove()));
    world.settle();
    world.submit(1, of_set(1, "x@1"));
    world.settle();
    assert!(world.failed[1][0].1.contains("does not exist"), "{:?}", world.failed[1]);
    (0..4).for_each(|rank| world.submit(rank, add(&[0, 1, 2])));
    world.settle();
    assert_eq!(world.sets[3], [SetId(1), SetId(2), SetId(1)]);
    [0, 1, 2].iter().for_each(|rank| world.submit(*rank, of_set(1, "x@1")));
    world.settle();
    assert_eq!(world.ran.iter().map(Vec::len).collect::<Vec<_>>(), [3, 5, 1, 2]);
}

#[test]
fn late_ranks_are_named() {
    let mut coordinator = Coordinator::new(4, 0, 0);
    let second = Duration::from_secs(1);
    coordinator.on(Rank(1), MemberToCoordinator::Announce(sum("a", 1)), second);
    coordinator.on(Rank(3), MemberToCoordinator::Announce(sum("a", 1)), 2 * second);
    assert_eq!(coordinator.stalls(Duration::ZERO), []);
    let (waiting, missing) = (vec![Rank(1), Rank(3)], vec![Rank(0), Rank(2)]);
    let stall = Stall { name: "a".into(), since: second, waiting, missing };
    assert_eq!(coordinator.stalls(second), [stall]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// For any order of submission, delivery and release, and however few numbers are kept, every
    /// rank runs the same buckets in the same order, and every tensor once per round.
    #[test]
    fn all_ranks_run_the_same_in_the_same_order(
        size in 1usize..5,
        capacity in 0usize..5,
        threshold in prop_oneof![Just(0u64), Just(40), Just(1 << 20)],
        choices in proptest::collection::vec(any::<u32>(), 50..400),
    ) {
        let names = ["a", "b", "c", "d", "e.noname.1"];
        let mut world = SimulatedWorld::new(size, threshold, capacity);
        let mut rounds = vec![HashMap::new(); size];
        for choice in choices {
            let rank = (choice >> 8) as usize % size;
            match choice % 4 {
                0 => {
                    let name = names[(choice >> 16) as usize % names.len()];
                    let round: &mut u64 = rounds[rank].entry(name).or_default();
                    // The length changes every few rounds, on all ranks alike.
                    let request = sum(name, 1 + *round / 3);
                    if !world.members[rank].pending().any(|pending| pending == name) {
                        *round += 1;
                        world.submit(rank, request);
                    }
                }
                1 => world.deliver_up(rank),
                2 => world.deliver_down(rank),
                _ => world.release(),
            }
        }
        world.settle();
        for rank in 0..size {
            prop_assert_eq!(&world.ran[rank], &world.ran[0]);
            prop_assert!(world.failed[rank].is_empty());
            for name in names {
                let ran = world.ran[rank].iter().flatten().filter(|ran| *ran == name).count() as u64;
                let fewest = rounds.iter().map(|r| r.get(name).copied().unwrap_or(0)).min().unwrap();
                prop_assert_eq!(ran, fewest, "{} on rank {}", name, rank);
            }
        }
    }
}

#[test]
fn invalid_tuning_is_a_malformed_message() {
    let mut member = Member::new(Rank(1));
    for (connections, is_valid) in [(0, false), (1, true), (16, true), (17, false)] {
        let tuning = Tuning { connections, ..Tuning::default() };
        let event = member.on(CoordinatorToMember::Bulletin(Announcement::Tune(tuning)));
        assert_eq!(
            event == Some(MemberEvent::Bulletin(Announcement::Tune(tuning))),
            is_valid,
            "{connections}"
        );
        assert_eq!(matches!(event, Some(MemberEvent::Malformed(_))), !is_valid, "{connections}");
    }
}
