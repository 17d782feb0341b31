//! One of each collective, in several lengths, with checked results: the work that ranks do over
//! and over while a test injects faults.

use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{Rank, ReduceOp};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Engine, Outcome};

use crate::{Tensor, TestRank};

/// Upper limit for any operation of a test.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Runs the collectives; all ranks must call this at the same time. Panics on a wrong result.
pub fn drill(engine: &Engine, lengths: &[usize]) -> Result<(), Error> {
    let (me, size) = (engine.place().rank.0, engine.place().size);
    let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
    let all = (0..size).sum::<u32>() as f32;
    let root = size / 2;
    for length in lengths.iter().copied() {
        let reduced =
            run(engine, CollectiveKind::Allreduce { op, prescale, postscale }, me, length)?;
        assert!(reduced == vec![all; length], "allreduce of {length}");
        let reduced =
            run(engine, CollectiveKind::Reducescatter { op, prescale, postscale }, me, length)?;
        assert!(reduced.iter().all(|value| *value == all), "reducescatter of {length}");
        let sent = run(engine, CollectiveKind::Broadcast { root: Rank(root) }, me, length)?;
        assert!(sent == vec![root as f32; length], "broadcast of {length}");
        let gathered: Vec<f32> = (0..size).flat_map(|rank| vec![rank as f32; length]).collect();
        assert!(
            run(engine, CollectiveKind::Allgather, me, length)? == gathered,
            "allgather of {length}"
        );
        let part = length / size as usize;
        let kind = CollectiveKind::Alltoall { splits: vec![part as u64; size as usize] };
        let mixed: Vec<f32> = (0..size).flat_map(|rank| vec![rank as f32; part]).collect();
        assert!(run(engine, kind, me, length)? == mixed, "alltoall of {length}");
    }
    Ok(())
}

fn run(engine: &Engine, kind: CollectiveKind, me: u32, length: usize) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(&vec![me as f32; length]);
    let name = format!("{}.{length}", kind.name());
    let tensors = Tensor::submission(&kind, [(&tensor, &tensor)]);
    let request: Request = TestRank::request(&name, kind, &tensor);
    let ticket = engine.submit(request, tensors, AfterSubmit::Waits)?;
    engine.wait(&ticket, Instant::now() + TIME_LIMIT);
    match ticket.take().expect("no call blocks forever")? {
        Outcome::Made(made) => {
            let bytes = made[0].buffer.bytes();
            let (chunks, _) = bytes.as_chunks::<4>();
            Ok(chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect())
        }
        _ => Ok(tensor.as_floats()),
    }
}
