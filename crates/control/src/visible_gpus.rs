//! Which GPUs of its host a rank sees.

use serde::{Deserialize, Serialize};

/// The variable that limits which GPUs a process sees.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that a value of `CUDA_VISIBLE_DEVICES` names, by number or UUID. Like CUDA, ignores
/// everything from the first invalid one on.
pub fn visible_gpus(list: &str) -> Vec<&str> {
    let is_valid = |gpu: &&str| !gpu.is_empty() && !gpu.starts_with('-');
    list.split(',').map(str::trim).take_while(is_valid).collect()
}

/// More GPUs than any host has.
const MOST_GPUS: u32 = 4096;

/// What `--gpus-per-rank` gives a rank of the GPUs of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// The rank's slot on its host, which keeps its GPUs.
    pub slot: u32,
    /// The number of slots there.
    pub slots: u32,
    /// How many GPUs each of them gets.
    pub gpus_per_rank: u32,
}

impl GpuShare {
    /// The rank's value of `CUDA_VISIBLE_DEVICES`: a part of its host's value, or else numbers. The
    /// error says that there are too few GPUs for the slots.
    pub fn visible(self, listed: Option<&str>) -> Result<String, String> {
        let GpuShare { slot, slots, gpus_per_rank } = self;
        if gpus_per_rank > MOST_GPUS {
            return Err(format!("`--gpus-per-rank {gpus_per_rank}` is more than any host has"));
        }
        let (per_rank, slots) = (u64::from(gpus_per_rank), u64::from(slots));
        let mine = u64::from(slot) * per_rank..(u64::from(slot) + 1) * per_rank;
        let Some(list) = listed else {
            return Ok(mine.map(|number| number.to_string()).collect::<Vec<_>>().join(","));
        };
        let gpus = visible_gpus(list);
        let chosen = usize::try_from(mine.start).ok().zip(usize::try_from(mine.end).ok());
        let chosen = chosen.and_then(|(start, end)| gpus.get(start..end));
        chosen.map(|gpus| gpus.join(",")).ok_or_else(|| {
            let wanted = slots.max(u64::from(slot) + 1) * per_rank;
            format!(
                "`--gpus-per-rank {per_rank}` needs {wanted} GPUs for {slots} slots, but \
                 {CUDA_VISIBLE_DEVICES} names only {} there (`{list}`)",
                gpus.len()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(slot: u32, gpus_per_rank: u32) -> GpuShare {
        GpuShare { slot, slots: 4, gpus_per_rank }
    }

    #[test]
    fn slots_get_consecutive_gpus_of_the_list_or_numbers() {
        let ids = "GPU-8932f937, MIG-1,GPU-5ebe9f43,3";
        for (share, listed, expected) in [
            (share(0, 1), None, "0"),
            (share(3, 2), None, "6,7"),
            (share(1, 1), Some("4,5,6,7"), "5"),
            (share(1, 2), Some("7,6,5,4"), "5,4"),
            (share(0, 2), Some(ids), "GPU-8932f937,MIG-1"),
            (share(1, 2), Some(ids), "GPU-5ebe9f43,3"),
        ] {
            assert_eq!(share.visible(listed).unwrap(), expected);
        }
    }

    #[test]
    fn too_few_gpus_are_counted_up_to_the_first_invalid_one() {
        for (share, listed, counts) in [
            (
                share(3, 1),
                "0,1,2",
                "needs 4 GPUs for 4 slots, but CUDA_VISIBLE_DEVICES names only 3",
            ),
            (
                share(1, 2),
                "0,1,2",
                "needs 8 GPUs for 4 slots, but CUDA_VISIBLE_DEVICES names only 3",
            ),
            (share(0, 1), "", "names only 0 there (``)"),
            (share(1, 1), "0,-1,1", "names only 1 there (`0,-1,1`)"),
            (share(u32::MAX, 2), "0", "names only 1"),
            (share(0, u32::MAX), "0", "is more than any host has"),
        ] {
            let error = share.visible(Some(listed)).unwrap_err();
            assert!(error.contains(counts), "{error}");
        }
    }
}
