//! Gatherings of ranks that are threads here, and notes that must not be believed.

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
    }
}

fn places(temporary: &Path) -> PrivateDirs {
    PrivateDirs { runtime: None, temporary: temporary.to_owned(), home: None }
}

fn notes(temporary: &TempDir) -> Vec<std::path::PathBuf> {
    let folder = temporary.path().join(format!("ronde-{}", rustix::process::geteuid().as_raw()));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn ranks_of_one_host_meet_by_a_note_that_only_their_user_can_read() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostNote, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostNote, &places, SOON).unwrap();
        let rendezvous_file =
            notes(&temporary).into_iter().find(|path| path.extension().is_none()).unwrap();
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
fn what_an_earlier_job_has_left_fools_nobody() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    // A job that died before all had met: its note names a port where nobody is any more.
    let earlier = gather(&started(0, "a"), &RendezvousMethod::HostNote, &places, SOON).unwrap();
    drop(earlier);
    assert_eq!(notes(&temporary).len(), 1);
    let brief = Duration::from_millis(50);
    let error =
        gather(&started(1, "a"), &RendezvousMethod::HostNote, &places, brief).err().unwrap();
    let text = error.to_string();
    assert!(text.starts_with("rank 1 has not found rank 0 within 0 s: no process with"), "{text}");
    assert!(text.contains("RONDE_SECRET"), "{text}");
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostNote, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostNote, &places, SOON).unwrap();
        assert_eq!(late.join().unwrap().unwrap().rendezvous_info.key, first.rendezvous_info.key);
    });
}

#[test]
fn a_note_that_others_can_read_or_a_folder_that_others_can_enter_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let brief = Duration::from_millis(20);
    let places = places(temporary.path());
    let first = gather(&started(0, "a"), &RendezvousMethod::HostNote, &places, SOON).unwrap();
    let rendezvous_file = notes(&temporary).remove(0);
    let refusal = |places: &PrivateDirs| {
        gather(&started(1, "a"), &RendezvousMethod::HostNote, places, brief)
            .err()
            .unwrap()
            .to_string()
    };
    std::fs::set_permissions(&rendezvous_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&places).contains("others may read it"));
    std::fs::set_permissions(&rendezvous_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let elsewhere = temporary.path().join("elsewhere");
    std::fs::rename(&rendezvous_file, &elsewhere).unwrap();
    symlink(&elsewhere, &rendezvous_file).unwrap();
    assert!(refusal(&places).contains("cannot be read"));
    std::fs::remove_file(&rendezvous_file).unwrap();
    assert!(refusal(&places).contains("has left no note at"));
    let folder = rendezvous_file.parent().unwrap();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(refusal(&places).contains("others may enter"));
    drop(first);
}

#[test]
fn a_pipe_in_the_place_of_a_note_holds_nobody_up() {
    let shared = tempfile::tempdir().unwrap();
    let places = places(shared.path());
    let directory = Some(shared.path().to_string_lossy().into_owned());
    let rendezvous_method = RendezvousMethod::SharedNote { directory };
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
    // Rank 0 puts its note in the pipe's place.
    let first = gather(&started(0, "a"), &rendezvous_method, &places, SOON).unwrap();
    let found = gather(&started(1, "a"), &rendezvous_method, &places, SOON).unwrap();
    assert_eq!(found.rendezvous_info.key, first.rendezvous_info.key);
}

#[test]
fn ranks_meet_elsewhere_when_the_usual_folder_is_taken() {
    let outer = tempfile::tempdir().unwrap();
    let user = rustix::process::geteuid().as_raw();
    let taken = outer.path().join(format!("ronde-{user}"));
    std::fs::create_dir(&taken).unwrap();
    std::fs::set_permissions(&taken, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refusal =
        gather(&started(0, "a"), &RendezvousMethod::HostNote, &places(outer.path()), SOON);
    let refusal = refusal.err().unwrap().to_string();
    assert!(refusal.contains("others may enter"), "{refusal}");
    let places = PrivateDirs { home: Some(outer.path().to_owned()), ..places(outer.path()) };
    std::thread::scope(|scope| {
        let late =
            scope.spawn(|| gather(&started(1, "a"), &RendezvousMethod::HostNote, &places, SOON));
        let first = gather(&started(0, "a"), &RendezvousMethod::HostNote, &places, SOON).unwrap();
        assert_eq!(late.join().unwrap().unwrap().rendezvous_info.key, first.rendezvous_info.key);
    });
    assert_eq!(std::fs::read_dir(&taken).unwrap().count(), 0);
}

#[test]
fn jobs_with_different_names_have_different_notes() {
    let temporary = tempfile::tempdir().unwrap();
    let places = places(temporary.path());
    let long = "x".repeat(200);
    let names = ["a/b", "a_b", &long, &format!("{long}y")];
    let first = names.map(|job| {
        gather(&started(0, job), &RendezvousMethod::HostNote, &places, SOON).unwrap();
    });
    assert_eq!(notes(&temporary).len(), first.len());
}

#[test]
fn ranks_with_a_secret_meet_at_a_port_and_strangers_do_not() {
    // A port that is free now, and which nobody else on loopback is given meanwhile but by chance.
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
        let stranger =
            gather(&started(1, "a"), &rendezvous_method(2), &places, brief).err().unwrap();
        assert!(stranger.to_string().contains("no process with the job key answers at"));
        let second = gather(&started(0, "b"), &rendezvous_method(1), &places, SOON).err().unwrap();
        assert!(second.to_string().contains(&format!("cannot listen on 127.0.0.1:{port}")));
    });
}

#[test]
fn a_job_of_several_hosts_is_found_at_addresses_that_others_reach() {
    let started = LaunchedProcess { spread: Spread::Hosts, ..started(0, "a") };
    let gathered = open(&started, None, SOON).unwrap();
    let RendezvousInfo { addresses, key, .. } = gathered.rendezvous_info.clone();
    let invitation = Invitation { addresses, key };
    let outside = |address: &SocketAddr| !address.ip().is_loopback();
    // A machine without any network has its loopback only.
    let alone = own_addresses(None) == [IpAddr::from(Ipv4Addr::LOCALHOST)];
    assert!(alone || invitation.addresses.iter().all(outside), "{invitation:?}");
    let found = follow(Rank(1), &invitation, SOON).unwrap();
    assert_eq!(found.rendezvous_info.addresses, invitation.addresses[..1]);
}
