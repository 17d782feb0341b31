//! `--gpus-per-rank`: which GPUs each rank sees.
#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod support;

use std::fs;

use support::{Ended, launch_in};

const SHOW: &str = r#"echo "$HOROVOD_LOCAL_RANK sees ${CUDA_VISIBLE_DEVICES-all}""#;

/// The output of a job, in order.
fn shown(line: &str, env: &[(&str, &str)]) -> Vec<String> {
    let options: Vec<&str> = line.split_whitespace().collect();
    let Ended { code, stdout, stderr, .. } = launch_in(&options, SHOW, env);
    assert_eq!(code, Some(0), "{stderr}");
    let mut lines: Vec<String> = stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn each_slot_of_a_host_gets_its_own_gpus() {
    let wide = "-np 3 -H localhost:2,127.0.0.1:1";
    let expected = ["[0]<stdout>:0 sees 0,1", "[1]<stdout>:1 sees 2,3", "[2]<stdout>:0 sees 0,1"];
    assert_eq!(shown(&format!("{wide} --gpus-per-rank 2"), &[]), expected);
}

#[test]
fn so_does_each_slot_of_an_elastic_job() {
    let folder = tempfile::tempdir().unwrap();
    // The first one that exits ends the job, so they wait for each other.
    let script = format!(
        "{SHOW}; cd {}; touch $HOROVOD_LOCAL_RANK; until [ -e 0 ] && [ -e 1 ]; do sleep 0.05; done",
        folder.path().display()
    );
    let options = ["-np", "2", "--min-np", "2", "--gpus-per-rank", "1"];
    let ended = launch_in(&options, &script, &[]);
    for line in ["[0]<stdout>:0 sees 0", "[1]<stdout>:1 sees 1"] {
        assert!(ended.stdout.lines().any(|it| it == line), "{}{}", ended.stdout, ended.stderr);
    }
}

#[test]
fn gpus_come_from_the_list_of_the_host() {
    let list = ("CUDA_VISIBLE_DEVICES", "GPU-8932f937, GPU-5ebe9f43,7");
    let named = ["[0]<stdout>:0 sees GPU-8932f937", "[1]<stdout>:1 sees GPU-5ebe9f43"];
    assert_eq!(shown("-np 2", &[list, ("RONDE_GPUS_PER_RANK", "1")]), named);
    let unchanged = [format!("[0]<stdout>:0 sees {}", list.1)];
    assert_eq!(shown("-np 1", &[list]), unchanged, "it is off unless it is asked for");
}

#[test]
fn the_option_overrides_the_configuration_file_which_overrides_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    fs::write(&path, "gpus_per_rank: 2\n").unwrap();
    let line = format!("-np 1 --config-file {}", path.display());
    let env = [("RONDE_GPUS_PER_RANK", "1")];
    assert_eq!(shown(&line, &env), ["[0]<stdout>:0 sees 0,1"]);
    let line = format!("{line} --gpus-per-rank 3");
    assert_eq!(shown(&line, &env), ["[0]<stdout>:0 sees 0,1,2"]);
}

#[test]
fn too_few_gpus_are_an_error_that_names_host_slots_and_gpus() {
    let options = ["-np", "3", "--gpus-per-rank", "1"];
    let ended = launch_in(&options, "exec sleep 60", &[("CUDA_VISIBLE_DEVICES", "0,1")]);
    assert_eq!(ended.code, Some(126), "{}", ended.stderr);
    for part in [
        "error: rank 2 (localhost, slot 2) could not be started: `--gpus-per-rank 1` needs 3 GPUs \
         for 3 slots, but CUDA_VISIBLE_DEVICES names only 2 there (`0,1`)\n",
        "hint: name more GPUs in CUDA_VISIBLE_DEVICES on `localhost`, give it fewer slots, or lower",
    ] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

#[test]
fn another_launcher_cannot_give_out_gpus() {
    for (line, env) in
        [("--mpi --gpus-per-rank 1", vec![]), ("--mpi", vec![("RONDE_GPUS_PER_RANK", "1")])]
    {
        let options: Vec<&str> = ["-np", "1"].into_iter().chain(line.split_whitespace()).collect();
        let ended = launch_in(&options, "true", &env);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let expected = "error: `--mpi` cannot be combined with `--gpus-per-rank`: `mpirun` starts";
        assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    }
}
