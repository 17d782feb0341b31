//! Small collectives without negotiation: a tensor that is submitted on its own travels with its
//! announcement, and whoever has the data of all ranks computes the result at once.
//!
//! That works if all ranks submit the same tensor and have nothing else in flight, which they find
//! out in a round of the express lane. Otherwise they negotiate, which finds every mismatch. A
//! refused round costs a little, so after one the ranks negotiate some buckets before they try
//! again: as many on each rank, because all run the same buckets. `docs/design/0019-express.md`.

mod results;

use std::time::Duration;

use ronde_control::negotiate::{CollectiveKind, MemberToCoordinator, ReleasedTensor, Request};
use ronde_control::{DeviceKind, Rank, ReduceOp, SetId};

use super::AfterSubmit;
use super::inbox::Submission;
use super::progress::{InFlight, Progress, Role};
use super::run::BucketOutcome;
use crate::error::Error;
use crate::group::{CorruptLength, ExpressLane, RoundAnswer};
use crate::reduce::in_plain_environment;
use crate::watch::Transfer;

/// After this long, a rank tells the coordinator that it waits.
const REPORT_AFTER: Duration = Duration::from_millis(20);
/// The most buckets to negotiate before the next try.
const LONGEST_PAUSE: u32 = 1 << 12;

pub(super) struct Express {
    lane: ExpressLane,
    offer: Option<Offer>,
    /// Buckets to run before the next offer.
    pause: u32,
    /// How many buckets the next pause has.
    next_pause: u32,
}

/// What this rank has offered in the current round.
pub(super) struct Offer {
    pub(super) request: Request,
    pub(super) flight: InFlight,
    since: Duration,
    is_reported: bool,
}

/// How a round has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// The tensor is done.
    Done,
    /// It has been announced.
    Announced,
}

impl Express {
    pub(super) fn new(lane: ExpressLane) -> Express {
        Express { lane, offer: None, pause: 0, next_pause: 1 }
    }

    /// Whether this rank waits for the answer to an offer.
    pub(super) fn is_waiting(&self) -> bool {
        self.offer.is_some()
    }

    /// Whether the lane has something that the last turn may not have seen.
    pub(super) fn has_input(&self, is_busy: bool) -> bool {
        self.lane.has_news() || (is_busy && self.lane.is_called())
    }

    /// Takes what is in flight, because the world is over.
    pub(super) fn take_offer(&mut self) -> Option<Offer> {
        self.offer.take()
    }

    /// A bucket of the whole world has run.
    pub(super) fn bucket_ran(&mut self) {
        self.pause = self.pause.saturating_sub(1);
    }

