//! What a rank wants done with a tensor, and whether the requests of two ranks match.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::{Collective, DType, DeviceKind, Rank, ReduceOp, SetId};

/// The collective and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, IntoStaticStr)]
#[strum(serialize_all = "UPPERCASE")]
pub enum CollectiveKind {
    /// Combine the tensors of all ranks, element by element.
    Allreduce {
        /// How elements are combined.
        op: ReduceOp,
        /// Factor applied before the reduction.
        prescale: f64,
        /// Factor applied after the reduction; an average has 1/size here.
        postscale: f64,
    },
    /// Concatenate the tensors of all ranks along the first dimension.
    Allgather,
    /// Send one rank's tensor to all.
    Broadcast {
        /// The rank whose tensor is sent.
        root: Rank,
    },
    /// Send each rank its part of this rank's tensor.
    Alltoall {
        /// Rows for each member of the set, in order.
        splits: Vec<u64>,
    },
    /// Combine the tensors of all ranks; each rank gets its part of the result.
    Reducescatter {
        /// How elements are combined.
        op: ReduceOp,
        /// Factor applied before the reduction.
        prescale: f64,
        /// Factor applied after the reduction; an average has 1/size here.
        postscale: f64,
    },
    /// Wait for all members.
    Barrier,
    /// Add a process set with these ranks.
    #[strum(serialize = "PROCESS_SET_ADD")]
    AddSet {
        /// Its members, in ascending order.
        ranks: Vec<Rank>,
    },
    /// Remove a process set.
    #[strum(serialize = "PROCESS_SET_REMOVE")]
    RemoveSet {
        /// The set to remove.
        set: SetId,
    },
}

impl CollectiveKind {
    /// The collective's name in messages, as Horovod writes it.
    pub fn name(&self) -> &'static str {
        match self {
            CollectiveKind::Allreduce { op: ReduceOp::Adasum, .. } => "ADASUM",
            kind => kind.into(),
        }
    }

    /// Which collective it is, unless it only changes sets.
    pub fn collective(&self) -> Option<Collective> {
        Some(match self {
            CollectiveKind::Allreduce { .. } => Collective::Allreduce,
            CollectiveKind::Allgather => Collective::Allgather,
            CollectiveKind::Broadcast { .. } => Collective::Broadcast,
            CollectiveKind::Alltoall { .. } => Collective::Alltoall,
            CollectiveKind::Reducescatter { .. } => Collective::Reducescatter,
            CollectiveKind::Barrier => Collective::Barrier,
            CollectiveKind::AddSet { .. } | CollectiveKind::RemoveSet { .. } => return None,
        })
    }
}

/// A tensor or a group of tensors, and the collective to run on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The name by which requests of different ranks are matched.
    pub name: String,
    /// Process set that runs the collective.
    pub set: SetId,
    /// The collective to run.
    pub kind: CollectiveKind,
    /// Element type of all tensors of the group.
    pub dtype: DType,
    /// Shape of each tensor of the group; one entry for a single tensor.
    pub shapes: Vec<Vec<u64>>,
    /// Where the tensors are.
    pub device: DeviceKind,
}

impl Request {
    /// Number of elements of all tensors of the group. Saturates, because shapes come from peers.
    pub fn elements(&self) -> u64 {
        let product = |shape: &Vec<u64>| shape.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
        self.shapes.iter().map(product).fold(0, u64::saturating_add)
    }

