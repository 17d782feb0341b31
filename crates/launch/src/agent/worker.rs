//! Starts one worker.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ronde_control::settings::RONDE_HOST_ENV;
use ronde_control::wire::agent::{Exit, OutputStream, StartFailure, Terminal, WorkerSpec};
use ronde_control::{CUDA_VISIBLE_DEVICES, GpuShare, Worker};
use rustix::fs::{Access, access};
use rustix::process::Pid;
use tokio::net::unix::pipe;

use super::terminal;
use crate::hidden;

type WorkerEnv = Vec<(OsString, OsString)>;

/// The folder in which workers of this agent look for programs first, in its environment. A standing
/// agent names its own: `python` then means the one that is installed with it, although the rest of
/// the PATH is the launcher's.
pub(super) const OWN_PROGRAMS: &str = "RONDE_OWN_PROGRAMS";

/// A running worker, and the agent's ends of its pipes.
pub(super) struct RunningWorker {
    pub(super) pid: Pid,
    pub(super) outputs: Vec<(OutputStream, pipe::Receiver)>,
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) terminal: Option<OwnedFd>,
}

/// Starts a worker through the shim. If that fails, the error is the exit to report for it.
pub(super) fn start(program: &Path, spec: WorkerSpec) -> Result<RunningWorker, Exit> {
    let cwd = PathBuf::from(OsString::from_vec(spec.cwd));
    let argv: Vec<OsString> = spec.argv.into_iter().map(OsString::from_vec).collect();
    let listed = std::env::var(RONDE_HOST_ENV.name).unwrap_or_default();
    let own: WorkerEnv = own_names(spec.own, &listed).filter_map(own).collect();
    let env: WorkerEnv = spec
        .env
        .into_iter()
        .map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)))
        .filter(|(name, _)| own.iter().all(|(other, _)| other != name))
        .chain(own.iter().cloned())
        .collect();
    let env = match spec.gpus {
        Some(share) => with_gpus(env, share)?,
        None => env,
    };
    let env = match std::env::var_os(OWN_PROGRAMS).filter(|folder| !folder.is_empty()) {
        Some(folder) => with_programs(env, &folder),
        None => env,
    };
    if let Some(why) = unusable(&cwd) {
        let reason = format!("the directory `{}` {why}", cwd.display());
        return Err(not_started(StartFailure::Directory, reason));
    }
    let path = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    check(argv.first().map_or(OsStr::new(""), OsString::as_os_str), path, &cwd)?;
    let mut command = Command::new(program);
    command
        .arg(hidden::SHIM)
        .arg(std::process::id().to_string())
        .args(argv)
        .env_clear()
        .envs(env)
        .current_dir(cwd)
        .stdin(if spec.worker == Worker(0) { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let system = |error: io::Error| not_started(StartFailure::System, error.to_string());
    let terminal = spec.terminal.and_then(|terminal| attach(&mut command, terminal));
    let mut worker = spawn(&mut command).map_err(system)?;
    // If this process kept the descriptor, it would count as a writer and the output would never
    // end.
    drop(command);
    if let Some(terminal) = terminal {
        let readable = terminal.try_clone().and_then(pipe::Receiver::from_owned_fd_unchecked);
        worker.outputs.push((OutputStream::Stdout, readable.map_err(system)?));
        worker.terminal = Some(terminal);
    }
    Ok(worker)
}

/// Makes a worker look for programs in this folder first.
fn with_programs(mut env: WorkerEnv, folder: &OsStr) -> WorkerEnv {
    let place = env.iter().position(|(name, _)| name == "PATH");
    let rest = place.map(|place| env.swap_remove(place).1).unwrap_or_default();
    let mut path = folder.to_owned();
    if !rest.is_empty() {
        path.push(":");
        path.push(rest);
    }
    env.push(("PATH".into(), path));
    env
}

/// Limits a worker to its part of the GPUs that its environment lists.
fn with_gpus(mut env: WorkerEnv, share: GpuShare) -> Result<WorkerEnv, Exit> {
    let place = env.iter().position(|(name, _)| name == CUDA_VISIBLE_DEVICES);
    let listed = place.map(|place| env.swap_remove(place).1.to_string_lossy().into_owned());
    let visible = share.visible(listed.as_deref());
    let visible = visible.map_err(|reason| not_started(StartFailure::TooFewGpus, reason))?;
    env.push((CUDA_VISIBLE_DEVICES.into(), visible.into()));
    Ok(env)
}

/// Gives a worker its terminal and returns the agent's end. If the host has none left, the worker
/// keeps its pipes.
fn attach(command: &mut Command, Terminal { size, stderr }: Terminal) -> Option<OwnedFd> {
    let pair = terminal::open_pair(size).and_then(|(ours, theirs)| {
        let other = stderr.then(|| theirs.try_clone()).transpose()?;
        Ok((ours, theirs, other))
    });
    match pair {
        Ok((ours, theirs, other)) => {
            command.stdout(theirs);
            if let Some(other) = other {
                command.stderr(other);
            }
            Some(ours)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot open a terminal for a worker; it gets pipes");
            None
        }
    }
}

fn not_started(obstacle: StartFailure, reason: impl Into<String>) -> Exit {
    Exit::NotStarted { obstacle, reason: reason.into() }
}

/// The variables that belong to this host: those that the launcher names, and those `listed` here.
fn own_names(named: Vec<Vec<u8>>, listed: &str) -> impl Iterator<Item = OsString> {
    let listed = listed.split(',').map(str::trim).filter(|name| !name.is_empty());
    named.into_iter().map(OsString::from_vec).chain(listed.map(OsString::from))
}

/// A variable from this host's environment.
fn own(name: OsString) -> Option<(OsString, OsString)> {
    let value = std::env::var_os(&name)?;
    Some((name, value))
}

fn spawn(command: &mut Command) -> io::Result<RunningWorker> {
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().map(|end| (OutputStream::Stdout, OwnedFd::from(end)));
    let stderr = child.stderr.take().map(|end| (OutputStream::Stderr, OwnedFd::from(end)));
    let pipes = stdout.into_iter().chain(stderr);
    let outputs = pipes.map(|(stream, end)| Ok((stream, pipe::Receiver::from_owned_fd(end)?)));
    let stdin = child.stdin.take().map(OwnedFd::from);
    Ok(RunningWorker {
        pid: Pid::from_child(&child),
        outputs: outputs.collect::<io::Result<_>>()?,
        stdin: stdin.map(pipe::Sender::from_owned_fd).transpose()?,
        terminal: None,
    })
}

/// Looks a command up like `execvp`, to explain what is wrong with it.
fn check(command: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Result<(), Exit> {
    let name = command.display();
    if command.is_empty() {
        return Err(not_started(StartFailure::Missing, "the command is empty"));
    }
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![cwd.join(command)]
    } else {
        let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
        std::env::split_paths(path).map(|folder| cwd.join(folder).join(command)).collect()
    };
    // A file that we are not allowed to look at may exist.
    let present = |path: &&PathBuf| !matches!(path.try_exists(), Ok(false));
    let present: Vec<&PathBuf> = candidates.iter().filter(present).collect();
    let runs = |path: &&&PathBuf| path.is_file() && access(path.as_path(), Access::EXEC_OK).is_ok();
    if let Some(path) = present.iter().find(runs) {
        let Some(interpreter) = missing_interpreter(path) else { return Ok(()) };
        let reason = format!("`{name}` begins with `#!{interpreter}`, which does not exist");
        return Err(not_started(StartFailure::Missing, reason));
    }
    let denied = present.iter().find_map(|path| Some((path.display(), path.try_exists().err()?)));
    let (obstacle, reason) = match (denied, present.as_slice(), candidates.as_slice()) {
        (Some((path, error)), ..) => {
            (StartFailure::Denied, format!("`{path}` cannot be looked up: {error}"))
        }
        (None, [], [_]) => (StartFailure::Missing, format!("`{name}` does not exist")),
        (None, [], _) => (StartFailure::Missing, format!("`{name}` was not found in PATH")),
        (None, ..) => (StartFailure::NotExecutable, format!("`{name}` is not an executable file")),
    };
    Err(not_started(obstacle, reason))
}

/// The interpreter that a script names in its first line, if it does not exist.
fn missing_interpreter(script: &Path) -> Option<String> {
    let mut start = [0; 256];
    let length = std::fs::File::open(script).and_then(|mut file| file.read(&mut start)).ok()?;
    let line = start[..length].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let interpreter = line.split_whitespace().next()?;
    matches!(Path::new(interpreter).try_exists(), Ok(false)).then(|| interpreter.to_owned())
}

/// What is wrong with a working directory, if anything.
fn unusable(cwd: &Path) -> Option<String> {
    match cwd.metadata() {
        Ok(about) if !about.is_dir() => Some("is a file".into()),
        Ok(_) => access(cwd, Access::EXEC_OK).err().map(|_| "cannot be entered".into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("does not exist".into()),
        Err(error) => Some(format!("cannot be entered: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_of_a_standing_agent_come_first() {
        let env =
            |path: &str| vec![("PATH".into(), OsString::from(path)), ("X".into(), "1".into())];
        for (env, expected) in
            [(env("/bin:/usr/bin"), "/own:/bin:/usr/bin"), (env(""), "/own"), (vec![], "/own")]
        {
            let env = with_programs(env, OsStr::new("/own"));
            let path = env.iter().find(|(name, _)| name == "PATH");
            assert_eq!(path.map(|(_, value)| value.as_os_str()), Some(OsStr::new(expected)));
        }
    }

    #[test]
    fn commands_are_looked_up_as_a_shell_would() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode, text) in [
            ("run", 0o755, "#! /bin/sh -e\n"),
            ("text", 0o644, ""),
            ("lost", 0o755, "#!/no/such/python\n"),
        ] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let here = Some(folder.path().as_os_str());
        let code = |command: &str, path| match check(command.as_ref(), path, folder.path()) {
            Ok(()) => 0,
            Err(exit) => exit.code(),
        };
        assert_eq!(code("run", here), 0);
        assert_eq!(code("./run", None), 0);
        assert_eq!(code("sh", None), 0);
        assert_eq!(code("run", None), 127);
        assert_eq!(code("lost", here), 127);
        assert_eq!(code("./nothing", here), 127);
        assert_eq!(code("", here), 127);
        assert_eq!(code("/", here), 126);
        // Not even the superuser may execute a file without an executable bit.
        assert_eq!(code("text", here), 126);
    }

    #[test]
    fn variables_of_this_host_are_named_by_the_launcher_and_by_a_setting() {
        let names: Vec<_> = own_names(vec![b"HOME".into()], " NCCL_DEBUG,,WHERE ").collect();
        assert_eq!(names, ["HOME", "NCCL_DEBUG", "WHERE"]);
        assert_eq!(own_names(Vec::new(), "").count(), 0);
    }

    #[test]
    fn an_inaccessible_command_is_not_reported_as_missing() {
        // A name that is too long cannot be looked up by any user, just like a path without
        // permission.
        let long = "x".repeat(300);
        let Err(exit) = check(format!("./{long}").as_ref(), None, Path::new("/tmp")) else {
            panic!("it was found")
        };
        assert_eq!(exit.code(), 126);
        assert!(exit.to_string().contains("cannot be looked up: File name too long"), "{exit}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(unusable(file.path()), Some("is a file".into()));
        assert_eq!(unusable(Path::new("/no/such")), Some("does not exist".into()));
        let folder = Path::new("/tmp").join(&long);
        assert!(unusable(&folder).unwrap().starts_with("cannot be entered: File name too long"));
        assert_eq!(unusable(Path::new("/")), None);
    }
}
