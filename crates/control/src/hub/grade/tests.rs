use super::*;

const DAY: u64 = 86_400;

/// A node that has been there for a month and did all it promised.
fn proven(speed: f64) -> Evidence {
    Evidence {
        promised_seconds: 30 * DAY,
        online_seconds: 30 * DAY,
        vanished: 0,
        speed: Some(Measured { value: speed, count: 30, claimed: None }),
        network: Some(Network {
            latency_ms: 100.0 / speed,
            bandwidth: 1e6 * speed,
            loss: 0.0,
            count: 99,
        }),
        record: Record { served: 40, failed: 0, left: 0 },
    }
}

fn network_of(nodes: usize) -> Population {
    let nodes: Vec<Evidence> = (1..=nodes).map(|speed| proven(speed as f64)).collect();
    Population::of(&nodes)
}

fn letter(grades: &Grades, axis: Axis) -> Letter {
    grades.axes.iter().find(|(it, _)| *it == axis).unwrap().1.letter
}

#[test]
fn a_newcomer_is_in_the_middle_on_every_axis_and_says_why() {
    let grades = grade(&Evidence::default(), &network_of(20));
    assert!(grades.axes.iter().all(|(_, grade)| grade.letter == Letter::C), "{grades:?}");
    assert_eq!(grades.whole.letter, Letter::C);
    assert_eq!(grades.axes[0].1.to_string(), "C: has not promised any time yet");
}

#[test]
fn a_few_good_hours_do_not_make_an_a() {
    let day = Evidence {
        promised_seconds: 6 * 3600,
        online_seconds: 6 * 3600,
        speed: Some(Measured { value: 1e9, count: 1, claimed: None }),
        record: Record { served: 1, ..Record::default() },
        ..Evidence::default()
    };
    let grades = grade(&day, &network_of(20));
    assert!(grades.axes.iter().all(|(_, grade)| grade.letter > Letter::A), "{grades:?}");
}

#[test]
fn the_best_of_many_proven_nodes_is_an_a_and_the_slowest_is_held_back() {
    let population = network_of(50);
    let best = grade(&proven(50.0), &population);
    assert_eq!(best.whole.letter, Letter::A, "{best:?}");
    let slowest = grade(&proven(1.0), &population);
    assert_eq!(letter(&slowest, Axis::Speed), Letter::F);
    assert_eq!(slowest.whole.letter, Letter::E);
    assert!(slowest.whole.why.contains("held back by network"), "{}", slowest.whole.why);
}

#[test]
fn each_fault_lowers_its_axis_and_is_named() {
    let population = network_of(50);
    let good = proven(50.0);
    let cases = [
        (
            Evidence { online_seconds: 10 * DAY, ..good.clone() },
            Axis::Availability,
            "online 33.3 % of the 30 days promised",
        ),
        (
            Evidence { vanished: 90, ..good.clone() },
            Axis::Stability,
            "vanished 90 times in 30 days online",
        ),
        (
            Evidence {
                speed: Some(Measured { value: 50.0, count: 3, claimed: Some(100.0) }),
                ..good.clone()
            },
            Axis::Speed,
            "measured 50, which is less than the 100 it claims",
        ),
        (
            Evidence {
                network: good.network.map(|network| Network { loss: 0.05, ..network }),
                ..good.clone()
            },
            Axis::Network,
            "loses 5.0 % of the probes",
        ),
        (
            Evidence { record: Record { served: 10, failed: 8, left: 2 }, ..good.clone() },
            Axis::Record,
            "served 10 of 20 clusters to the end, failed 8 times, left early twice",
        ),
    ];
    for (evidence, axis, why) in cases {
        let grades = grade(&evidence, &population);
        let (_, found) = grades.axes.iter().find(|(it, _)| *it == axis).unwrap();
        assert!(found.letter > Letter::B, "{axis}: {found}");
        assert!(found.why.contains(why), "{axis}: {found}");
        assert!(grades.whole.letter > Letter::A, "{axis}: {}", grades.whole);
    }
}

#[test]
fn old_faults_fade() {
    let population = network_of(20);
    let bad = Evidence { vanished: 60, ..proven(20.0) };
    let stability = |evidence: &Evidence| grade(evidence, &population).axes[1].1.score;
    let mut evidence = bad.clone();
    for _ in 0..4 {
        evidence = evidence.faded();
        evidence.online_seconds += 15 * DAY;
    }
    assert!(stability(&evidence) > stability(&bad) + 0.3);
}

#[test]
fn in_a_network_of_one_nobody_is_fast_or_slow() {
    let alone = proven(3.0);
    let grades = grade(&alone, &Population::of([&alone]));
    assert_eq!(letter(&grades, Axis::Speed), Letter::C);
}

#[test]
fn scores_are_between_zero_and_one_whatever_the_evidence() {
    let extremes = [0.0, 1e-9, 1.0, 1e18];
    for online in [0, 1, u64::MAX] {
        for promised in [0, 1, u64::MAX] {
            for value in extremes {
                let evidence = Evidence {
                    promised_seconds: promised,
                    online_seconds: online,
                    vanished: u32::MAX,
                    speed: Some(Measured { value, count: u32::MAX, claimed: Some(value) }),
                    network: Some(Network {
                        latency_ms: value,
                        bandwidth: value,
                        loss: 1.0,
                        count: 0,
                    }),
                    record: Record { served: 1, failed: 0, left: u32::MAX / 2 },
                };
                let grades = grade(&evidence, &Population::of([&evidence]));
                for (_, grade) in &grades.axes {
                    assert!((0.0..=1.0).contains(&grade.score), "{grade:?}");
                }
            }
        }
    }
}
