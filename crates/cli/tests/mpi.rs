//! `horovodrun --mpi`, with a fake `mpirun` that only prints its arguments.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use support::{Ended, launch_in};
use tempfile::TempDir;

/// A folder with an `mpirun` of this version that prints its arguments and exits with 7.
fn mpirun(version: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mpirun");
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo '{version}'; exit 0; fi\n\
         for word in \"$@\"; do echo \"<$word>\"; done\n\
         echo \"rank ${{HOROVOD_RANK-none}}, threshold $HOROVOD_FUSION_THRESHOLD\"\n\
         exit 7\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn launch(folder: &TempDir, arguments: &[&str]) -> Ended {
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    // As if a rank of another job had started it.
    launch_in(arguments, "train it", &[("PATH", &path), ("HOROVOD_RANK", "3")])
}

#[test]
fn mpirun_replaces_the_launcher_and_keeps_its_output_and_exit_code() {
    let folder = mpirun("mpirun (Open MPI) 4.1.4");
    let options = [
        "--mpi",
        "-np",
        "4",
        "--fusion-threshold-mb",
        "1",
        "--mpi-args",
        "--oversubscribe -x 'A B'",
    ];
    let ended = launch(&folder, &options);
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    let words: Vec<&str> = ended.stdout.lines().collect();
    let start =
        ["<--allow-run-as-root>", "<--tag-output>", "<-np>", "<4>", "<-H>", "<localhost:4>"];
    assert_eq!(words[..6], start);
    let end = [
        "<--oversubscribe>",
        "<-x>",
        "<A B>",
        "<sh>",
        "<-c>",
        "<train it>",
        "rank none, threshold 1048576",
    ];
    assert_eq!(words[words.len() - 7..], end);
}

#[test]
fn hosts_unsupported_by_this_mpirun_are_refused_with_a_hint() {
    let folder = mpirun("HYDRA build details:");
    let ended = launch(&folder, &["--mpi", "-np", "3", "-H", "a:1,b:2"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        ended.stderr,
        "error: this `mpirun` gives every host the same number of ranks, but `a` offers 1 slot and \
         `b` offers 2\n\nhint: give every host the same number of slots, or use Open MPI's `mpirun`\n"
    );
}

#[test]
fn without_a_known_mpirun_the_error_names_what_to_install_or_omit() {
    let folder = mpirun("something else");
    let ended = launch(&folder, &["--mpi", "-np", "2"]);
    assert_eq!(ended.code, Some(2));
    let words =
        ["does not find an installed MPI", "something else", "openmpi-bin", "leave `--mpi`"];
    assert!(words.iter().all(|word| ended.stderr.contains(word)), "{}", ended.stderr);
    let nothing = tempfile::tempdir().unwrap();
    let path = nothing.path().to_str().unwrap();
    let ended = launch_in(&["--mpi", "-np", "2"], "x", &[("PATH", path)]);
    assert!(ended.stderr.starts_with("error: `--mpi` needs `mpirun`"), "{}", ended.stderr);
}

#[test]
fn the_last_launcher_option_wins() {
    let folder = mpirun("mpirun (Open MPI) 4.1.4");
    let ended = launch(&folder, &["--mpi", "--gloo", "--mpi-args", "-x A", "-np", "1"]);
    assert_eq!(ended.code, Some(127), "{}", ended.stderr);
    let warning = "warning: `--mpi-args` has no effect without `--mpi`";
    assert!(ended.stderr.contains(warning), "{}", ended.stderr);
}
