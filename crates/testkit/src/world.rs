//! A world of ranks, one thread each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::settings::{RankInfo, RendezvousInfo, RendezvousOwner, Settings, Transport};
use ronde_control::watching::DumpTo;
use ronde_control::{DType, DeviceKind, Rank, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Engine, Outcome, Tensors, Ticket};

use crate::{Net, Routes, Tensor, TestLauncher};

/// Upper limit for any operation of a test.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Configuration of a world.
#[derive(Clone)]
pub struct World {
    size: usize,
    settings: Settings,
    routes: Routes,
}

/// One rank of a running world.
pub struct TestRank {
    /// The engine of this rank.
    pub engine: Engine,
    /// The launcher of the world.
    pub launcher: Arc<TestLauncher>,
}

impl World {
    /// A world of `size` ranks, with default settings.
    pub fn new(size: usize) -> World {
        let (mut settings, _) =
            ronde_control::settings::read(|_| None).expect("defaults are valid");
        // Test worlds fail all the time, and nobody reads their dumps.
        settings.watching.dump = DumpTo::Nowhere;
        World { size, settings, routes: Routes::default() }
    }

    /// The same world over another transport.
    pub fn over(mut self, transport: Transport) -> World {
        self.settings.transport = transport;
        self
    }

    /// The same world with changed settings.
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> World {
        change(&mut self.settings);
        self
    }

    /// A world whose ranks share memory only with ranks on the same island.
    pub fn on_islands(islands: &[usize]) -> World {
        let mut world = World::new(islands.len());
        world.routes.islands = Some(islands.to_vec());
        world
    }

    /// The same world with a network that carries all connections between ranks.
    pub fn through(mut self, net: &Arc<Net>) -> World {
        self.routes.net = Some(net.clone());
        self
    }

    /// Runs `body` on every rank and returns the results in rank order. A rank that panics fails
    /// the test.
    pub fn run<T: Send>(&self, body: impl Fn(&TestRank) -> T + Sync) -> Vec<T> {
        self.attempt(|member| body(&member.expect("the world forms")))
    }

    /// Like [`World::run`], for worlds that may fail to form.
    pub fn attempt<T: Send>(&self, body: impl Fn(Result<TestRank, Error>) -> T + Sync) -> Vec<T> {
        let size = if self.size > 1 { self.size } else { 0 };
        let launcher = Arc::new(TestLauncher::start(size, self.routes.clone()));
        std::thread::scope(|scope| {
            let rank = |rank: usize| {
                let (launcher, body) = (launcher.clone(), &body);
                scope.spawn(move || {
                    let place = self.place(rank, &launcher);
                    let engine = Engine::join(&self.settings, place);
                    body(engine.map(|engine| TestRank { engine, launcher }))
                })
            };
            let ranks: Vec<_> = (0..self.size).map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    fn place(&self, rank: usize, launcher: &TestLauncher) -> RankInfo {
        let (addresses, key) = (vec![launcher.address()], launcher.key().clone());
        let rendezvous_info = RendezvousInfo {
            addresses,
            key,
            listen: Vec::new(),
            ports: ronde_control::PortRange::default(),
            keeper: RendezvousOwner::Launcher,
        };
        RankInfo {
            rank: Rank(rank as u32),
            size: self.size as u32,
            local_rank: rank as u32,
            local_size: self.size as u32,
            cross_rank: 0,
            cross_size: 1,
            host: "testhost".into(),
            rendezvous_info: (self.size > 1).then_some(rendezvous_info),
        }
    }
}

impl TestRank {
    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.engine.place().rank.index()
    }

    /// A request for one tensor.
    pub fn request(name: &str, kind: CollectiveKind, tensor: &Tensor) -> Request {
        let shapes = vec![tensor.shape().to_vec()];
        Request {
            name: name.into(),
            set: SetId::WORLD,
            kind,
            dtype: tensor.dtype(),
            shapes,
            device: DeviceKind::Cpu,
        }
    }

    /// Submits a reduction of `tensor` into `target`, or in place.
    pub fn reduce(
        &self,
        name: &str,
        op: ReduceOp,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Arc<Ticket>, Error> {
        let kind = CollectiveKind::Allreduce { op, prescale: 1.0, postscale: 1.0 };
        let tensors = Tensor::submission(&kind, [(source, target)]);
        self.engine.submit(TestRank::request(name, kind, source), tensors, AfterSubmit::GoesOn)
    }

    /// Submits a collective of one tensor and waits for it.
    pub fn run(
        &self,
        name: &str,
        kind: CollectiveKind,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Outcome, Error> {
        self.run_in(SetId::WORLD, name, kind, source, target)
    }

    /// Like [`TestRank::run`], among the members of a process set.
    pub fn run_in(
        &self,
        set: SetId,
        name: &str,
        kind: CollectiveKind,
        source: &Tensor,
        target: &Tensor,
    ) -> Result<Outcome, Error> {
        let tensors = Tensor::submission(&kind, [(source, target)]);
        let request = Request { set, ..TestRank::request(name, kind, source) };
        let ticket = self.engine.submit(request, tensors, AfterSubmit::Waits)?;
        self.wait(&ticket)
    }

    /// Adds a process set.
    pub fn add_set(&self, ranks: &[u32]) -> Result<SetId, Error> {
        let ranks = ranks.iter().map(|rank| Rank(*rank)).collect();
        match self.command("add.noname.set", CollectiveKind::AddSet { ranks })? {
            Outcome::SetAdded { id } => Ok(id),
            other => panic!("{other:?}"),
        }
    }

    /// Removes a process set.
    pub fn remove_set(&self, set: SetId) -> Result<(), Error> {
        self.command("remove.noname.set", CollectiveKind::RemoveSet { set }).map(|_| ())
    }

    /// Contributes nothing until all ranks have joined; returns the last one to join.
    pub fn join(&self) -> Result<Rank, Error> {
        let ticket = self.engine.join_in(AfterSubmit::Waits)?;
        match self.wait(&ticket)? {
            Outcome::Joined { last } => Ok(last),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until all ranks are here.
    pub fn barrier(&self, name: &str) -> Result<(), Error> {
        self.command(name, CollectiveKind::Barrier).map(|_| ())
    }

    fn command(&self, name: &str, kind: CollectiveKind) -> Result<Outcome, Error> {
        let (name, set, dtype) = (name.into(), SetId::WORLD, DType::U8);
        let request = Request { name, set, kind, dtype, shapes: vec![], device: DeviceKind::Cpu };
        let ticket = self.engine.submit(request, Tensors::NONE, AfterSubmit::Waits)?;
        self.wait(&ticket)
    }

    /// Waits for a ticket; a test that waits forever has failed.
    pub fn wait(&self, ticket: &Ticket) -> Result<Outcome, Error> {
        let deadline = Instant::now() + TIME_LIMIT;
        self.engine.wait(ticket, deadline);
        ticket.take().expect("no call blocks forever")
    }
}