    /// Number of bytes of all tensors of the group.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size() as u64)
    }

    /// Whether the name was made from a counter because the user gave none. Such a name never comes
    /// again, so the tensor gets no number.
    pub fn is_anonymous(&self) -> bool {
        // `allreduce.noname.7` is anonymous, but `allreduce.allreduce.noname.0.7`, an unnamed
        // parameter of an optimizer, comes again in every step.
        self.name.split_once('.').is_some_and(|(_, rest)| rest.starts_with("noname."))
    }

    /// What all ranks must know of this rank's request because it can differ: the rows that it
    /// contributes to an allgather, or the rows that it has for each member of an alltoall.
    pub fn share(&self) -> Vec<u64> {
        match &self.kind {
            CollectiveKind::Allgather => {
                self.shapes.iter().map(|shape| shape.first().copied().unwrap_or(0)).collect()
            }
            CollectiveKind::Alltoall { splits } => splits.clone(),
            _ => Vec::new(),
        }
    }

    /// The same request with another rank's share.
    pub(super) fn with_share(&self, share: &[u64]) -> Request {
        let mut request = self.clone();
        match &mut request.kind {
            CollectiveKind::Allgather => {
                for (shape, rows) in request.shapes.iter_mut().zip(share) {
                    if let Some(first) = shape.first_mut() {
                        *first = *rows;
                    }
                }
            }
            CollectiveKind::Alltoall { splits } => *splits = share.to_vec(),
            _ => {}
        }
        request
    }

    /// A number that is the same for the requests of two ranks only if they can run together. Built
    /// from everything that must match; what may differ is in [`Request::share`].
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Request { name, set, kind, dtype, shapes, device } = self;
        (name, set.0, kind.name(), dtype, device).hash(&mut hasher);
        match kind {
            CollectiveKind::Allreduce { op, prescale, postscale }
            | CollectiveKind::Reducescatter { op, prescale, postscale } => {
                (op, prescale.to_bits(), postscale.to_bits()).hash(&mut hasher);
            }
            CollectiveKind::Broadcast { root } => root.hash(&mut hasher),
            CollectiveKind::AddSet { ranks } => ranks.hash(&mut hasher),
            CollectiveKind::RemoveSet { set } => set.0.hash(&mut hasher),
            CollectiveKind::Allgather
            | CollectiveKind::Alltoall { .. }
            | CollectiveKind::Barrier => {}
        }
        let rows_differ =
            matches!(kind, CollectiveKind::Allgather | CollectiveKind::Alltoall { .. });
        shapes.len().hash(&mut hasher);
        for shape in shapes {
            shape.len().hash(&mut hasher);
            shape[usize::from(rows_differ).min(shape.len())..].hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Why this request cannot run at all, even if all ranks submit the same.
    pub fn impossible(&self) -> Option<&'static str> {
        if !self.shapes.iter().any(Vec::is_empty) {
            return None;
        }
        match &self.kind {
            CollectiveKind::Allgather => Some(
                "Process-set rank zero tried to ALLGATHER a rank-zero tensor: give it a first \
                 dimension, for example with `reshape(1)`.",
            ),
            CollectiveKind::Alltoall { .. } => Some("Alltoall does not support scalar inputs."),
            CollectiveKind::Reducescatter { .. } => {
                Some("Reducescatter does not support scalar inputs.")
            }
            _ => None,
        }
    }

    /// Why the requested reduction does not support the element type or the collective.
    pub fn unsuitable(&self) -> Option<String> {
        match &self.kind {
            CollectiveKind::Allreduce { op: ReduceOp::Adasum, .. } if !self.dtype.is_float() => {
                Some(format!(
                    "Adasum takes floating-point tensors only, but `{}` is of type {}; use Sum or \
                 Average",
                    self.name, self.dtype
                ))
            }
            CollectiveKind::Reducescatter { op: ReduceOp::Adasum, .. } => {
                Some("Reducescatter currently only supports AVERAGE and SUM.".into())
            }
            _ => None,
        }
    }

    /// Why this request of `rank` cannot run together with `other` of `other_rank`, if so.
    pub(super) fn mismatch(&self, rank: Rank, other: &Request, other_rank: Rank) -> Option<String> {
        let problem = self.difference(other)?;
        Some(format!("{problem} (tensor `{}`: {other_rank} against {rank})", self.name))
    }

    fn difference(&self, other: &Request) -> Option<String> {
        let (kind, was) = (self.kind.name(), other.kind.name());
        if kind != was {
            return Some(format!(
                "Mismatched operations: One rank did an {was}, but another rank did an {kind}."
            ));
        }
        if self.set != other.set {
            return Some(format!(
                "Mismatched process sets: One rank used set {}, but another rank used set {}.",
                other.set.0, self.set.0
            ));
        }
        if self.dtype != other.dtype {
            return Some(format!(
                "Mismatched data types: One rank had type {}, but another rank had type {}.",
                other.dtype, self.dtype
            ));
        }
        if self.device != other.device {
            return Some(format!(
                "Mismatched {kind} CPU/GPU device selection: One rank specified device {}, but \
                 another rank specified device {}.",
                other.device, self.device
            ));
        }
        self.kind_difference(other).or_else(|| self.shape_difference(other))
    }

    fn kind_difference(&self, other: &Request) -> Option<String> {
        Some(match (&self.kind, &other.kind) {
            (
                CollectiveKind::Allreduce { op, prescale, postscale },
                CollectiveKind::Allreduce { op: op2, prescale: pre2, postscale: post2 },
            )
            | (
                CollectiveKind::Reducescatter { op, prescale, postscale },
                CollectiveKind::Reducescatter { op: op2, prescale: pre2, postscale: post2 },
            ) => {
                let bits = |pre: &f64, post: &f64| (pre.to_bits(), post.to_bits());
                if op != op2 {
                    format!(
                        "Mismatched reduction operation: One rank used {op2}, but another rank \
                         used {op}."
                    )
                } else if bits(prescale, postscale) != bits(pre2, post2) {
                    format!(
                        "Mismatched prescale and/or postscale factors: One rank used ({pre2}, \
                         {post2}), but another rank used ({prescale}, {postscale})."
                    )
                } else {
                    return None;
                }
            }
            (CollectiveKind::Broadcast { root }, CollectiveKind::Broadcast { root: root2 })
                if root != root2 =>
            {
                format!(
                    "Mismatched BROADCAST root ranks: One rank specified root rank {}, but \
                     another rank specified root rank {}.",
                    root2.0, root.0
                )
            }
            (CollectiveKind::AddSet { ranks }, CollectiveKind::AddSet { ranks: ranks2 })
                if ranks != ranks2 =>
            {
                "Attempted to register process set with mismatching size/values on different ranks."
                    .into()
            }
            (CollectiveKind::RemoveSet { set }, CollectiveKind::RemoveSet { set: set2 })
                if set != set2 =>
            {
                format!("Attempted to remove different process sets: {} and {}.", set2.0, set.0)
            }
            _ => return None,
        })
    }

    fn shape_difference(&self, other: &Request) -> Option<String> {
        if self.shapes.len() != other.shapes.len() {
            return Some(format!(
                "Mismatched {} group sizes: One rank sent {} tensors, but another rank sent {}.",
                self.kind.name(),
                other.shapes.len(),
                self.shapes.len()
            ));
        }
        let mut pairs = self.shapes.iter().zip(&other.shapes);
        if matches!(self.kind, CollectiveKind::Allgather | CollectiveKind::Alltoall { .. }) {
            let kind = self.kind.name();
            return pairs.find_map(|(shape, was)| gather_difference(kind, shape, was));
        }
        let (shape, was) = pairs.find(|(shape, was)| shape != was)?;
        Some(format!(
            "Mismatched {} tensor shapes: One rank sent a tensor of shape {was:?}, but another \
             rank sent a tensor of shape {shape:?}.",
            self.kind.name()
        ))
    }
}

