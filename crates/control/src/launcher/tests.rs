//! Environments that launchers create, and what is detected in them.

use super::*;
use crate::wire::JobKey;

fn look_up<'a>(variables: &'a str) -> impl Fn(&str) -> Option<String> + 'a {
    move |name| {
        let mut pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    }
}

const TORCHRUN: &str = "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1 RANK=3 WORLD_SIZE=4 \
    LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT=29500";
const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-a-7@1 PMIX_RANK=1";
const HYDRA: &str = "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PMI_FD=9";
const SLURM: &str = "SLURM_PROCID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=99 \
    SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[07-08]-ib,x \
    SLURM_JOB_ID=4711 SLURM_CLUSTER_NAME=big";
const KUBERNETES: &str = "JOB_COMPLETION_INDEX=2 WORLD_SIZE=3 MASTER_ADDR=job-0.svc";
const BY_HAND: &str = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1234";

/// Launcher, rank, size, local rank, whether all are on one host, job, host of rank 0.
type Row = (LauncherKind, u32, u32, u32, Spread, Option<&'static str>, Option<&'static str>);

#[test]
fn each_launchers_variables_identify_a_process() {
    use LauncherKind::{Kubernetes, Mpich, OpenMpi, Slurm, Torchrun, Variables};
    use Spread::{Hosts, OneHost};
    let rows: [(&str, Row); 6] = [
        (TORCHRUN, (Torchrun, 3, 4, 1, Hosts, Some("none-node-a-29500-1"), Some("node-a"))),
        (OPEN_MPI, (OpenMpi, 1, 2, 1, OneHost, Some("prterun-a-7@1"), None)),
        (HYDRA, (Mpich, 2, 3, 0, Hosts, None, None)),
        (SLURM, (Slurm, 5, 8, 1, Hosts, Some("big-4711-0"), Some("gpu07-ib"))),
        (KUBERNETES, (Kubernetes, 2, 3, 0, Hosts, Some("job-0.svc"), Some("job-0.svc"))),
        (BY_HAND, (Variables, 0, 2, 0, OneHost, Some("127.0.0.1-1234"), Some("127.0.0.1"))),
    ];
    for (variables, (launcher, rank, size, local_rank, spread, job, first_host)) in rows {
        let expected = LaunchedProcess {
            launcher,
            rank: Rank(rank),
            size,
            local_rank,
            spread,
            job: job.map(str::to_owned),
            first_host: first_host.map(str::to_owned),
            network: HostNetwork::default(),
        };
        assert_eq!(detect(look_up(variables)), Ok(Some(expected)), "{variables}");
    }
}

#[test]
fn the_innermost_launcher_counts_and_horovodrun_takes_precedence() {
    for (variables, expected) in [
        (format!("{SLURM} {OPEN_MPI}"), Some(LauncherKind::OpenMpi)),
        (format!("{OPEN_MPI} {TORCHRUN}"), Some(LauncherKind::Torchrun)),
        (format!("{SLURM} {HYDRA} {BY_HAND}"), Some(LauncherKind::Mpich)),
        (format!("{KUBERNETES} RANK=2 MASTER_PORT=1"), Some(LauncherKind::Kubernetes)),
        (format!("{OPEN_MPI} HOROVOD_RANK=0 HOROVOD_SIZE=1"), None),
    ] {
        let found = detect(look_up(&variables)).unwrap().map(|started| started.launcher);
        assert_eq!(found, expected, "{variables}");
    }
}

#[test]
fn similar_environments_are_not_mistaken_for_a_launcher() {
    for variables in [
        "",
        // A batch script of Slurm, whose process is not one of the tasks.
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1",
        // Pods that are independent of each other.
        "JOB_COMPLETION_INDEX=2",
        "RANK=1 WORLD_SIZE=2",
        "OMPI_COMM_WORLD_RANK= PMIX_RANK=0",
    ] {
        assert_eq!(detect(look_up(variables)), Ok(None), "{variables}");
    }
}

#[test]
fn an_incomplete_environment_is_reported() {
    for (variables, expected) in [
        (
            "OMPI_COMM_WORLD_RANK=1",
            "this process was started by Open MPI, but OMPI_COMM_WORLD_SIZE is not set",
        ),
        (
            "SLURM_PROCID=x SLURM_STEP_ID=0",
            "this process was started by Slurm, but SLURM_PROCID is `x`, which is not a number; \
             this process was started by Slurm, but SLURM_STEP_NUM_TASKS or SLURM_NTASKS or \
             SLURM_NPROCS is not set",
        ),
        (
            "PMI_RANK=4 PMI_SIZE=4",
            "this process was started by MPICH, but PMI_RANK is `4` and PMI_SIZE is `4`: the rank \
             must be less than the size",
        ),
    ] {
        assert_eq!(detect(look_up(variables)).unwrap_err().to_string(), expected);
    }
}

#[test]
fn the_first_host_of_a_slurm_host_list_is_found() {
    for (list, expected) in [
        ("node1", Some("node1")),
        ("a,b[1-2]", Some("a")),
        ("n[003-010,20]", Some("n003")),
        ("r[1,5]n", Some("r1n")),
        ("n[1", None),
        ("", None),
    ] {
        assert_eq!(first_node(list).as_deref(), expected, "{list}");
    }
}

#[test]
fn ranks_meet_through_a_secret_or_a_private_rendezvous_file() {
    let secret = "ab".repeat(32);
    let key = JobKey::from_hex(&secret).unwrap();
    let meets = |variables: &str, set: &str| {
        let started = detect(look_up(variables)).unwrap().unwrap();
        rendezvous_method(&started, look_up(set))
    };
    let shared = |directory: Option<&str>| RendezvousMethod::SharedFile {
        directory: directory.map(Into::into),
    };
    let by =
        |host: &str, port| RendezvousMethod::Secret { key: key.clone(), host: host.into(), port };
    let given = format!("RONDE_SECRET={secret}");
    assert_eq!(meets(OPEN_MPI, ""), Ok(RendezvousMethod::HostFile));
    assert_eq!(meets(SLURM, ""), Ok(shared(None)));
    assert_eq!(meets(KUBERNETES, "RONDE_RENDEZVOUS_DIR=/d"), Ok(shared(Some("/d"))));
    assert_eq!(meets(KUBERNETES, &given), Ok(by("job-0.svc", 29507)));
    assert_eq!(meets(OPEN_MPI, &given), Ok(by("127.0.0.1", 29507)));
    let port = format!("{given} RONDE_RENDEZVOUS_PORT=77");
    assert_eq!(meets(SLURM, &port), Ok(by("gpu07-ib", 77)));
}

#[test]
fn without_a_rendezvous_method_the_error_says_what_to_do() {
    let refused = |variables: &str, set: &str| {
        let started = detect(look_up(variables)).unwrap().unwrap();
        rendezvous_method(&started, look_up(set)).unwrap_err().to_string()
    };
    for variables in [KUBERNETES, HYDRA] {
        let error = refused(variables, "");
        for word in ["rank 2 of 3", "RONDE_SECRET", "RONDE_RENDEZVOUS_DIR", "MASTER_ADDR"] {
            assert!(error.contains(word), "{error}");
        }
    }
    let error = refused(HYDRA, "RONDE_SECRET=hunter2 RONDE_RENDEZVOUS_PORT=0");
    assert!(!error.contains("hunter2"), "{error}");
    assert_eq!(error.matches("; ").count(), 3, "{error}");
}
