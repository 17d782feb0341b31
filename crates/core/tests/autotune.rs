//! Autotuning in a running world: it measures, chooses, writes its log and ends.
#![expect(clippy::unwrap_used, reason = "a failing step fails the test")]

use ronde_control::ReduceOp;
use ronde_control::autotune::{AutotuneOptions, Parameter};
use ronde_control::settings::Transport;
use ronde_testkit::{Tensor, World};

const STEPS: usize = 300;

/// Trains in a world that tunes itself; returns the log.
fn tuned(transport: Transport) -> String {
    let name = format!("ronde-autotune-{}-{transport:?}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("autotune.csv");
    let parameters = vec![Parameter::FusionThreshold, Parameter::Connections];
    let options =
        AutotuneOptions { parameters, warmup_samples: 1, steps_per_sample: 2, most_points: 20 };
    let world = World::new(2).over(transport).with(|settings| {
        settings.autotune = Some(options);
        settings.autotune_log = Some(log.to_str().unwrap().into());
    });
    world.run(|member| {
        for _ in 0..STEPS {
            let tensors: Vec<Tensor> = (0..4).map(|_| Tensor::floats(&[1.0; 1000])).collect();
            let tickets: Vec<_> = tensors
                .iter()
                .enumerate()
                .map(|(index, tensor)| {
                    let name = format!("gradient.{index}");
                    member.reduce(&name, ReduceOp::Sum, tensor, tensor).unwrap()
                })
                .collect();
            for (ticket, tensor) in tickets.iter().zip(&tensors) {
                member.wait(ticket).unwrap();
                assert_eq!(tensor.as_floats(), [2.0; 1000]);
            }
        }
    });
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    text
}

/// The rows of a log, under Horovod's columns.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let mut lines = text.lines();
    let columns = lines.next().unwrap();
    assert!(columns.ends_with("cycle_time_ms,tensor_fusion_threshold,score"), "{columns}");
    let numbers = |line: &str| line.split(',').map(|value| value.parse().unwrap()).collect();
    lines.map(numbers).collect()
}

#[test]
fn a_job_tunes_itself_and_writes_what_it_measured() {
    // All nine thresholds, then the better half of the remaining ones, and so on.
    let thresholds = 9 + 5 + 3 + 2;
    // The number of connections matters only over sockets.
    for (transport, connections) in [(Transport::Auto, 0), (Transport::Tcp, 4 + 2)] {
        let text = tuned(transport);
        let rows = rows(&text);
        assert!(rows.iter().all(|row| row.len() == 7 && row[6] > 0.0), "{text}");
        assert_eq!(rows.len(), thresholds + connections + 1, "{text}");
        let (best, measured) = rows.split_last().unwrap();
        assert!(measured.iter().any(|row| row[5] == best[5]), "{text}");
    }
}
