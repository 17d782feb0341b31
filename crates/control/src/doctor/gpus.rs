//! Problems with the GPUs of a host, and what differs between hosts about them.

use super::agree::{KnownFacts, differing};
use super::facts::{GpuInfo, GpuLibrary, Gpus};
use super::{Facts, Finding, HostReport, Severity};
use crate::{CUDA_VISIBLE_DEVICES, CudaVersion, NcclVersion, counted};

/// Problems of a single host; a host without a GPU has none.
pub(super) fn findings(host: &HostReport, gpus: &Gpus) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut warn = |what: String, fix: String| found.push(Finding::warning(&host.name, what, fix));
    if let Some(problem) = &gpus.problem {
        warn(
            format!("`nvidia-smi` fails there: {problem}"),
            "run it there to see why; after a driver update the host needs a restart".into(),
        );
    }
    if gpus.devices.is_empty() {
        // There may be some that the driver cannot list.
        let driver = gpus.cuda.as_ref().filter(|cuda| cuda.version.is_some());
        if let Some(what) = driver.and_then(old_driver) {
            warn(what, UPDATE.into());
        } else if let Some(problem) = driver.and_then(|cuda| cuda.problem.as_ref()) {
            warn(format!("its NVIDIA driver fails: {problem}"), UPDATE.into());
        }
        return found;
    }
    if let Some((what, fix)) = too_few(host.slots, gpus) {
        warn(what, fix);
    }
    for (number, gpu) in gpus.devices.iter().enumerate() {
        if let Some(what) = crowded(number, gpu) {
            let fix =
                "look for the processes in `nvidia-smi` there: one of an earlier job may be left";
            warn(what, fix.into());
        }
    }
    if let Some((what, fix)) = libraries(gpus) {
        warn(what, fix);
    }
    if let Some(problem) = &gpus.unknown {
        warn(
            format!("the program that looks for the driver and NCCL there {problem}"),
            "run `horovodrun --check-build --verbose` there".into(),
        );
    }
    found
}

const UPDATE: &str = "update NVIDIA's driver there, and restart the host";

/// Slots that have to share GPUs.
fn too_few(slots: u32, gpus: &Gpus) -> Option<(String, String)> {
    let count = gpus.usable();
    if slots <= count {
        return None;
    }
    let has = match count {
        1 => "only one GPU".to_owned(),
        _ => format!("only {count} GPUs"),
    };
    let limit = match count < gpus.devices.len() as u32 {
        true => format!(" in {CUDA_VISIBLE_DEVICES}"),
        false => String::new(),
    };
    let nccl = gpus.nccl.as_ref().and_then(|nccl| nccl.version).map(NcclVersion);
    let detour = match nccl.is_some_and(|nccl| nccl < NcclVersion::SHARES_GPUS) {
        true => ", and their tensors go through host memory before NCCL 2.30",
        false => "",
    };
    let fix = match count {
        0 => format!("name its GPUs in {CUDA_VISIBLE_DEVICES}, or unset it there"),
        _ => format!("give it `:{count}` slots: ranks that share a GPU take turns on it{detour}"),
    };
    Some((format!("it has {}, but {has}{limit}", counted(slots, "slot")), fix))
}

/// A GPU of which less than half the memory is free.
fn crowded(number: usize, gpu: &GpuInfo) -> Option<String> {
    let GpuInfo { name, memory_bytes, free_bytes } = gpu;
    let free = free_bytes.filter(|free| *free < memory_bytes / 2)?;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Some(format!(
        "another program uses GPU {number} ({name}): {:.1} of {:.1} GiB are free",
        gib(free),
        gib(*memory_bytes)
    ))
}

