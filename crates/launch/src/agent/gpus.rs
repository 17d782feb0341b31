//! What an agent finds out about the GPUs of its host: `nvidia-smi` lists them, and the Python that
//! the ranks would use finds the driver and NCCL.

use std::path::Path;

use ronde_control::doctor::{GpuInfo, GpuLibrary, Gpus};
use ronde_control::{CUDA_VISIBLE_DEVICES, visible_gpus};
use serde::Deserialize;
use tokio::process::Command;

use super::examine::{ABSENT, interpreter, output};

const ASK: &str = include_str!("gpus.py");

/// What the ranks would use, as `gpus.py` prints it.
#[derive(Deserialize)]
struct Software {
    driver: GpuLibrary,
    nccl: GpuLibrary,
    /// Empty if `nvidia-smi` lists them.
    gpus: Vec<GpuInfo>,
}

/// The GPUs of this host and the libraries for them. `program` is this executable.
pub(crate) async fn find(program: &Path) -> Gpus {
    let query = "--query-gpu=driver_version,memory.total,memory.free,name";
    let mut tool = Command::new("nvidia-smi");
    tool.args([query, "--format=csv,noheader,nounits"]);
    let mut python = Command::new(interpreter(program));
    python.args(["-c", ASK]);
    let (listed, software) = tokio::join!(output(&mut tool), output(&mut python));
    let listed = match listed {
        Ok(text) => devices(&text),
        // Without `nvidia-smi`, either there is no GPU or only the driver knows it.
        Err(problem) if problem == ABSENT => Gpus::default(),
        Err(problem) => Gpus { problem: Some(problem), ..Gpus::default() },
    };
    let visible = std::env::var(CUDA_VISIBLE_DEVICES).ok();
    let visible = visible.map(|list| visible_gpus(&list).len() as u32);
    with_software(Gpus { visible, ..listed }, software)
}

/// Parses lines such as `570.1, 143771, 143000, NVIDIA H200`, with memory in MiB.
fn devices(text: &str) -> Gpus {
    let mut gpus = Gpus::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.splitn(4, ',').map(str::trim).collect();
        let [driver, memory, free, name] = fields[..] else { continue };
        let bytes = |text: &str| text.parse::<u64>().ok().map(|number| number << 20);
        gpus.driver = Some(driver.to_owned());
        gpus.devices.push(GpuInfo {
            name: name.to_owned(),
            memory_bytes: bytes(memory).unwrap_or(0),
            free_bytes: bytes(free),
        });
    }
    gpus
}

/// Adds what `gpus.py` has printed, or why it failed.
fn with_software(mut gpus: Gpus, software: Result<String, String>) -> Gpus {
    let software = match software {
        Ok(text) => serde_json::from_str::<Option<Software>>(&text).unwrap_or_default(),
        // A Python that is missing is reported for itself.
        Err(problem) if problem == ABSENT => None,
        Err(problem) => {
            gpus.unknown = Some(problem);
            None
        }
    };
    if let Some(Software { driver, nccl, gpus: devices }) = software {
        (gpus.cuda, gpus.nccl) = (Some(driver), Some(nccl));
        gpus.devices.extend(devices);
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_nvidia_smi_is_parsed() {
        let gpus = devices(
            "570.1, 143771, 143000, NVIDIA H200\n570.1, [N/A], [N/A], NVIDIA GB10, a part of one\n",
        );
        assert_eq!((gpus.devices.len(), gpus.driver.as_deref()), (2, Some("570.1")));
        let first = GpuInfo {
            name: "NVIDIA H200".into(),
            memory_bytes: 143_771 << 20,
            free_bytes: Some(143_000 << 20),
        };
        assert_eq!(gpus.devices[0], first);
        assert_eq!(gpus.devices[1].name, "NVIDIA GB10, a part of one");
        assert_eq!((gpus.devices[1].memory_bytes, gpus.devices[1].free_bytes), (0, None));
        assert_eq!(devices("No devices were found\n"), Gpus::default());
    }

    #[test]
    fn libraries_and_their_problems_are_parsed() {
        let text = r#"{"driver": {"version": 13000, "path": "/lib/libcuda.so.1"},
                       "nccl": {"problem": "NCCL cannot be opened"},
                       "gpus": [{"name": "NVIDIA H200", "memory_bytes": 64}]}"#;
        let gpus = with_software(Gpus::default(), Ok(text.into()));
        assert_eq!(gpus.cuda.as_ref().and_then(|cuda| cuda.version), Some(13_000));
        let nccl = gpus.nccl.unwrap();
        assert_eq!((nccl.version, nccl.problem.as_deref()), (None, Some("NCCL cannot be opened")));
        assert_eq!((gpus.devices[0].memory_bytes, gpus.devices[0].free_bytes), (64, None));
        for nothing in [Ok("null\n".into()), Ok(String::new()), Err(ABSENT.into())] {
            assert_eq!(with_software(Gpus::default(), nothing), Gpus::default());
        }
        let gpus = with_software(Gpus::default(), Err("took longer than 2.5 s".into()));
        assert_eq!(gpus.unknown.as_deref(), Some("took longer than 2.5 s"));
    }
}
