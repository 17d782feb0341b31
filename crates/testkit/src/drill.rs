//! One of each collective, of several lengths, each of whose results is checked: what ranks do over and
//! over while something happens to one of them.

use std::time::{Duration, Instant};

use ronde_control::negotiate::{Kind, Request};
use ronde_control::{Rank, ReduceOp};
use ronde_core::Error;
use ronde_core::engine::{Engine, Next, Outcome};

use crate::{Member, Tensor};

/// No operation of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs them; all ranks must, at the same time. A result that is wrong is a panic.
pub fn drill(engine: &Engine, lengths: &[usize]) -> Result<(), Error> {
    let (me, size) = (engine.place().rank.0, engine.place().size);
    let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 1.0);
    let all = (0..size).sum::<u32>() as f32;
    let root = size / 2;
    for length in lengths.iter().copied() {
        let reduced = run(engine, Kind::Allreduce { op, prescale, postscale }, me, length)?;
        assert!(reduced == vec![all; length], "allreduce of {length}");
        let reduced = run(engine, Kind::Reducescatter { op, prescale, postscale }, me, length)?;
        assert!(reduced.iter().all(|value| *value == all), "reducescatter of {length}");
        let sent = run(engine, Kind::Broadcast { root: Rank(root) }, me, length)?;
        assert!(sent == vec![root as f32; length], "broadcast of {length}");
        let gathered: Vec<f32> = (0..size).flat_map(|rank| vec![rank as f32; length]).collect();
        assert!(run(engine, Kind::Allgather, me, length)? == gathered, "allgather of {length}");
        let part = length / size as usize;
        let kind = Kind::Alltoall { splits: vec![part as u64; size as usize] };
        let mixed: Vec<f32> = (0..size).flat_map(|rank| vec![rank as f32; part]).collect();
        assert!(run(engine, kind, me, length)? == mixed, "alltoall of {length}");
    }
    Ok(())
}

fn run(engine: &Engine, kind: Kind, me: u32, length: usize) -> Result<Vec<f32>, Error> {
    let tensor = Tensor::floats(&vec![me as f32; length]);
    let name = format!("{}.{length}", kind.name());
    let tensors = Tensor::submission(&kind, [(&tensor, &tensor)]);
    let request: Request = Member::request(&name, kind, &tensor);
    let ticket = engine.submit(request, tensors, Next::Waits)?;
    engine.wait(&ticket, Instant::now() + PATIENCE);
    match ticket.take().expect("no call blocks for ever")? {
        Outcome::Made(made) => {
            let bytes = made[0].buffer.bytes();
            let (chunks, _) = bytes.as_chunks::<4>();
            Ok(chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect())
        }
        _ => Ok(tensor.as_floats()),
    }
}