/// A driver or an NCCL that ranks could not use, and the fix.
fn libraries(gpus: &Gpus) -> Option<(String, String)> {
    let cuda = gpus.cuda.as_ref()?;
    if let Some(what) = old_driver(cuda) {
        return Some((what, UPDATE.into()));
    }
    if let Some(problem) = &cuda.problem {
        let fix = "install the driver's `libcuda.so.1`; for a container, allow \
                   `NVIDIA_DRIVER_CAPABILITIES=compute,utility`";
        return Some((format!("it has GPUs, but ranks cannot use them: {problem}"), fix.into()));
    }
    let nccl = gpus.nccl.as_ref()?;
    let what = match nccl.version.map(NcclVersion) {
        None => {
            let problem = nccl.problem.as_deref().unwrap_or("it was not found");
            format!(
                "no NCCL, so GPU tensors would go through host memory, which is slower: {problem}"
            )
        }
        Some(version) if version < NcclVersion::OLDEST => format!(
            "NCCL {version} (`{}`) is too old, so GPU tensors would go through host memory, which is \
             slower: Ronde needs {} or newer",
            nccl.path.as_deref().unwrap_or_default(),
            NcclVersion::OLDEST
        ),
        Some(_) => return None,
    };
    let package = match cuda.version {
        Some(13_000..) => "nvidia-nccl-cu13",
        _ => "nvidia-nccl-cu12",
    };
    let fix = format!("`pip install --upgrade {package}` there, or name another with RONDE_NCCL");
    Some((what, fix))
}

fn old_driver(cuda: &GpuLibrary) -> Option<String> {
    let version = cuda.version.map(CudaVersion)?;
    (version < CudaVersion::OLDEST).then(|| {
        let oldest = CudaVersion::OLDEST;
        format!(
            "its NVIDIA driver is too old: it supports CUDA {version}, and Ronde needs {oldest}"
        )
    })
}

/// What differs between hosts.
pub(super) fn differences(all: &[KnownFacts<'_>]) -> Vec<Finding> {
    let warning = |thing| (thing, Severity::Warning);
    let count = |facts: &Facts| Some(facts.gpus.usable().to_string());
    let check =
        |_: &str| "check `nvidia-smi -L` there: a GPU may be hidden or have failed".to_owned();
    let mut found = Vec::new();
    found.extend(differing(warning("the number of GPUs"), all, count, check));
    let with_gpus: Vec<KnownFacts<'_>> =
        all.iter().filter(|(_, facts)| !facts.gpus.devices.is_empty()).copied().collect();
    let model = |facts: &Facts| {
        let mut names: Vec<&str> = facts.gpus.devices.iter().map(|gpu| gpu.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Some(names.join(" and "))
    };
    let slowest =
        |_: &str| "use hosts with the same GPUs: all ranks wait for the slowest".to_owned();
    found.extend(differing(warning("the model of the GPUs"), &with_gpus, model, slowest));
    let driver = |facts: &Facts| {
        let driver = facts.gpus.driver.as_deref()?;
        Some(driver.split('.').next().unwrap_or(driver).to_owned())
    };
    let driven = known(&with_gpus, driver);
    let same = |wanted: &str| format!("install driver {wanted} everywhere");
    found.extend(differing(warning("NVIDIA's driver"), &driven, driver, same));
    // Versions that differ only in the last number understand each other.
    let nccl = |facts: &Facts| {
        let NcclVersion(number) = NcclVersion(facts.gpus.nccl.as_ref()?.version?);
        let text = NcclVersion(number).to_string();
        text.rsplit_once('.').map(|(version, _)| version.to_owned())
    };
    let with_nccl = known(&with_gpus, nccl);
    let same = |wanted: &str| {
        format!("install NCCL {wanted} everywhere: otherwise GPU tensors go through host memory")
    };
    found.extend(differing(warning("NCCL"), &with_nccl, nccl, same));
    found
}

/// The hosts of which this is known.
fn known<'a>(
    hosts: &[KnownFacts<'a>],
    value: impl Fn(&Facts) -> Option<String>,
) -> Vec<KnownFacts<'a>> {
    hosts.iter().filter(|(_, facts)| value(facts).is_some()).copied().collect()
}