    fn was_refused(&mut self) {
        self.pause = self.next_pause;
        self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether a request could do without negotiation.
fn is_suitable(request: &Request, limit: u64) -> bool {
    let has_result = match &request.kind {
        CollectiveKind::Allreduce { op, .. } | CollectiveKind::Reducescatter { op, .. } => {
            *op != ReduceOp::Adasum
        }
        CollectiveKind::Allgather
        | CollectiveKind::Alltoall { .. }
        | CollectiveKind::Broadcast { .. }
        | CollectiveKind::Barrier => true,
        CollectiveKind::AddSet { .. } | CollectiveKind::RemoveSet { .. } => false,
    };
    let length = request.bytes().saturating_add(8 * request.share().len() as u64);
    has_result
        && request.set == SetId::WORLD
        && request.device == DeviceKind::Cpu
        && request.impossible().is_none()
        && length <= limit.min(ExpressLane::LIMIT as u64)
}

impl Progress {
    /// Offers the only submission there is to the other ranks, if it is suitable; otherwise returns
    /// it. While rank 0 writes a timeline, which shows who was late, or tunes the size of buckets,
    /// everything is negotiated.
    pub(super) fn offer(&mut self, submission: Submission, now: Duration) -> Option<Submission> {
        let is_busy = self.is_outstanding();
        let is_tuning = matches!(self.role, Role::Coordinator { tuner: Some(_), .. });
        let needs_negotiation = is_busy || is_tuning || self.watch.shows();
        let limit = self.groups.tuning().express;
        let Some(express) = self.express.as_mut().filter(|express| express.pause == 0) else {
            return Some(submission);
        };
        let Submission::Tensor { request, mut pending, next: AfterSubmit::Waits } = submission
        else {
            return Some(submission);
        };
        let is_offered = !needs_negotiation && is_suitable(&request, limit) && {
            let length = results::contribution_length(&request, &mut pending.tensors, self.me);
            express.lane.offer(request.fingerprint(), length, |room| {
                results::contribute(&request, &mut pending.tensors, room);
            })
        };
        if !is_offered {
            return Some(Submission::Tensor { request, pending, next: AfterSubmit::Waits });
        }
        let record = self.watch.watch_state().queue(&request, now);
        let flight = InFlight { pending, record };
        express.offer = Some(Offer { request, flight, since: now, is_reported: false });
        self.waiter.look_again_soon(true);
        self.waiter.ring_others();
        None
    }

    /// Follows the current round; returns how it ended for what this rank has offered, if it did.
    pub(super) fn follow_round(&mut self) -> Result<Option<RoundEnd>, Error> {
        let is_busy = self.is_outstanding();
        let Some(express) = &mut self.express else { return Ok(None) };
        if express.offer.is_none() {
            if is_busy && express.lane.is_called() {
                self.refuse_round();
            }
            return Ok(None);
        }
        match express.lane.answer() {
            RoundAnswer::Open => self.report_waiting().map(|()| None),
            RoundAnswer::Agreed => self.run_agreed().map(|()| Some(RoundEnd::Done)),
            RoundAnswer::Refused => self.negotiate_offer().map(|()| Some(RoundEnd::Announced)),
        }
    }

    /// Completes the current round if all ranks have said that they want the same: nothing more is
    /// needed from any of them.
    pub(super) fn finish_agreed_round(&mut self) {
        let Some(express) = self.express.as_mut().filter(|it| it.is_waiting()) else { return };
        if express.lane.answer() == RoundAnswer::Agreed {
            // An error has ended the world and is what this rank's caller gets.
            let _ = self.run_agreed();
        }
    }

    fn refuse_round(&mut self) {
        let Some(express) = &mut self.express else { return };
        let round = express.lane.round();
        express.lane.refuse();
        express.was_refused();
        self.note_round_end(round, None);
        self.waiter.ring_others();
    }

    /// Announces what has been offered in vain.
    fn negotiate_offer(&mut self) -> Result<(), Error> {
        let Some(express) = &mut self.express else { return Ok(()) };
        let Some(Offer { request, flight, .. }) = express.offer.take() else { return Ok(()) };
        express.was_refused();
        let round = express.lane.round() - 1;
        self.waiter.look_again_soon(false);
        self.note_round_end(round, None);
        self.announce_tensor(request, flight)
    }

    /// Computes the result of a round in which all ranks want the same.
    fn run_agreed(&mut self) -> Result<(), Error> {
        let Some(express) = &mut self.express else { return Ok(()) };
        let Some(Offer { request, mut flight, .. }) = express.offer.take() else { return Ok(()) };
        let round = express.lane.round();
        self.waiter.look_again_soon(false);
        self.moment = self.watch.now();
        let contributions = express.lane.contributions();
        let ranks = contributions.as_ref().map_or(0, Vec::len);
        let bucket = [ReleasedTensor { request, shares: Vec::new(), is_absent: false }];
        let records = [Some(flight.record)];
        let (released, started) = (self.moment, self.moment);
        let transfer = Transfer { ranks, transport: "SHM", released, started };
        let mut trace = self.watch.bucket_starts(&bucket, &records, &transfer);
        trace.algorithm = "express";
        let [ReleasedTensor { request, .. }] = &bucket;
        let outcome = match contributions {
            Ok(contributions) => in_plain_environment(|| {
                results::results(request, &mut flight.pending.tensors, &contributions, self.me)
            }),
            Err(CorruptLength { rank }) => {
                let who = self.waiter.world_state.name(Rank(rank as u32));
                Err(self.waiter.overwritten(&format!("a length of {who} is beyond its place")))
            }
        };
        express.lane.end_round();
        express.next_pause = 1;
        self.inbox.release_names([request.name.as_str()]);
        self.moment = self.watch.now();
        let error = outcome.as_ref().err();
        self.watch.bucket_ends((&bucket, &records), &trace, error, self.moment);
        self.note_round_end(round, error.is_none().then_some(&bucket[0].request));
        match outcome {
            Ok(BucketOutcome { outcome, .. }) => {
                flight.pending.complete(outcome);
                Ok(())
            }
            Err(error) => {
                flight.pending.complete(Err(error.during(&bucket[0].request.name)));
                self.waiter.world_state.end(error.clone());
                Err(error)
            }
        }
    }

    fn note_round_end(&mut self, round: u64, agreed: Option<&Request>) {
        if let Role::Coordinator { coordinator, .. } = &mut self.role {
            coordinator.round_ended(round, agreed, self.received_at);
        }
    }

    /// Tells the coordinator what this rank waits for, so that it can say who is late.
    fn report_waiting(&mut self) -> Result<(), Error> {
        let now = self.watch.now();
        let Some(express) = &mut self.express else { return Ok(()) };
        let round = express.lane.round();
        let Some(offer) = express.offer.as_mut().filter(|offer| !offer.is_reported) else {
            return Ok(());
        };
        let since = now.saturating_sub(offer.since);
        if since < REPORT_AFTER {
            return Ok(());
        }
        offer.is_reported = true;
        let request = offer.request.clone();
        self.waiter.look_again_soon(false);
        self.announce(vec![MemberToCoordinator::Waits { request, round, since }], false, now)
    }
}
