//! Autotuning in a running world: it measures, chooses, writes its log and ends.

use ronde_control::ReduceOp;
use ronde_control::autotune::Options;
use ronde_testkit::{Tensor, World};

const STEPS: usize = 250;

#[test]
fn a_job_tunes_itself_and_writes_what_it_measured() {
    let folder = std::env::temp_dir().join(format!("ronde-autotune-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = folder.join("autotune.csv");
    let options = Options { warmup_samples: 1, steps_per_sample: 2, most_points: 20 };
    let world = World::new(2).with(|settings| {
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
    let mut lines = text.lines();
    let columns = lines.next().unwrap();
    assert!(columns.ends_with("cycle_time_ms,tensor_fusion_threshold,score"), "{columns}");
    let rows: Vec<Vec<f64>> =
        lines.map(|line| line.split(',').map(|value| value.parse().unwrap()).collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 7 && row[6] > 0.0), "{text}");
    // All nine thresholds, then the better half of those that are left, and the best one once more.
    assert_eq!(rows.len(), 9 + 5 + 3 + 2 + 1, "{text}");
    let best = rows.last().unwrap();
    assert!(rows[..rows.len() - 1].iter().any(|row| row[5] == best[5]), "{text}");
}
