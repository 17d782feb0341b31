//! Tunnels connected to each other, with a server that authenticates nobody.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::net::listen;
use rustix::net::sockopt::set_socket_reuseport;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const WORD: &[u8] = b"hello";
const MOMENT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(30);

fn key() -> JobKey {
    JobKey::from_entropy([5; 32])
}

fn registry() -> Tunnel {
    let answer: AnswerFn = Box::new(|question| Some([b"re: ", &question[..]].concat()));
    Tunnel::new(key(), Some((HERE, PortRange::default())), Some(answer)).unwrap()
}

fn address(tunnel: &Tunnel) -> SocketAddr {
    SocketAddr::new(HERE, tunnel.port())
}

/// A server that sends a word at once and then echoes everything, on this port of all addresses.
fn echo(port: u16) {
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).unwrap();
    listen(&socket, 16).unwrap();
    let listener = TcpListener::from(socket);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                back.write_all(WORD).unwrap();
                let _ = io::copy(&mut stream, &mut back);
                let _ = back.shutdown(Shutdown::Write);
            });
        }
    });
}

fn exchange(path: &Path, length: usize) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LONG))?;
    let mut writing = stream.try_clone()?;
    let sent: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
    let sender = std::thread::spawn(move || {
        let _ = writing.write_all(&sent);
        let _ = writing.shutdown(Shutdown::Write);
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    sender.join().unwrap();
    Ok(received)
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ronde-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

#[test]
fn a_server_is_reached_locally_and_remotely_and_by_nobody_else() {
    let folder = folder("tunnel");
    let owner = Tunnel::new(key(), Some((HERE, PortRange::default())), None).unwrap();
    let port = owner.reserve().unwrap();
    echo(port);
    owner.serve("worker-3", port, &folder.join("here")).unwrap();
    let mut other = Tunnel::new(key(), None, None).unwrap();
    assert_eq!(other.port(), 0);
    other.reach("worker-3", &folder.join("there"), vec![address(&owner)]).unwrap();
    other.reach("worker-4", &folder.join("nobody"), vec![address(&owner)]).unwrap();
    let outsider = Tunnel::new(JobKey::from_entropy([6; 32]), None, None).unwrap();
    outsider.reach("worker-3", &folder.join("outsider"), vec![address(&owner)]).unwrap();
    for length in [0, 1, 2, 3, 4, 5, 100, 3_000_000] {
        let sent = (0..length).map(|index| (index * 7) as u8);
        let expected: Vec<u8> = WORD.iter().copied().chain(sent).collect();
        assert!(exchange(&folder.join("here"), length).unwrap() == expected);
        assert!(exchange(&folder.join("there"), length).unwrap() == expected);
        // A rejected caller sees an error or the end of the stream.
        for wrong in ["nobody", "outsider"] {
            assert!(exchange(&folder.join(wrong), length).unwrap_or_default().is_empty());
        }
    }
    for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)] {
        assert!(TcpStream::connect_timeout(&SocketAddr::from((ip, port)), MOMENT).is_err());
    }
    // A retired tunnel accepts no new connections, but open ones continue; those of its own process
    // do not make `linger` wait.
    let retired = Tunnel::new(key(), None, None).unwrap();
    retired.reach("worker-3", &folder.join("retired"), vec![address(&owner)]).unwrap();
    let mut continuing = UnixStream::connect(folder.join("retired")).unwrap();
    continuing.read_exact(&mut [0; WORD.len()]).unwrap();
    retired.retire();
    assert!(UnixStream::connect(folder.join("retired")).is_err());
    continuing.write_all(b"x").unwrap();
    continuing.read_exact(&mut [0]).unwrap();
    let before = Instant::now();
    retired.linger(LONG);
    assert!(before.elapsed() < LONG);
    drop(retired);
    // Closing a tunnel ends the connections through it.
    let mut open = UnixStream::connect(folder.join("there")).unwrap();
    open.read_exact(&mut [0; WORD.len()]).unwrap();
    other.close();
    assert!(matches!(open.read(&mut [0]), Ok(0) | Err(_)));
    assert!(!folder.join("there").exists());
    drop((owner, outsider));
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn many_idle_connections_keep_nobody_out() {
    let registry = registry();
    let idle: Vec<_> = (0..200).map(|_| TcpStream::connect(address(&registry)).unwrap()).collect();
    for _ in 0..5 {
        let (answer, own) = ask(&key(), address(&registry), b"who?", LONG).unwrap();
        assert_eq!((answer.as_slice(), own), (&b"re: who?"[..], HERE));
    }
    drop(idle);
    let wrong = ask(&JobKey::from_entropy([6; 32]), address(&registry), b"who?", LONG);
    assert!(wrong.is_err());
}

#[test]
fn a_slow_caller_is_cut_off() {
    let registry = registry();
    let mut slow = TcpStream::connect(address(&registry)).unwrap();
    let start = Instant::now();
    // The beginning of a first message, then a byte now and then; no byte may restart the timeout.
    slow.write_all(&[48, 0]).unwrap();
    slow.set_read_timeout(Some(MOMENT)).unwrap();
    while slow.write_all(&[1]).is_ok() && !matches!(slow.read(&mut [0]), Ok(0)) {
        assert!(start.elapsed() < LONG, "a slow caller is never cut off");
    }
    assert!(start.elapsed() > MOMENT, "it was cut off for another reason");
}
