//! `horovodrun --check-build`: what this installation supports, in the layout that scripts parse.
//! With `--verbose`, also which libraries for GPUs it finds, and which frameworks are built for them.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ronde_control::VERSION;
use ronde_control::doctor::Gpus;

use crate::gpus;

/// The report. It looks for frameworks where Python would find them, and does not import them.
pub(crate) fn report(program: &Path, python_path: Option<&OsStr>, gpus: &Gpus) -> String {
    let folders = package_folders(program, python_path);
    let is_installed = |framework: &str| {
        folders.iter().any(|folder| folder.join(framework).join("__init__.py").is_file())
    };
    let cross = |is_there: bool| if is_there { 'X' } else { ' ' };
    let mark = |framework: &str| cross(is_installed(framework));
    // Horovod also prints the trailing spaces of the last line.
    format!(
        "Horovod v{VERSION}:

Available Frameworks:
    [{}] TensorFlow
    [{}] PyTorch
    [{}] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [{}] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo    
",
        mark("tensorflow"),
        mark("torch"),
        mark("mxnet"),
        cross(gpus.has_nccl())
    )
}

/// The libraries for GPUs, and the frameworks that are built for them.
pub(crate) fn details(program: &Path, python_path: Option<&OsStr>, found: &Gpus) -> String {
    let unknown = || match &found.unknown {
        Some(problem) => format!("unknown: the program that looks for it {problem}"),
        None => "unknown: the Python next to this command has no Ronde".to_owned(),
    };
    let mut text = "\nGPUs:\n".to_owned();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "    {name:<12}{value}");
    };
    line("CUDA", &gpus::cuda(found).unwrap_or_else(unknown));
    line("NCCL", &gpus::nccl(found).unwrap_or_else(unknown));
    for (framework, build) in gpus::builds(&package_folders(program, python_path)) {
        line(framework, &build);
    }
    text
}

/// The package directories of the Python that this executable was installed for.
fn package_folders(program: &Path, python_path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        python_path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let real = fs::canonicalize(program).ok();
    for program in [Some(program.to_owned()), real].into_iter().flatten() {
        let Some(prefix) = program.parent().and_then(Path::parent) else { continue };
        for library in ["lib", "lib64"] {
            let Ok(entries) = fs::read_dir(prefix.join(library)) else { continue };
            for entry in entries.flatten() {
                if entry.file_name().to_string_lossy().starts_with("python") {
                    folders.push(entry.path().join("site-packages"));
                    folders.push(entry.path().join("dist-packages"));
                }
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_control::doctor::GpuLibrary;

    #[test]
    fn frameworks_are_found_beside_the_command_or_on_the_python_path() {
        for (module, word) in
            [("tensorflow", "TensorFlow"), ("torch", "PyTorch"), ("mxnet", "MXNet")]
        {
            let (folder, none) = (tempfile::tempdir().unwrap(), Gpus::default());
            let packages = folder.path().join("lib/python3.12/site-packages");
            fs::create_dir_all(packages.join(module)).unwrap();
            fs::write(packages.join(module).join("__init__.py"), "").unwrap();
            let (there, missing) = (format!("[X] {word}"), format!("[ ] {word}"));
            let beside = folder.path().join("bin/horovodrun");
            let found = report(&beside, None, &none);
            assert!(found.contains(&there));
            let frameworks = found.split("Available Controllers").next().unwrap_or_default();
            assert_eq!(frameworks.matches("[X]").count(), 1);
            let elsewhere = Path::new("/nowhere/bin/horovodrun");
            assert!(report(elsewhere, None, &none).contains(&missing));
            assert!(report(elsewhere, Some(packages.as_os_str()), &none).contains(&there));
        }
    }

    #[test]
    fn nccl_is_available_if_it_and_the_driver_are_new_enough() {
        let library =
            |version| Some(GpuLibrary { version: Some(version), ..GpuLibrary::default() });
        let nowhere = Path::new("/nowhere/bin/horovodrun");
        for (cuda, nccl, mark) in [
            (library(13_000), library(23_007), 'X'),
            (library(11_040), library(21_400), 'X'),
            (library(11_020), library(23_007), ' '),
            (library(13_000), library(2708), ' '),
            (None, library(23_007), ' '),
            (library(13_000), None, ' '),
        ] {
            let gpus = Gpus { cuda, nccl, ..Gpus::default() };
            assert!(report(nowhere, None, &gpus).contains(&format!("    [{mark}] NCCL\n")));
        }
        let gpus = Gpus { cuda: library(13_000), ..Gpus::default() };
        assert_eq!(
            details(nowhere, None, &gpus),
            "\nGPUs:\n    CUDA        13.0, an unknown file\n    NCCL        unknown: the Python \
             next to this command has no Ronde\n"
        );
    }
}
