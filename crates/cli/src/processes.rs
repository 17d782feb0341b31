//! The number of processes that `-np` asks for: a number, or what to count on this machine, as with
//! `torchrun`.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::thread;

use ronde_control::{CUDA_VISIBLE_DEVICES, visible_gpus};
use ronde_launch::hosts::Host;

use crate::messages::UserError;

/// The value of `-np`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    Number(u32),
    /// One per slot of the named hosts; without hosts, one per GPU of this machine (or per
    /// `--gpus-per-rank` of them), or per core if it has no GPU.
    Auto,
    Gpu,
    Cpu,
}

impl FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Processes, String> {
        match text {
            "auto" => Ok(Processes::Auto),
            "gpu" => Ok(Processes::Gpu),
            "cpu" => Ok(Processes::Cpu),
            _ => number(text)
                .map(Processes::Number)
                .map_err(|_| "it must be a positive integer, or auto, gpu or cpu".into()),
        }
    }
}

/// Parses a number of processes.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("it must be a positive integer".into()),
    }
}

/// Where the processes will run, as far as known before the job starts.
pub(crate) enum CountBasis<'a> {
    Here {
        gpus_per_rank: u32,
    },
    Listed(&'a [Host]),
    /// A script lists the hosts, or agents dial in.
    Unknown,
}

impl Processes {
    /// Counts the processes.
    pub(crate) fn count(self, place: &CountBasis<'_>) -> Result<u32, UserError> {
        match (self, place) {
            (Processes::Number(number), _) => Ok(number),
            (Processes::Auto, CountBasis::Listed(hosts)) => {
                Ok(hosts.iter().fold(0, |sum, host| sum.saturating_add(host.slots)))
            }
            (Processes::Auto, CountBasis::Here { gpus_per_rank }) => {
                Ok(ranks_with_gpus(*gpus_per_rank).unwrap_or_else(cores))
            }
            (Processes::Cpu, CountBasis::Here { .. }) => Ok(cores()),
            (Processes::Gpu, CountBasis::Here { gpus_per_rank }) => ranks_with_gpus(*gpus_per_rank)
                .ok_or_else(|| {
                    let lacks = match gpus_per_rank {
                        1 => "no usable GPU".to_owned(),
                        count => format!("fewer than {count} usable GPUs"),
                    };
                    let hint =
                        "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use `-np cpu` or a number";
                    UserError::new(format!("`-np gpu`: this machine has {lacks}"), hint)
                }),
            (_, CountBasis::Listed(_)) => Err(UserError::new(
                "`-np gpu` and `-np cpu` count this machine's devices, but other hosts were given",
                "use `-np auto` for one process per slot of these hosts, or give a number",
            )),
            (_, CountBasis::Unknown) => Err(UserError::new(
                "the hosts are not known yet, so there is nothing to count",
                "give a number, as in `-np 4`",
            )),
        }
    }
}

fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// How many ranks the GPUs of this machine are enough for, if for any.
fn ranks_with_gpus(gpus_per_rank: u32) -> Option<u32> {
    let visible = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let ranks = gpus(Path::new("/dev"), visible.as_deref()) / gpus_per_rank.max(1);
    Some(ranks).filter(|ranks| *ranks > 0)
}

fn gpus(devices: &Path, visible: Option<&str>) -> u32 {
    let is_gpu = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let present = entries.filter(|entry| is_gpu(&entry.file_name().to_string_lossy())).count();
    let listed = visible.map_or(present, |visible| visible_gpus(visible).len());
    listed.min(present) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_what_to_count() {
        assert_eq!("4".parse(), Ok(Processes::Number(4)));
        assert_eq!("auto".parse(), Ok(Processes::Auto));
        assert_eq!("gpu".parse(), Ok(Processes::Gpu));
        assert_eq!("cpu".parse(), Ok(Processes::Cpu));
        for text in ["0", "-1", "two", "", "AUTO"] {
            assert!(text.parse::<Processes>().is_err(), "{text}");
        }
    }

    #[test]
    fn auto_counts_the_slots_of_named_hosts() {
        let hosts = [Host::local(2), Host::local(3)];
        assert_eq!(Processes::Auto.count(&CountBasis::Listed(&hosts)), Ok(5));
        assert!(Processes::Gpu.count(&CountBasis::Listed(&hosts)).is_err());
        assert!(Processes::Auto.count(&CountBasis::Unknown).is_err());
        assert_eq!(Processes::Number(7).count(&CountBasis::Unknown), Ok(7));
        assert_eq!(Processes::Cpu.count(&CountBasis::Here { gpus_per_rank: 1 }), Ok(cores()));
    }

    #[test]
    fn gpus_must_be_present_and_visible() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        for (visible, expected) in [
            (None, 3),
            (Some("0"), 1),
            (Some("1,0"), 2),
            (Some("0,-1,1"), 1),
            (Some("-1"), 0),
            (Some(""), 0),
            (Some("GPU-8932f937, GPU-1"), 2),
            (Some("0,1,2,3"), 3),
        ] {
            assert_eq!(gpus(folder.path(), visible), expected, "{visible:?}");
        }
        assert_eq!(gpus(Path::new("/nonexistent"), None), 0);
    }
}
