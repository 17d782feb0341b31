//! Ranks as threads that find each other, and rendezvous files that must not be trusted.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use ronde_control::launcher::LauncherKind;
use tempfile::TempDir;

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn started(rank: u32, job: &str) -> LaunchedProcess {
    LaunchedProcess {
        launcher: LauncherKind::Torchrun,
        rank: Rank(rank),
        size: 2,
        local_rank: rank,
        spread: Spread::OneHost,
        job: Some(job.into()),
        first_host: None,
        network: HostNetwork::default(),
    }
}

fn places(temporary: &Path) -> PrivateDirs {
    PrivateDirs { runtime: None, temporary: temporary.to_owned(), home: None }
}

fn rendezvous_files(temporary: &TempDir) -> Vec<std::path::PathBuf> {
    let folder = temporary.path().join(format!("ronde-{}", rustix::process::geteuid().as_raw()));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn ranks_of_one_host_meet_through_a_private_file() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostFile, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostFile, &places, SOON).unwrap();
        let rendezvous_file = rendezvous_files(&temporary)
            .into_iter()
            .find(|path| path.extension().is_none())
            .unwrap();
        assert_eq!(
            std::fs::metadata(&rendezvous_file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let found = late.join().unwrap().unwrap();
        assert_eq!(found.rendezvous_info.key, first.rendezvous_info.key);
        assert_eq!(found.rendezvous_info.addresses, first.rendezvous_info.addresses);
        assert!(first.rendezvous_info.addresses.iter().all(|address| address.ip().is_loopback()));
    });
}

#[test]
fn a_file_left_by_an_earlier_job_misleads_no_rank() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    // A job that died before all ranks joined: its file names a port where nothing listens any
    // more.
    let earlier = gather(&started(0, "a"), &RendezvousMethod::HostFile, &places, SOON).unwrap();
    drop(earlier);
    assert_eq!(rendezvous_files(&temporary).len(), 1);
    let brief = Duration::from_millis(50);
    let error =
        gather(&started(1, "a"), &RendezvousMethod::HostFile, &places, brief).err().unwrap();
    let text = error.to_string();
    assert!(text.starts_with("rank 1 did not find rank 0 within 0 s: no process with"), "{text}");
    assert!(text.contains("RONDE_SECRET"), "{text}");
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostFile, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostFile, &places, SOON).unwrap();
        assert_eq!(late.join().unwrap().unwrap().rendezvous_info.key, first.rendezvous_info.key);
    });
}

#[test]
fn a_file_or_directory_that_is_not_private_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let brief = Duration::from_millis(20);
    let places = places(temporary.path());
    let first = gather(&started(0, "a"), &RendezvousMethod::HostFile, &places, SOON).unwrap();
    let rendezvous_file = rendezvous_files(&temporary).remove(0);
    let refusal = |places: &PrivateDirs| {
        gather(&started(1, "a"), &RendezvousMethod::HostFile, places, brief)
            .err()
            .unwrap()
            .to_string()
    };
    std::fs::set_permissions(&rendezvous_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&places).contains("other users may read it"));
    std::fs::set_permissions(&rendezvous_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let elsewhere = temporary.path().join("elsewhere");
    std::fs::rename(&rendezvous_file, &elsewhere).unwrap();
    symlink(&elsewhere, &rendezvous_file).unwrap();
    assert!(refusal(&places).contains("cannot read the rendezvous file"));
    std::fs::remove_file(&rendezvous_file).unwrap();
    assert!(refusal(&places).contains("there is no rendezvous file at"));
    let folder = rendezvous_file.parent().unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(refusal(&places).contains("other users may enter"));
    drop(first);
}

