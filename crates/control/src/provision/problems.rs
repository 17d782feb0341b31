//! What keeps a host from being used, and what to do about it.

use super::{DockerState, HostFacts, KeyState, OLDEST_PYTHON, PortState, Runtime, Wanted};
use crate::host_setup::HostProblem;

/// Clocks that differ by more than this are worth a warning.
const CLOCK_SECONDS: u64 = 30;

/// The file of the agents' key, below the home directory.
const KEY: &str = "~/.config/ronde/agent.key";

/// Everything that stands in the way.
pub(super) fn of(wanted: &Wanted, facts: &HostFacts) -> Vec<HostProblem> {
    let mut problems = Vec::new();
    if !facts.is_writable {
        problems.push(HostProblem::new(
            format!("`{}` may not write to the home directory `{}`", facts.user, facts.home),
            "log in as a user with a home directory of their own, as in `-H me@node-a`",
        ));
    }
    problems.extend(key(wanted, facts));
    match &wanted.runtime {
        Runtime::Environment { digest } if !facts.environments.contains(digest) => {
            problems.extend(python(facts));
            problems.extend(space(wanted, facts));
            problems.extend(uv(wanted, facts));
        }
        Runtime::Environment { .. } => {}
        Runtime::Container { .. } => problems.extend(docker(facts)),
    }
    problems.extend(port(wanted, facts));
    problems
}

/// What the user should know, though it stands in nobody's way.
pub(super) fn warnings(wanted: &Wanted, facts: &HostFacts) -> Vec<HostProblem> {
    let apart = facts.unix_seconds.map_or(0, |there| there.abs_diff(wanted.unix_seconds));
    let ahead = facts.unix_seconds > Some(wanted.unix_seconds);
    let clock = (apart > CLOCK_SECONDS).then(|| {
        HostProblem::new(
            format!("its clock is {apart} s {}", if ahead { "ahead" } else { "behind" }),
            "start a time service there, for example `systemd-timesyncd` or `chrony`",
        )
    });
    clock.into_iter().collect()
}

fn key(wanted: &Wanted, facts: &HostFacts) -> Option<HostProblem> {
    match &facts.key {
        KeyState::Missing => None,
        KeyState::Digest(digest) if Some(digest) == wanted.key_digest.as_ref() => None,
        KeyState::Digest(_) => Some(HostProblem::new(
            format!("it has a different agents' key in `{KEY}`"),
            "it may belong to another cluster, so it is left alone: run `ronde down` from there, \
             or move the file away if nothing uses it",
        )),
        KeyState::Unusable => Some(HostProblem::new(
            format!("other users can read `{KEY}` there, or you cannot"),
            format!("if the key is yours, run `chmod 600 {KEY}` there"),
        )),
    }
}

fn python(facts: &HostFacts) -> Option<HostProblem> {
    let (major, minor) = OLDEST_PYTHON;
    match (&facts.python, facts.python_version) {
        (Some(_), Some(version)) if version >= OLDEST_PYTHON => None,
        (Some(path), Some((has_major, has_minor))) => Some(HostProblem::new(
            format!("its Python is {has_major}.{has_minor} (`{path}`)"),
            format!("install Python {major}.{minor} or newer there, or use `--docker IMAGE`"),
        )),
        _ => Some(HostProblem::new(
            "there is no `python3` in the PATH of its ssh sessions",
            format!("install Python {major}.{minor} or newer there, or use `--docker IMAGE`"),
        )),
    }
}

fn space(wanted: &Wanted, facts: &HostFacts) -> Option<HostProblem> {
    let free = facts.free_kib.filter(|free| *free < wanted.space_kib)?;
    Some(HostProblem::new(
        format!(
            "only {} MiB are free in `{}`, and the installation needs {} MiB",
            free >> 10,
            facts.home,
            wanted.space_kib.div_ceil(1 << 10)
        ),
        "free some space there",
    ))
}

fn uv(wanted: &Wanted, facts: &HostFacts) -> Option<HostProblem> {
    if facts.uv.is_some() || wanted.uv_machine.as_ref() == Some(&facts.machine) {
        return None;
    }
    let machine = &facts.machine;
    Some(match &wanted.uv_machine {
        None => HostProblem::new(
            "there is no `uv`, which installs the packages, neither there nor here",
            "install it here, and it is sent to the hosts: `pip install uv`",
        ),
        Some(_) => HostProblem::new(
            format!("it has no `uv`, and that of this machine does not run on {machine}"),
            "install it there: `pip install uv`",
        ),
    })
}

fn docker(facts: &HostFacts) -> Option<HostProblem> {
    let user = &facts.user;
    match &facts.docker {
        DockerState::Works { gives_gpus: false } if facts.gpus > 0 => Some(HostProblem::new(
            "it has GPUs, but Docker cannot give them to containers",
            "install the NVIDIA Container Toolkit there and run `nvidia-ctk runtime configure`",
        )),
        DockerState::Works { .. } => None,
        DockerState::Missing | DockerState::Unknown => Some(HostProblem::new(
            "there is no `docker` in the PATH of its ssh sessions",
            "install Docker there, or leave out `--docker` to run without containers",
        )),
        DockerState::Denied => Some(HostProblem::new(
            format!("`{user}` may not use Docker there"),
            format!(
                "run `sudo usermod -aG docker {user}` there, which gives that user root's power"
            ),
        )),
        DockerState::Down(said) => Some(HostProblem::new(
            format!("Docker does not work there: {said}"),
            "start it there: `sudo systemctl start docker`",
        )),
    }
}

fn port(wanted: &Wanted, facts: &HostFacts) -> Option<HostProblem> {
    let PortState::Taken(owner) = &facts.port else { return None };
    let owner = owner.as_deref().unwrap_or("another process");
    Some(HostProblem::new(
        format!("port {} is in use by {owner}", wanted.port),
        "stop that process, or choose another port with `--port`",
    ))
}
