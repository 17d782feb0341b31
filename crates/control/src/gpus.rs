//! How the ranks of a process set reduce on their GPUs: with NCCL, or through host memory.
//!
//! Every rank reports what it has, and all decide the same from the same reports.

use crate::{NcclVersion, Rank};

/// What a rank has for collectives on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuReport {
    /// The version of its NCCL, such as 22809; `None` if it has none.
    pub nccl: Option<u32>,
    /// What identifies its GPU; `None` if it has none.
    pub gpu: Option<[u8; 16]>,
}

/// How data moves between the GPUs of a process set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuPath {
    /// From GPU to GPU.
    Nccl,
    /// Through pinned host memory and the transports for host tensors.
    Host {
        /// Why, and what would help; for people.
        reason: String,
    },
}

impl GpuReport {
    /// The length of a report as bytes.
    pub const BYTES: usize = 24;

    /// The report as bytes, for the other ranks.
    pub fn to_bytes(self) -> [u8; GpuReport::BYTES] {
        let mut bytes = [0; GpuReport::BYTES];
        bytes[..4].copy_from_slice(&self.nccl.unwrap_or(0).to_le_bytes());
        bytes[4] = u8::from(self.gpu.is_some());
        bytes[8..].copy_from_slice(&self.gpu.unwrap_or_default());
        bytes
    }

    /// A report of another rank.
    pub fn from_bytes(bytes: &[u8; GpuReport::BYTES]) -> GpuReport {
        let [a, b, c, d, has_gpu, _, _, _, gpu @ ..] = *bytes;
        let nccl = u32::from_le_bytes([a, b, c, d]);
        GpuReport { nccl: (nccl > 0).then_some(nccl), gpu: (has_gpu == 1).then_some(gpu) }
    }
}

/// Decides from the reports of all members, which are these ranks.
pub fn gpu_path(members: &[Rank], reports: &[GpuReport]) -> GpuPath {
    let found = |is: &dyn Fn(&GpuReport) -> bool| {
        members.iter().zip(reports).find(|(_, report)| is(report)).map(|(rank, _)| *rank)
    };
    if let Some(rank) = found(&|report| report.gpu.is_none()) {
        return host(format!("{rank} uses no GPU"));
    }
    if let Some(rank) = found(&|report| report.nccl.is_none()) {
        return host(format!(
            "{rank} has no NCCL; install `nvidia-nccl-cu12` or `nvidia-nccl-cu13`, or name one \
             with RONDE_NCCL"
        ));
    }
    let minor = |report: &GpuReport| report.nccl.unwrap_or(0) / 100;
    let first = &reports[0];
    if let Some(rank) = found(&|report| minor(report) != minor(first)) {
        return host(format!(
            "{} and {rank} have different versions of NCCL; install the same one everywhere",
            members[0]
        ));
    }
    match sharing(members, reports) {
        Some(ranks) if first.nccl < Some(NcclVersion::SHARES_GPUS.0) => host(format!(
            "{ranks} share a GPU, which NCCL allows from version 2.30 on; install that, or start \
             one rank per GPU"
        )),
        _ => GpuPath::Nccl,
    }
}

fn host(reason: String) -> GpuPath {
    GpuPath::Host { reason }
}

/// What to tell the user if ranks that use NCCL share GPUs; `name` is that of the first member's.
pub fn sharing_note(members: &[Rank], reports: &[GpuReport], name: &str) -> Option<String> {
    let shared = shared(members, reports);
    let (gpu, ranks) = shared.first()?;
    let name = if reports[0].gpu == *gpu { format!(" ({name})") } else { String::new() };
    let more = match shared.len() - 1 {
        0 => "take turns on it".to_owned(),
        1 => "take turns on it, and so do others on one more".to_owned(),
        more => format!("take turns on it, and so do others on {more} more"),
    };
    Some(format!("{ranks} share a GPU{name} and {more}; one rank per GPU would be faster"))
}

/// The ranks that share the first GPU that is shared, for people.
fn sharing(members: &[Rank], reports: &[GpuReport]) -> Option<String> {
    shared(members, reports).into_iter().next().map(|(_, ranks)| ranks)
}

/// The GPUs that several ranks share, and these ranks, for people.
fn shared(members: &[Rank], reports: &[GpuReport]) -> Vec<(Option<[u8; 16]>, String)> {
    let mut found: Vec<(Option<[u8; 16]>, String)> = Vec::new();
    for GpuReport { gpu, .. } in reports {
        let owners = members.iter().zip(reports).filter(|(_, report)| report.gpu == *gpu);
        let owners: Vec<String> = owners.map(|(rank, _)| rank.0.to_string()).collect();
        if owners.len() > 1 && !found.iter().any(|(known, _)| known == gpu) {
            found.push((*gpu, format!("ranks {}", owners.join(", "))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(nccl: u32, gpu: u8) -> GpuReport {
        GpuReport { nccl: (nccl > 0).then_some(nccl), gpu: (gpu > 0).then_some([gpu; 16]) }
    }

    fn reason(reports: &[GpuReport]) -> Option<String> {
        let ranks: Vec<Rank> = (0..reports.len() as u32).map(Rank).collect();
        match gpu_path(&ranks, reports) {
            GpuPath::Nccl => None,
            GpuPath::Host { reason } => Some(reason),
        }
    }

    #[test]
    fn reports_survive_the_wire() {
        for report in [report(0, 0), report(22_809, 0), report(0, 7), report(23_007, 255)] {
            assert_eq!(GpuReport::from_bytes(&report.to_bytes()), report);
        }
    }

    #[test]
    fn nccl_is_used_if_all_have_it_and_it_allows_what_they_share() {
        assert_eq!(reason(&[report(22_809, 1), report(22_803, 2)]), None);
        assert_eq!(reason(&[report(23_007, 1), report(23_007, 1)]), None);
        let cases: [(&[GpuReport], &str); 4] = [
            (&[report(22_809, 1), report(22_809, 0)], "rank 1 uses no GPU"),
            (&[report(0, 1), report(22_809, 2)], "rank 0 has no NCCL"),
            (&[report(22_809, 1), report(22_100, 2)], "rank 0 and rank 1 have different versions"),
            (&[report(22_809, 9), report(22_809, 1), report(22_809, 9)], "ranks 0, 2 share a GPU"),
        ];
        for (reports, expected) in cases {
            let reason = reason(reports).unwrap();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn ranks_that_share_gpus_are_named_once() {
        let note = |gpus: &[u8]| {
            let ranks: Vec<Rank> = (0..gpus.len() as u32).map(Rank).collect();
            let reports: Vec<GpuReport> = gpus.iter().map(|gpu| report(23_007, *gpu)).collect();
            sharing_note(&ranks, &reports, "NVIDIA H200").unwrap_or_default()
        };
        assert_eq!(note(&[1, 2, 3]), "");
        let faster = "; one rank per GPU would be faster";
        let text = "ranks 0, 1 share a GPU (NVIDIA H200) and take turns on it";
        assert_eq!(note(&[1, 1]), format!("{text}{faster}"));
        let text = "ranks 1, 3 share a GPU and take turns on it";
        assert_eq!(note(&[1, 2, 3, 2]), format!("{text}{faster}"));
        let text =
            "ranks 0, 3 share a GPU (NVIDIA H200) and take turns on it, and so do others on 2 more";
        assert_eq!(note(&[1, 2, 3, 1, 2, 3]), format!("{text}{faster}"));
    }
}