fn gather_difference(kind: &str, shape: &[u64], was: &[u64]) -> Option<String> {
    if shape.len() != was.len() {
        return Some(format!(
            "Mismatched {kind} tensor shapes: One rank sent a tensor of rank {}, but another \
             rank sent a tensor of rank {}.",
            was.len(),
            shape.len()
        ));
    }
    let dimension = (1..shape.len()).find(|&d| shape[d] != was[d])?;
    Some(format!(
        "Mismatched {kind} tensor shapes: One rank sent a tensor with dimension {dimension} \
         equal to {}, but another rank sent a tensor with dimension {dimension} equal to {}.",
        was[dimension], shape[dimension]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(shape: &[u64]) -> Request {
        Request {
            name: "x".into(),
            set: SetId::WORLD,
            kind: CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 0.5 },
            dtype: DType::F32,
            shapes: vec![shape.to_vec()],
            device: DeviceKind::Cpu,
        }
    }

    #[test]
    fn each_difference_is_named_with_both_ranks() {
        let base = reduce(&[2, 3]);
        let with = |change: &dyn Fn(&mut Request)| {
            let mut other = base.clone();
            change(&mut other);
            other
        };
        let cases: Vec<(Request, &str)> = vec![
            (
                with(&|r| r.kind = CollectiveKind::Barrier),
                "One rank did an ALLREDUCE, but another rank did an BARRIER",
            ),
            (
                with(&|r| r.dtype = DType::BF16),
                "One rank had type float32, but another rank had type bfloat16",
            ),
            (
                with(&|r| r.device = DeviceKind::Gpu),
                "ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but another",
            ),
            (
                with(&|r| r.shapes = vec![vec![3, 2]]),
                "shape [2, 3], but another rank sent a tensor of shape [3, 2]",
            ),
            (with(&|r| r.shapes.push(vec![1])), "sent 1 tensors, but another rank sent 2"),
            (
                with(&|r| {
                    r.kind = CollectiveKind::Allreduce {
                        op: ReduceOp::Max,
                        prescale: 1.0,
                        postscale: 0.5,
                    }
                }),
                "One rank used SUM, but another rank used MAX",
            ),
            (
                with(&|r| {
                    r.kind = CollectiveKind::Allreduce {
                        op: ReduceOp::Adasum,
                        prescale: 1.0,
                        postscale: 0.5,
                    }
                }),
                "One rank did an ALLREDUCE, but another rank did an ADASUM",
            ),
            (
                with(&|r| {
                    r.kind = CollectiveKind::Allreduce {
                        op: ReduceOp::Sum,
                        prescale: 2.0,
                        postscale: 0.5,
                    }
                }),
                "Mismatched prescale and/or postscale factors",
            ),
        ];
        for (other, expected) in cases {
            let text = other.mismatch(Rank(3), &base, Rank(0)).unwrap();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("rank 0 against rank 3"), "{text}");
        }
        assert_eq!(base.mismatch(Rank(1), &base.clone(), Rank(0)), None);
    }

    #[test]
    fn adasum_is_only_for_floats_and_not_for_reducescatter() {
        let (op, prescale, postscale) = (ReduceOp::Adasum, 1.0, 1.0);
        for &dtype in DType::ALL {
            let kind = CollectiveKind::Allreduce { op, prescale, postscale };
            let request = Request { kind, dtype, ..reduce(&[2]) };
            assert_eq!(request.unsuitable().is_none(), dtype.is_float(), "{dtype}");
        }
        let scatter = Request {
            kind: CollectiveKind::Reducescatter { op, prescale, postscale },
            ..reduce(&[2])
        };
        assert!(scatter.unsuitable().unwrap().contains("only supports AVERAGE and SUM"));
    }

    #[test]
    fn only_names_from_a_counter_are_anonymous() {
        let named = |name: &str| Request { name: name.into(), ..reduce(&[1]) };
        for name in ["allreduce.noname.7", "grouped_allreduce.noname.7.float32@2"] {
            assert!(named(name).is_anonymous(), "{name}");
        }
        for name in ["allreduce.allreduce.noname.0.7", "allreduce.weight", "noname.x", "x"] {
            assert!(!named(name).is_anonymous(), "{name}");
        }
    }

    #[test]
    fn allgather_shapes_may_differ_only_in_the_first_dimension() {
        let gather = |shape: &[u64]| Request { kind: CollectiveKind::Allgather, ..reduce(shape) };
        assert_eq!(gather(&[2, 3]).difference(&gather(&[5, 3])), None);
        assert!(
            gather(&[2, 4])
                .difference(&gather(&[2, 3]))
                .unwrap()
                .contains("dimension 1 equal to 3")
        );
        assert!(gather(&[2]).difference(&gather(&[2, 3])).unwrap().contains("of rank 2"));
    }
}