#[test]
fn a_pipe_in_place_of_the_file_blocks_no_rank() {
    let shared = tempfile::tempdir().unwrap();
    let places = places(shared.path());
    let directory = Some(shared.path().to_string_lossy().into_owned());
    let rendezvous_method = RendezvousMethod::SharedFile { directory };
    drop(gather(&started(0, "a"), &rendezvous_method, &places, SOON).unwrap());
    let entries = std::fs::read_dir(shared.path()).unwrap();
    let rendezvous_file =
        entries.map(|entry| entry.unwrap().path()).find(|path| path.is_file()).unwrap();
    std::fs::remove_file(&rendezvous_file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &rendezvous_file, 0o600.into()).unwrap();
    let brief = Duration::from_millis(20);
    let refusal =
        gather(&started(1, "a"), &rendezvous_method, &places, brief).err().unwrap().to_string();
    assert!(refusal.contains("is not a regular file"), "{refusal}");
    // Rank 0 replaces the pipe with its file.
    let first = gather(&started(0, "a"), &rendezvous_method, &places, SOON).unwrap();
    let found = gather(&started(1, "a"), &rendezvous_method, &places, SOON).unwrap();
    assert_eq!(found.rendezvous_info.key, first.rendezvous_info.key);
}

#[test]
fn ranks_meet_in_another_directory_when_the_usual_one_is_taken() {
    let outer = tempfile::tempdir().unwrap();
    let user = rustix::process::geteuid().as_raw();
    let taken = outer.path().join(format!("ronde-{user}"));
    std::fs::create_dir(&taken).unwrap();
    std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refusal =
        gather(&started(0, "a"), &RendezvousMethod::HostFile, &places(outer.path()), SOON);
    let refusal = refusal.err().unwrap().to_string();
    assert!(refusal.contains("other users may enter"), "{refusal}");
    let places = PrivateDirs { home: Some(outer.path().to_owned()), ..places(outer.path()) };
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostFile, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostFile, &places, SOON).unwrap();
        assert_eq!(late.join().unwrap().unwrap().rendezvous_info.key, first.rendezvous_info.key);
    });
    assert_eq!(std::fs::read_dir(&taken).unwrap().count(), 0);
}

#[test]
fn jobs_with_different_names_have_different_files() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    let long = "x".repeat(200);
    let names = ["a/b", "a_b", &long, &format!("{long}y")];
    let first = names.map(|job| {
        gather(&started(0, job), &RendezvousMethod::HostFile, &places, SOON).unwrap();
    });
    assert_eq!(rendezvous_files(&temporary).len(), first.len());
}

#[test]
fn only_ranks_with_the_secret_meet_at_a_port() {
    // This port is free now, and unlikely to be assigned to another process in the meantime.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rendezvous_method = |seed: u8| RendezvousMethod::Secret {
        key: JobKey::from_entropy([seed; 32]),
        host: "127.0.0.1".into(),
        port,
    };
    let places = places(Path::new("/nowhere"));
    std::thread::scope(|scope| {
        let late = scope.spawn(|| gather(&started(1, "a"), &rendezvous_method(1), &places, SOON));
        let first = gather(&started(0, "a"), &rendezvous_method(1), &places, SOON).unwrap();
        assert_eq!(late.join().unwrap().unwrap().rendezvous_info, first.rendezvous_info);
        let brief = Duration::from_millis(20);
        let wrong_secret =
            gather(&started(1, "a"), &rendezvous_method(2), &places, brief).err().unwrap();
        assert!(wrong_secret.to_string().contains("no process with the job key answers at"));
        let second = gather(&started(0, "b"), &rendezvous_method(1), &places, SOON).err().unwrap();
        assert!(
            second
                .to_string()
                .contains(&format!("cannot listen for the other ranks: port {port} is taken"))
        );
    });
}

#[test]
fn a_job_of_several_hosts_is_found_at_addresses_that_others_reach() {
    let started = LaunchedProcess { spread: Spread::Hosts, ..started(0, "a") };
    let opened = open(&started, None, SOON).unwrap();
    let RendezvousInfo { addresses, key, .. } = opened.rendezvous_info.clone();
    let invitation = Invitation { addresses, key };
    let outside = |address: &SocketAddr| !address.ip().is_loopback();
    // A machine without a network has only loopback.
    let alone = own_addresses(None) == [IpAddr::from(Ipv4Addr::LOCALHOST)];
    assert!(alone || invitation.addresses.iter().all(outside), "{invitation:?}");
    let other = LaunchedProcess { rank: Rank(1), ..started };
    let found = follow(&other, &invitation, SOON).unwrap();
    assert_eq!(found.rendezvous_info.addresses, invitation.addresses[..1]);
}
