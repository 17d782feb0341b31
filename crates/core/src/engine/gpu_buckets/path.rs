//! How a process set reduces on its GPUs: its members tell each other what they have, and connect.

use std::sync::{Arc, Once, mpsc};

use ronde_control::{GpuPath, GpuReport, Rank, ReduceOp, SetId, gpu_path, sharing_note};

use super::{GpuBuckets, SetPath, wait_until};
use crate::buffer::{Operands, Row, RowMut};
use crate::collective::{self, row};
use crate::device::{Communicator, DeviceError, Gpu, ID_BYTES, Nccl, UniqueId};
use crate::error::Error;
use crate::group::{Group, Groups};
use crate::reduce::Reduction;
use crate::transport::waiter::Waiter;

impl GpuBuckets {
    /// Decides on a path for this set when it is first used; all members do so in the same bucket.
    pub(super) fn settle_path(
        &mut self,
        groups: &mut Groups,
        waiter: &Waiter,
        set: SetId,
    ) -> Result<(), Error> {
        if self.sets.contains_key(&set) {
            return Ok(());
        }
        let Some(process_set) = groups.process_set(set) else {
            return Err(Error::Invalid(format!("process set {} does not exist", set.0)));
        };
        let (me, size) = (process_set.me(), process_set.size());
        let members: Vec<Rank> = process_set.ranks().collect();
        let mut group = groups
            .group(set)
            .ok_or_else(|| Error::Invalid(format!("set {} is not connected", set.0)))?;
        let nccl = self.gpu.as_ref().map(|gpu| gpu.nccl());
        let report = GpuReport {
            nccl: nccl.as_ref().and_then(|nccl| nccl.as_ref().ok()).map(|nccl| nccl.version()),
            gpu: self.gpu.as_ref().map(|gpu| gpu.id()),
        };
        let reports = exchange(&mut group, report, (me, size))?;
        let path = match (gpu_path(&members, &reports), &self.gpu, nccl) {
            (GpuPath::Nccl, Some(gpu), Some(Ok(nccl))) => {
                match connect((&nccl, gpu), &mut group, waiter, (me, size))? {
                    Ok(communicator) => {
                        if set == SetId::WORLD && me == 0 {
                            note_sharing(sharing_note(&members, &reports, gpu.name()));
                        }
                        SetPath::Nccl(communicator)
                    }
                    Err(reason) => explained(me, &reason),
                }
            }
            (GpuPath::Host { reason }, _, nccl) => {
                if let Some(Err(DeviceError(problem))) = nccl {
                    tracing::debug!("{problem}");
                }
                explained(me, &reason)
            }
            (GpuPath::Nccl, ..) => explained(me, "this rank has no NCCL"),
        };
        self.sets.insert(set, path);
        Ok(())
    }
}

/// The first member says why GPU tensors take the long way; once, however many sets and worlds.
fn explained(me: usize, reason: &str) -> SetPath {
    static ONCE: Once = Once::new();
    if me == 0 {
        ONCE.call_once(|| {
            tracing::warn!(
                "GPU tensors go through host memory, which is slower than NCCL, because {reason}"
            );
        });
    }
    SetPath::Host
}

/// Logs that ranks share a GPU, in the first world of this process in which they do.
fn note_sharing(note: Option<String>) {
    static ONCE: Once = Once::new();
    if let Some(note) = note {
        ONCE.call_once(|| tracing::warn!("{note}"));
    }
}

fn exchange(
    group: &mut Group<'_>,
    report: GpuReport,
    (_, size): (usize, usize),
) -> Result<Vec<GpuReport>, Error> {
    let mine = report.to_bytes();
    let mut all = vec![0; GpuReport::BYTES * size];
    let cuts = row(std::iter::repeat_n(GpuReport::BYTES, size));
    let mut target = RowMut::new(vec![&mut all]);
    collective::allgather(group, (&Row::new(vec![&mine]), &mut target), &cuts)?;
    let (reports, _) = all.as_chunks();
    Ok(reports.iter().map(GpuReport::from_bytes).collect())
}

/// Has another thread split a communicator, which blocks while a rank is missing. If the world ends
/// first, the communicator ends with that thread.
fn split(
    communicator: Communicator,
    waiter: &Waiter,
) -> Result<Result<Communicator, String>, Error> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // Nobody receives it if the world has ended.
        let _ = sender.send(communicator.split());
    };
    std::thread::Builder::new().name("ronde-nccl".into()).spawn(work).map_err(|error| {
        Error::Device(format!("cannot start a thread to connect with NCCL: {error}"))
    })?;
    let mut split = None;
    wait_until(waiter, || {
        split = receiver.try_recv().ok();
        Ok(split.is_some())
    })?;
    Ok(split.expect("it was received").map_err(|DeviceError(text)| text))
}

/// Connects the members. If any of them cannot, none is connected, and all know why.
fn connect(
    (nccl, gpu): (&Arc<Nccl>, &Arc<Gpu>),
    group: &mut Group<'_>,
    waiter: &Waiter,
    (me, size): (usize, usize),
) -> Result<Result<Communicator, String>, Error> {
    // The first member makes the id. It reaches the others through our own connections, all of
    // which have proved that they belong to the job.
    let mut id = UniqueId([0; ID_BYTES]);
    let mut problem = None;
    if me == 0 {
        match nccl.unique_id() {
            Ok(new) => id = new,
            Err(DeviceError(text)) => problem = Some(text),
        }
    }
    collective::broadcast(group, &mut Operands::new([(None, &mut id.0[..])]), 0)?;
    if id.0 == [0; ID_BYTES] {
        let reason = problem.unwrap_or_else(|| "the first rank cannot make an id".into());
        return Ok(Err(reason));
    }
    let started = Communicator::start(nccl, gpu, id, (me, size));
    let communicator = started.and_then(|communicator| {
        let mut failed = None;
        let settled = wait_until(waiter, || match communicator.is_settled() {
            Err(error) => {
                failed = Some(error);
                Ok(true)
            }
            settled => settled,
        });
        match (settled, failed) {
            (Ok(()), None) => Ok(Ok(communicator)),
            (Ok(()), Some(error)) => Err(error),
            (Err(error), _) => Ok(Err(error)),
        }
    });
    let communicator = match communicator {
        Ok(Ok(communicator)) => split(communicator, waiter)?,
        Ok(Err(world_ended)) => return Err(world_ended),
        Err(DeviceError(text)) => Err(text),
    };
    let mut is_connected = [u8::from(communicator.is_ok())];
    let dtype = ronde_control::DType::U8;
    let all = Reduction { dtype, op: ReduceOp::Min, prescale: 1.0, postscale: 1.0 };
    let mut operands = Operands::new([(None, &mut is_connected[..])]);
    collective::allreduce(group, &mut operands, &all)?;
    Ok(match (communicator, is_connected) {
        (Ok(communicator), [1]) => Ok(communicator),
        (Ok(_), _) => Err("NCCL could not connect another rank".into()),
        (Err(text), _) => Err(format!("NCCL could not connect the ranks: {text}")),
    })
}
