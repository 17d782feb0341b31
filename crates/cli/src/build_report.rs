//! `horovodrun --check-build`: what this installation supports, in the layout that scripts parse.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use ronde_control::VERSION;

/// The report. It looks for frameworks where Python would find them, and does not import them.
pub(crate) fn report(program: &Path, python_path: Option<&OsStr>) -> String {
    let folders = package_folders(program, python_path);
    let is_installed = |framework: &str| {
        folders.iter().any(|folder| folder.join(framework).join("__init__.py").is_file())
    };
    let mark = |framework: &str| if is_installed(framework) { 'X' } else { ' ' };
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
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo    
",
        mark("tensorflow"),
        mark("torch"),
        mark("mxnet")
    )
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

    #[test]
    fn frameworks_are_found_beside_the_command_or_on_the_python_path() {
        for (module, word) in
            [("tensorflow", "TensorFlow"), ("torch", "PyTorch"), ("mxnet", "MXNet")]
        {
            let folder = tempfile::tempdir().unwrap();
            let packages = folder.path().join("lib/python3.12/site-packages");
            fs::create_dir_all(packages.join(module)).unwrap();
            fs::write(packages.join(module).join("__init__.py"), "").unwrap();
            let (there, missing) = (format!("[X] {word}"), format!("[ ] {word}"));
            let beside = folder.path().join("bin/horovodrun");
            let found = report(&beside, None);
            assert!(found.contains(&there));
            let frameworks = found.split("Available Controllers").next().unwrap_or_default();
            assert_eq!(frameworks.matches("[X]").count(), 1);
            let elsewhere = Path::new("/nowhere/bin/horovodrun");
            assert!(report(elsewhere, None).contains(&missing));
            assert!(report(elsewhere, Some(packages.as_os_str())).contains(&there));
        }
    }
}
