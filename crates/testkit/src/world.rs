//! A world of ranks, one thread each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{Kind, Request};
use ronde_control::settings::{Keeper, Meeting, Place, Settings, Transport};
use ronde_control::watching::DumpTo;
use ronde_control::{DType, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{Engine, Next, Outcome, Tensors, Ticket};

use crate::{Launcher, Net, Roads, Tensor};

/// No operation of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a world is made.
#[derive(Clone)]
pub struct World {
    size: usize,
    settings: Settings,
    roads: Roads,
}

/// One rank of a running world.
pub struct Member {
    /// Its engine.
    pub engine: Engine,
    /// The launcher they all met at.
    pub launcher: Arc<Launcher>,
}

impl World {
    /// A world of that many ranks, with the settings' defaults.
    pub fn new(size: usize) -> World {
        let (mut settings, _) =
            ronde_control::settings::read(|_| None).expect("defaults are valid");
        // Worlds of tests die all the time, and nobody reads why.
        settings.watching.dump = DumpTo::Nowhere;
        World { size, settings, roads: Roads::default() }
    }

    /// The same world over sockets.
    pub fn over(mut self, transport: Transport) -> World {
        self.settings.transport = transport;
        self
    }

    /// The same world with other settings.
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> World {
        change(&mut self.settings);
        self
    }

    /// A world whose ranks share memory only with those that have the same number here.
    pub fn on_islands(islands: &[usize]) -> World {
        let mut world = World::new(islands.len());
        world.roads.islands = Some(islands.to_vec());
        world
    }

    /// The same world with a network that carries all connections between ranks.
    pub fn through(mut self, net: &Arc<Net>) -> World {
        self.roads.net = Some(net.clone());
        self
    }

    /// Runs `body` on every rank and gives what each returned, in rank order. A rank that panics
    /// fails the test.
    pub fn run<T: Send>(&self, body: impl Fn(&Member) -> T + Sync) -> Vec<T> {
        self.attempt(|member| body(&member.expect("the world forms")))
    }

    /// The same for worlds that may fail to form.
    pub fn attempt<T: Send>(&self, body: impl Fn(Result<Member, Error>) -> T + Sync) -> Vec<T> {
        let size = if self.size > 1 { self.size } else { 0 };
        let launcher = Arc::new(Launcher::start(size, self.roads.clone()));
        std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let (launcher, body) = (launcher.clone(), &body);
                scope.spawn(move || {
                    let place = self.place(rank, &launcher);
                    let engine = Engine::join(&self.settings, place);
                    body(engine.map(|engine| Member { engine, launcher }))
                })
            };
            let ranks: Vec<_> = (0..self.size).map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    fn place(&self, rank: usize, launcher: &Launcher) -> Place {
        let (addresses, key) = (vec![launcher.address()], launcher.key().clone());
        let meeting = Meeting { addresses, key, listen: Vec::new(), keeper: Keeper::Launcher };
        Place {
            rank: Rank(rank as u32),
            size: self.size as u32,
            local_rank: rank as u32,
            local_size: self.size as u32,
            cross_rank: 0,
            cross_size: 1,
            host: "testhost".into(),
            meeting: (self.size > 1).then_some(meeting),
        }
    }
}

impl Member {
    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.engine.place().rank.index()
    }

    /// A request for one tensor.
    pub fn request(name: &str, kind: Kind, tensor: &Tensor) -> Request {
        let shapes = vec![tensor.shape().to_vec()];
        Request { name: name.into(), set: SetId::WORLD, kind, dtype: tensor.dtype(), shapes }
    }

    /// Submits a reduction of `tensor` into `target`, or in place.
    pub fn reduce(
        &self,
        name: &str,
        op: ReduceOp,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Arc<Ticket>, Error> {
        let kind = Kind::Allreduce { op, prescale: 1.0, postscale: 1.0 };
        let tensors = Tensor::submission(&kind, [(source, target)]);
        self.engine.submit(Member::request(name, kind, source), tensors, Next::GoesOn)
    }

    /// Submits anything with one tensor and waits for it.
    pub fn run(
        &self,
        name: &str,
        kind: Kind,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Outcome, Error> {
        self.run_in(SetId::WORLD, name, kind, source, target)
    }

    /// The same among the members of a set.
    pub fn run_in(
        &self,
        set: SetId,
        name: &str,
        kind: Kind,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Outcome, Error> {
        let tensors = Tensor::submission(&kind, [(source, target)]);
        let request = Request { set, ..Member::request(name, kind, source) };
        let ticket = self.engine.submit(request, tensors, Next::Waits)?;
        self.wait(&ticket)
    }

    /// Makes a set of ranks.
    pub fn add_set(&self, ranks: &[u32]) -> Result<SetId, Error> {
        let ranks = ranks.iter().map(|rank| Rank(*rank)).collect();
        match self.command("add.noname.set", Kind::AddSet { ranks })? {
            Outcome::SetAdded { id } => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    /// Forgets a set of ranks.
    pub fn remove_set(&self, set: SetId) -> Result<(), Error> {
        self.command("remove.noname.set", Kind::RemoveSet { set }).map(|_| ())
    }

    /// Contributes nothing until everybody has joined; gives the last one to.
    pub fn join(&self) -> Result<Rank, Error> {
        let ticket = self.engine.join_in(Next::Waits)?;
        match self.wait(&ticket)? {
            Outcome::Joined { last } => Ok(last),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until everybody is here.
    pub fn barrier(&self, name: &str) -> Result<(), Error> {
        self.command(name, Kind::Barrier).map(|_| ())
    }

    fn command(&self, name: &str, kind: Kind) -> Result<Outcome, Error> {
        let (name, set, dtype) = (name.into(), SetId::WORLD, DType::U8);
        let request = Request { name, set, kind, dtype, shapes: vec![] };
        let ticket = self.engine.submit(request, Tensors::NONE, Next::Waits)?;
        self.wait(&ticket)
    }

    /// Waits for a ticket; a test that waits for ever has failed.
    pub fn wait(&self, ticket: &Ticket) -> Result<Outcome, Error> {
        let deadline = Instant::now() + PATIENCE;
        self.engine.wait(ticket, deadline);
        ticket.take().expect("no call blocks for ever")
    }
}
