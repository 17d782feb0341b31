//! What is shown about the libraries for GPUs, and which frameworks are built for them.

use std::fs;
use std::path::{Path, PathBuf};

use ronde_control::doctor::{GpuLibrary, Gpus};
use ronde_control::{CudaVersion, NcclVersion};

/// The newest CUDA that the driver supports, and the driver's file, or why there is none; `None` if
/// nobody could look for it.
pub(crate) fn cuda(gpus: &Gpus) -> Option<String> {
    library(gpus.cuda.as_ref(), |version| CudaVersion(version).to_string())
}

/// The version of NCCL and its file, or why there is none.
pub(crate) fn nccl(gpus: &Gpus) -> Option<String> {
    library(gpus.nccl.as_ref(), |version| NcclVersion(version).to_string())
}

fn library(found: Option<&GpuLibrary>, spelled: fn(u32) -> String) -> Option<String> {
    let GpuLibrary { version, path, problem } = found?;
    Some(match version {
        Some(version) => {
            let path = path.as_deref().unwrap_or("an unknown file");
            format!("{}, {path}", spelled(*version))
        }
        None => problem.clone().unwrap_or_else(|| "none".into()),
    })
}

/// The installed frameworks, and whether each is built for GPUs. `folders` are those of Python's
/// packages. Nothing is imported: it would take seconds.
pub(crate) fn builds(folders: &[PathBuf]) -> Vec<(&'static str, String)> {
    let found = |look: fn(&Path) -> Option<String>| folders.iter().find_map(|folder| look(folder));
    let frameworks: [(&str, Option<String>); 3] =
        [("PyTorch", found(torch)), ("TensorFlow", found(tensorflow)), ("JAX", found(jax))];
    frameworks.into_iter().filter_map(|(name, build)| Some((name, build?))).collect()
}

const CPU_ONLY: &str = "built for CPUs only";

/// Reads the line `cuda: Optional[str] = '13.0'`.
fn torch(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join("torch/version.py")).ok()?;
    let line = text.lines().find(|line| line.starts_with("cuda"))?;
    let version = line.split_once('=')?.1.trim().trim_matches(['\'', '"']);
    Some(if version == "None" { CPU_ONLY.into() } else { format!("built for CUDA {version}") })
}

/// Looks for the entry `('is_cuda_build', True)`.
fn tensorflow(folder: &Path) -> Option<String> {
    let path = folder.join("tensorflow/python/platform/build_info.py");
    let text = fs::read_to_string(path).ok()?;
    let is_for_cuda = text.contains("'is_cuda_build', True");
    Some(if is_for_cuda { "built for CUDA" } else { CPU_ONLY }.into())
}

/// GPUs are supported by a plugin for one version of CUDA.
fn jax(folder: &Path) -> Option<String> {
    if !folder.join("jax/__init__.py").is_file() {
        return None;
    }
    let plugin = |version: &u32| folder.join(format!("jax_cuda{version}_plugin")).is_dir();
    Some(match [13, 12].into_iter().find(plugin) {
        Some(version) => format!("has a plugin for CUDA {version}"),
        None => "has no CUDA plugin".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_read_from_the_packages() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        assert_eq!(builds(&folders), []);
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let info = "tensorflow/python/platform/build_info.py";
        write("torch/version.py", "__all__ = ['cuda']\ncuda: Optional[str] = None\n");
        write(info, "build_info = OrderedDict([('is_cuda_build', False)])");
        write("jax/__init__.py", "");
        let none = [("PyTorch", CPU_ONLY), ("TensorFlow", CPU_ONLY), ("JAX", "has no CUDA plugin")];
        assert_eq!(builds(&folders), none.map(|(name, build)| (name, build.to_owned())));
        write("torch/version.py", "cuda: Optional[str] = '13.0'\n");
        write(info, "build_info = OrderedDict([('is_cuda_build', True)])");
        write("jax_cuda12_plugin/__init__.py", "");
        let all = [
            ("PyTorch", "built for CUDA 13.0"),
            ("TensorFlow", "built for CUDA"),
            ("JAX", "has a plugin for CUDA 12"),
        ];
        assert_eq!(builds(&folders), all.map(|(name, build)| (name, build.to_owned())));
    }
}
