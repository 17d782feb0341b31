//! The timeline and the metrics have the GPU's own times.

use std::fs;
use std::time::Duration;

use ronde_control::negotiate::CollectiveKind;
use ronde_control::watching::{Cycles, TimelineRequest};
use ronde_control::{DType, ReduceOp};
use ronde_testkit::World;

use crate::standin::{Standin, Stream, eventually, request};

#[test]
fn the_timeline_shows_how_long_the_gpu_took() {
    let standin = Standin::with("devices=2,lag=ncclAllReduce:20ms");
    let path = std::env::temp_dir().join(format!("ronde-gpu-{}.json", std::process::id()));
    let timeline = TimelineRequest { path: Some(path.clone()), cycles: Cycles::Unmarked };
    let world = World::new(2).with(|settings| settings.watching.timeline = Some(timeline));
    world.run(|rank| {
        let stream = Stream::on(&standin.gpu(rank.rank() as u32));
        let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
        for _ in 0..3 {
            let (a, b) = (stream.floats(&[1.0; 100]), stream.floats(&[1.0]));
            let kind = CollectiveKind::Allreduce { op, prescale, postscale };
            let both = request("x", kind, DType::F32, &[&[100], &[1]]);
            stream.reduce(rank, both, &[&a, &b]).unwrap();
            stream.read(&a);
        }
        rank.barrier("done").unwrap();
        if rank.rank() == 0 {
            let shown = || fs::read_to_string(&path).unwrap().matches("NCCL_ALLREDUCE").count();
            eventually(|| shown() == 3);
        }
        rank.barrier("end").unwrap();
    });
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let on_gpu: Vec<&str> = text.lines().filter(|line| line.contains("NCCL_ALLREDUCE")).collect();
    for line in &on_gpu {
        let (_, rest) = line.split_once("\"dur\":").unwrap();
        let micros: u64 = rest.split_once(',').unwrap().0.parse().unwrap();
        // The two clocks may be a millisecond apart.
        assert!(Duration::from_micros(micros) >= Duration::from_millis(18), "{line}");
        assert!(line.contains(r#""bytes":404,"first":"x","tensors":1"#), "{line}");
    }
    assert_eq!(text.matches(r#""name":"LAUNCH""#).count(), 3, "{text}");
    assert!(text.contains(r#"{"name":"GPU"}"#), "{text}");
}
