//! The flight recorder: the history of the last tensors of this rank, in memory allocated at the
//! start. It is always on, so recording costs a few stores and no allocation.

use std::time::Duration;

use ronde_control::DType;
use ronde_control::negotiate::Request;

/// Bytes of a name that are kept; of a longer one its end, which is more telling.
const NAME: usize = 119;

/// The number of a record; the memory of an old record is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordId(u64);

impl RecordId {
    /// The record made after this one.
    pub(super) fn next(self) -> RecordId {
        RecordId(self.0 + 1)
    }
}

/// What happened to one submission on this rank. A time of zero means not yet.
#[derive(Clone)]
pub(super) struct FlightRecord {
    pub(super) number: u64,
    name: [u8; NAME],
    length: u8,
    pub(super) kind: &'static str,
    pub(super) set: u32,
    pub(super) dtype: DType,
    pub(super) tensors: u32,
    pub(super) bytes: u64,
    pub(super) ranks: u32,
    pub(super) bucket: u64,
    pub(super) transport: &'static str,
    pub(super) algorithm: &'static str,
    pub(super) queued: Duration,
    pub(super) released: Duration,
    pub(super) started: Duration,
    pub(super) finished: Duration,
    pub(super) error: Option<Box<str>>,
}

#[derive(Clone)]
pub(super) struct Recorder {
    slots: Vec<FlightRecord>,
    next: u64,
}

impl FlightRecord {
    const EMPTY: FlightRecord = FlightRecord {
        number: u64::MAX,
        name: [0; NAME],
        length: 0,
        kind: "",
        set: 0,
        dtype: DType::U8,
        tensors: 0,
        bytes: 0,
        ranks: 0,
        bucket: 0,
        transport: "",
        algorithm: "",
        queued: Duration::ZERO,
        released: Duration::ZERO,
        started: Duration::ZERO,
        finished: Duration::ZERO,
        error: None,
    };

    /// Whether this is the record with that number.
    pub(super) fn is(&self, id: RecordId) -> bool {
        self.number == id.0
    }

    fn is_used(&self) -> bool {
        self.number != u64::MAX
    }

    fn set_name(&mut self, name: &str) {
        let mut from = name.len().saturating_sub(NAME);
        while !name.is_char_boundary(from) {
            from += 1;
        }
        let kept = &name.as_bytes()[from..];
        self.name[..kept.len()].copy_from_slice(kept);
        self.length = kept.len() as u8;
    }

    /// The name, or the end of a long one.
    pub(super) fn name(&self) -> &str {
        std::str::from_utf8(&self.name[..usize::from(self.length)]).unwrap_or_default()
    }

    /// The state in one word.
    pub(super) fn state(&self) -> &'static str {
        match self {
            FlightRecord { error: Some(_), .. } => "failed",
            FlightRecord { finished, .. } if !finished.is_zero() => "finished",
            FlightRecord { started, .. } if !started.is_zero() => "running",
            _ => "waiting",
        }
    }
}

impl Recorder {
    pub(super) fn new(capacity: usize) -> Recorder {
        Recorder { slots: vec![FlightRecord::EMPTY; capacity], next: 0 }
    }

    /// Records that a tensor was submitted.
    pub(super) fn queue(&mut self, request: &Request, at: Duration) -> RecordId {
        let number = self.next;
        self.next += 1;
        if let Some(slot) = self.slot(number) {
            slot.number = number;
            slot.set_name(&request.name);
            slot.kind = request.kind.name();
            slot.set = request.set.0;
            slot.dtype = request.dtype;
            slot.tensors = request.shapes.len() as u32;
            slot.bytes = request.bytes();
            slot.ranks = 0;
            slot.bucket = 0;
            slot.transport = "";
            slot.algorithm = "";
            slot.queued = at;
            slot.released = Duration::ZERO;
            slot.started = Duration::ZERO;
            slot.finished = Duration::ZERO;
            slot.error = None;
        }
        RecordId(number)
    }

    /// A record, unless a newer one has replaced it.
    pub(super) fn find(&mut self, RecordId(number): RecordId) -> Option<&mut FlightRecord> {
        self.slot(number).filter(|slot| slot.number == number)
    }

    /// The records that are left, oldest first.
    pub(super) fn records(&self) -> impl Iterator<Item = &FlightRecord> {
        let split = (self.next % self.slots.len().max(1) as u64) as usize;
        let (newer, older) = self.slots.split_at(split.min(self.slots.len()));
        older.iter().chain(newer).filter(|record| record.is_used())
    }

    /// How many there were in total.
    pub(super) fn count(&self) -> u64 {
        self.next
    }

    pub(super) fn is_off(&self) -> bool {
        self.slots.is_empty()
    }

    fn slot(&mut self, number: u64) -> Option<&mut FlightRecord> {
        let length = self.slots.len() as u64;
        number.checked_rem(length).map(|index| &mut self.slots[index as usize])
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::CollectiveKind;
    use ronde_control::{DeviceKind, SetId};

    use super::*;

    fn request(name: &str) -> Request {
        let (name, set, kind) = (name.into(), SetId::WORLD, CollectiveKind::Barrier);
        Request {
            name,
            set,
            kind,
            dtype: DType::F32,
            shapes: vec![vec![3]],
            device: DeviceKind::Cpu,
        }
    }

    #[test]
    fn the_newest_are_kept_in_order_and_an_overwritten_one_is_not_found() {
        let mut recorder = Recorder::new(3);
        let at = Duration::from_secs;
        let ids: Vec<RecordId> =
            (0..5).map(|n| recorder.queue(&request(&format!("t{n}")), at(n))).collect();
        let names: Vec<&str> = recorder.records().map(FlightRecord::name).collect();
        assert_eq!(names, ["t2", "t3", "t4"]);
        assert!(recorder.find(ids[1]).is_none());
        recorder.find(ids[3]).unwrap().finished = at(9);
        let states: Vec<&str> = recorder.records().map(FlightRecord::state).collect();
        assert_eq!(states, ["waiting", "finished", "waiting"]);
        assert_eq!(recorder.count(), 5);
    }

    #[test]
    fn a_recorder_without_capacity_keeps_no_records() {
        let mut recorder = Recorder::new(0);
        let id = recorder.queue(&request("x"), Duration::ZERO);
        assert!(recorder.find(id).is_none());
        assert_eq!(recorder.records().count(), 0);
    }

    #[test]
    fn the_end_of_a_long_name_is_kept_in_whole_characters() {
        let mut recorder = Recorder::new(1);
        let name = format!("{}.weight", "ä".repeat(100));
        recorder.queue(&request(&name), Duration::ZERO);
        let kept = recorder.records().next().unwrap().name().to_owned();
        assert!(name.ends_with(&kept) && kept.ends_with("ä.weight") && kept.len() <= NAME);
    }
}
