use super::*;
use crate::hub::offer::Audience;

const NOW: Moment = Moment(20 * 86_400 + 12 * 3600);

fn node(id: u64) -> Candidate {
    Candidate {
        node: NodeId(id),
        name: format!("node-{id}"),
        owner: PersonId(100 + id),
        state: NodeState::Free,
        offer: Offer {
            cpus: 8,
            memory_bytes: 16 << 30,
            gpus: 0,
            disk_bytes: 50 << 30,
            hours: None,
            when_idle: false,
            to: Audience::Everybody,
        },
        kind: kind("x86_64", "2.11.0"),
        quality: 0.6,
    }
}

fn kind(device: &str, torch: &str) -> Kind {
    Kind {
        device: device.into(),
        python: "3.12".into(),
        packages: BTreeMap::from([("torch".into(), torch.into())]),
    }
}

fn wanted(ranks: u32) -> Wanted {
    Wanted {
        borrower: PersonId(1),
        standing: 0.5,
        ranks,
        gpus_per_rank: 0,
        ranks_per_node: 1,
        seconds: 1800,
    }
}

fn ids(cluster: &Cluster) -> Vec<u64> {
    let mut ids: Vec<u64> = cluster.nodes.iter().map(|(node, _)| node.0).collect();
    ids.sort_unstable();
    ids
}

fn choose_here(wanted: &Wanted, nodes: &[Candidate]) -> Result<Cluster, Shortage> {
    choose(wanted, nodes, &NodeMap::default(), NOW)
}

#[test]
fn a_cluster_is_of_one_kind() {
    let mut nodes: Vec<Candidate> = (0..6).map(node).collect();
    nodes[1].kind = kind("x86_64", "2.9.1");
    nodes[3].kind = kind("aarch64", "2.11.0");
    let cluster = choose_here(&wanted(4), &nodes).unwrap();
    assert_eq!(ids(&cluster), [0, 2, 4, 5]);
    let shortage = choose_here(&wanted(5), &nodes).unwrap_err();
    assert_eq!(
        shortage.to_string(),
        "5 ranks asked for, room for 4 now; there is room for 6 on nodes that differ \
         (device: aarch64, x86_64; torch: 2.11.0, 2.9.1)"
    );
}

#[test]
fn neighbors_are_preferred_to_nodes_far_away() {
    let nodes: Vec<Candidate> = (0..8).map(node).collect();
    let mut map = NodeMap::default();
    for _ in 0..50 {
        for one in 0..8 {
            for other in one + 1..8 {
                let is_near = one % 2 == other % 2;
                map.measured(NodeId(one), NodeId(other), if is_near { 0.5 } else { 80.0 });
            }
        }
    }
    let cluster = choose(&wanted(4), &nodes, &map, NOW).unwrap();
    assert!([vec![0, 2, 4, 6], vec![1, 3, 5, 7]].contains(&ids(&cluster)), "{cluster:?}");
    assert!(cluster.span_ms < 5.0, "{cluster:?}");
    let all = choose(&wanted(8), &nodes, &map, NOW).unwrap();
    assert!(all.span_ms > 60.0, "too few neighbors: some are far away: {all:?}");
}

#[test]
fn who_has_lent_more_gets_better_nodes() {
    let mut nodes: Vec<Candidate> = (0..9).map(node).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.quality = [0.3, 0.6, 0.9][index / 3];
        node.kind = kind(&format!("device {}", index / 3), "2.11.0");
    }
    let quality =
        |standing: f64| choose_here(&Wanted { standing, ..wanted(3) }, &nodes).unwrap().quality;
    assert_eq!([0.0, 0.5, 1.0].map(quality), [0.3, 0.6, 0.9]);
    // Nobody goes without while there are nodes, however good.
    let best = choose_here(&Wanted { standing: 0.0, ..wanted(3) }, &nodes[6..]).unwrap();
    assert_eq!(best.quality, 0.9);
}

#[test]
fn gpus_make_slots() {
    let mut nodes: Vec<Candidate> = (0..3).map(node).collect();
    nodes[1].offer.gpus = 4;
    nodes[2].offer.gpus = 1;
    let on_gpus = |ranks, gpus_per_rank| Wanted { gpus_per_rank, ..wanted(ranks) };
    let cluster = choose_here(&on_gpus(3, 1), &nodes[..2]).unwrap();
    assert_eq!(cluster.nodes, [(NodeId(1), 3)]);
    let cluster = choose_here(&on_gpus(2, 2), &nodes).unwrap();
    assert_eq!(cluster.nodes, [(NodeId(1), 2)]);
    let shortage = choose_here(&on_gpus(3, 2), &nodes).unwrap_err();
    assert_eq!(shortage.aside, [(SetAside::TooFewGpus, 2)]);
}

#[test]
fn every_obstacle_is_counted_and_said() {
    let mut nodes: Vec<Candidate> = (0..7).map(node).collect();
    nodes[1].state = NodeState::Offline;
    nodes[2].state = NodeState::Paused;
    nodes[3].state = NodeState::Reserved { until: NOW.after(600) };
    nodes[4].offer.to = Audience::People(vec![PersonId(9)]);
    nodes[5].offer.hours = Some("13-14".parse().unwrap());
    nodes[6].state = NodeState::Offline;
    let shortage = choose_here(&wanted(2), &nodes).unwrap_err();
    assert_eq!(
        shortage.to_string(),
        "2 ranks asked for, room for 1 now; 1 node not offered to you; 2 nodes offline; 1 node \
         paused by the owner; 1 node reserved; 1 node not lent for so long at this hour; there \
         will be enough in about 10 min"
    );
    let shortage = choose_here(&wanted(3), &nodes).unwrap_err();
    assert_eq!(shortage.enough_in, Some(3600), "when the hours of the last one begin");
    assert_eq!(choose_here(&wanted(4), &nodes).unwrap_err().enough_in, None);
}

#[test]
fn a_node_whose_hours_are_always_too_short_is_never_promised() {
    let mut short = node(0);
    short.offer.hours = Some("12-12:20".parse().unwrap());
    let shortage = choose_here(&wanted(1), &[short]).unwrap_err();
    assert_eq!((shortage.enough_in, &shortage.aside[..]), (None, &[(SetAside::Hours, 1)][..]));
}

#[test]
fn an_empty_hub_says_so() {
    let text = choose_here(&wanted(2), &[]).unwrap_err().to_string();
    assert_eq!(text, "2 ranks asked for, room for 0 now");
}

#[test]
fn of_many_nodes_each_cluster_has_what_was_asked_for() {
    let nodes: Vec<Candidate> = (0..300)
        .map(|id| {
            let mut node = node(id);
            node.quality = (id % 97) as f64 / 97.0;
            node.kind = kind(["a", "b", "c"][id as usize % 3], "2.11.0");
            node
        })
        .collect();
    let mut map = NodeMap::default();
    for id in 0..300 {
        for step in 1..20 {
            map.measured(NodeId(id), NodeId((id + 3 * step) % 300), step as f64);
        }
    }
    for ranks in [1, 7, 64, 100] {
        let cluster = choose(&wanted(ranks), &nodes, &map, NOW).unwrap();
        assert_eq!(cluster.nodes.iter().map(|(_, ranks)| ranks).sum::<u32>(), ranks);
        assert_eq!(ids(&cluster).windows(2).filter(|pair| pair[0] == pair[1]).count(), 0);
    }
}
