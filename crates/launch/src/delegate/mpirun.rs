//! Command lines for the `mpirun` of each MPI implementation.

use std::ffi::{OsStr, OsString};

use ronde_control::counted;

use super::{DelegatedJob, LauncherCommand, exported};
use crate::hosts::Host;
use crate::reach::HostProblem;

/// With at least this many hosts, Open MPI starts its daemons all at once instead of along a tree.
const MANY_HOSTS: usize = 64;

/// The MPI implementation that an `mpirun` belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Open MPI.
    OpenMpi,
    /// IBM Spectrum MPI, based on Open MPI.
    Spectrum,
    /// MPICH, MVAPICH and others that use Hydra.
    Mpich,
    /// Intel MPI, which also uses Hydra.
    Intel,
}

impl Flavor {
    /// Detects the implementation from the output of `mpirun --version`.
    pub fn of(version: &str) -> Option<Flavor> {
        let says = |word: &str| version.contains(word);
        match () {
            () if says("IBM Spectrum MPI") => Some(Flavor::Spectrum),
            () if says("Open MPI") || says("OpenRTE") => Some(Flavor::OpenMpi),
            () if says("Intel(R) MPI") => Some(Flavor::Intel),
            () if says("HYDRA") || says("MPICH") || says("MVAPICH") => Some(Flavor::Mpich),
            () => None,
        }
    }
}

/// The command to run, or what to do if it cannot reach these hosts.
pub fn line(order: &DelegatedJob, flavor: Flavor) -> Result<LauncherCommand, HostProblem> {
    one_user(order)?;
    let mut env = exported(order);
    let mut arguments = match flavor {
        Flavor::OpenMpi | Flavor::Spectrum => open_mpi(order, flavor, &env),
        Flavor::Mpich | Flavor::Intel => hydra(order, flavor)?,
    };
    if let (Flavor::Mpich, Some(ssh)) = (flavor, ssh(order)) {
        env.push(("HYDRA_LAUNCHER_EXTRA_ARGS".into(), ssh));
    }
    arguments.0.extend(order.extra.iter().chain(&order.command).cloned());
    Ok(LauncherCommand { program: "mpirun".into(), arguments: arguments.0, env })
}

/// A list of arguments.
#[derive(Default)]
struct ArgumentList(Vec<OsString>);

impl ArgumentList {
    fn add<W: Into<OsString>>(&mut self, words: impl IntoIterator<Item = W>) {
        self.0.extend(words.into_iter().map(Into::into));
    }
}

fn open_mpi(order: &DelegatedJob, flavor: Flavor, env: &[(OsString, OsString)]) -> ArgumentList {
    let mut words = ArgumentList::default();
    if flavor == Flavor::Spectrum && order.tcp {
        words.add(["-tcp"]);
    }
    words.add(["--allow-run-as-root", "--tag-output"]);
    if order.timestamps {
        words.add(["--timestamp-output"]);
    }
    let hosts = order.hosts.iter().map(|host| format!("{}:{}", host.name, host.slots));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    words.add(["-np".to_owned(), order.count.to_string(), "-H".to_owned(), hosts]);
    match (&order.binding, flavor) {
        (Some(binding), _) => words.add(binding.iter().cloned()),
        (None, Flavor::Spectrum) => words.add(["--bind-to", "socket", "--map-by", "socket"]),
        (None, _) => words.add(["--bind-to", "none", "--map-by", "slot"]),
    }
    if flavor == Flavor::OpenMpi {
        words.add(["--mca", "pml", "ob1", "--mca", "btl", "^openib"]);
    }
    if let Some(ssh) = ssh(order) {
        words.add(["--mca".into(), "plm_rsh_args".into(), ssh]);
    }
    if order.hosts.len() >= MANY_HOSTS {
        let all = order.hosts.len().to_string();
        words.add(["--mca", "plm_rsh_no_tree_spawn", "true", "--mca", "plm_rsh_num_concurrent"]);
        words.add([all]);
    }
    if !order.interfaces.is_empty() {
        words.add(["--mca".into(), "btl_tcp_if_include".into(), order.interfaces.join(",")]);
    }
    if let Some(path) = &order.output_filename {
        words.add([OsString::from("--output-filename"), path.into()]);
    }
    if let Some(path) = &order.workdir {
        words.add([OsString::from("--wdir"), path.into()]);
    }
    // Names only: anyone who lists processes could read the values.
    for (name, _) in env {
        // `mpirun` itself passes on the variables that it sets or reads.
        let text = name.to_string_lossy();
        if !["OMPI_", "PMIX_", "PRTE_"].iter().any(|start| text.starts_with(start)) {
            words.add(["-x".as_ref(), name.as_os_str()]);
        }
    }
    words
}

fn hydra(order: &DelegatedJob, flavor: Flavor) -> Result<ArgumentList, HostProblem> {
    let mut words = ArgumentList::default();
    words.add(["-l", "-np"]);
    words.add([order.count.to_string()]);
    if let [first, others @ ..] = order.hosts.as_slice() {
        if let Some(other) = others.iter().find(|other| other.slots != first.slots) {
            return Err(HostProblem::new(
                format!(
                    "this `mpirun` gives every host the same number of ranks, but `{}` offers {} \
                     and `{}` offers {}",
                    first.name,
                    counted(first.slots, "slot"),
                    other.name,
                    other.slots
                ),
                "give every host the same number of slots, or use Open MPI's `mpirun`",
            ));
        }
        let names: Vec<&str> = order.hosts.iter().map(|host| host.name.as_str()).collect();
        words.add(["-ppn".to_owned(), first.slots.to_string(), "-hosts".into(), names.join(",")]);
    }
    // MPICH takes the same arguments in a variable.
    if let (Flavor::Intel, Some(ssh)) = (flavor, ssh(order)) {
        words.add(["-bootstrap=ssh".into(), "-bootstrap-exec-args".into(), ssh]);
    }
    if let Some(interface) = order.interfaces.first() {
        words.add(["-iface", interface]);
    }
    if let Some(path) = &order.output_filename {
        words.add([OsString::from("-outfile-pattern"), path.into()]);
    }
    if let Some(path) = &order.workdir {
        words.add([OsString::from("-wdir"), path.into()]);
    }
    if let Some(binding) = &order.binding {
        words.add(binding.iter().cloned());
    }
    // The environment of mpirun itself, which is the one we give it.
    words.add(["-genvall"]);
    Ok(words)
}

/// The hosts to log in to.
fn remote(order: &DelegatedJob) -> impl Iterator<Item = &Host> {
    order.hosts.iter().filter(|host| host.name != "localhost")
}

/// Rejects hosts that need different users.
fn one_user(order: &DelegatedJob) -> Result<(), HostProblem> {
    let Some(first) = remote(order).next() else { return Ok(()) };
    let Some(other) = remote(order).find(|host| host.user != first.user) else { return Ok(()) };
    let (first, other) = (&first.name, &other.name);
    Err(HostProblem::new(
        format!(
            "`mpirun` logs in to all hosts as one user, but `{first}` and `{other}` are given \
             different ones"
        ),
        "set the users in `~/.ssh/config`, or leave `--mpi` out",
    ))
}

/// The options for ssh, if it is used: above all, never to prompt.
fn ssh(order: &DelegatedJob) -> Option<OsString> {
    let first = remote(order).next()?;
    let mut words = ArgumentList::default();
    for option in order.ssh.unasking() {
        words.add(["-o".to_owned(), option]);
    }
    if let Some(user) = &first.user {
        words.add(["-l", user]);
    }
    words.add(order.ssh.words());
    Some(words.0.join(OsStr::new(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;
    use crate::reach::ssh::{SshOptions, Strictness};
    use shlex::split;

    fn order(hosts: &str, command: &str) -> DelegatedJob {
        DelegatedJob {
            count: 4,
            hosts: hosts::parse(hosts).unwrap(),
            command: split(command).unwrap().into_iter().map(Into::into).collect(),
            env: vec![("PATH".into(), "/bin".into()), ("OMPI_MCA_x".into(), "1".into())],
            ..DelegatedJob::default()
        }
    }

    fn text(order: &DelegatedJob, flavor: Flavor) -> String {
        line(order, flavor).unwrap().to_text()
    }

    #[test]
    fn the_flavor_is_detected_from_the_version() {
        for (version, expected) in [
            ("mpirun (Open MPI) 4.1.4\n", Some(Flavor::OpenMpi)),
            ("mpirun (OpenRTE) 4.0.0", Some(Flavor::OpenMpi)),
            ("mpirun (IBM Spectrum MPI) 10.3.1.02rtm0", Some(Flavor::Spectrum)),
            ("HYDRA build details:\n    Version:  5.0.2", Some(Flavor::Mpich)),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Some(Flavor::Intel)),
            ("something else", None),
        ] {
            assert_eq!(Flavor::of(version), expected, "{version}");
        }
    }

    #[test]
    fn open_mpi_gets_hosts_and_the_names_of_variables() {
        assert_eq!(
            text(&order("localhost:4", "python 'my train.py'"), Flavor::OpenMpi),
            "mpirun --allow-run-as-root --tag-output -np 4 -H localhost:4 --bind-to none --map-by slot \
             --mca pml ob1 --mca btl '^openib' -x PATH -x PYTHONUNBUFFERED python 'my train.py'"
        );
    }

    #[test]
    fn every_option_has_its_argument_in_open_mpi() {
        let order = DelegatedJob {
            interfaces: vec!["eth0".into(), "eth1".into()],
            ssh: SshOptions {
                port: Some(12345),
                identity: Some("/k".into()),
                strict: Strictness::Strict,
                time_limit: 0,
            },
            output_filename: Some("/logs".into()),
            timestamps: true,
            extra: vec!["--oversubscribe".into()],
            binding: Some(vec!["--bind-to".into(), "core".into()]),
            ..order("a:4", "x")
        };
        assert_eq!(
            text(&order, Flavor::OpenMpi),
            "mpirun --allow-run-as-root --tag-output --timestamp-output -np 4 -H a:4 --bind-to core \
             --mca pml ob1 --mca btl '^openib' --mca plm_rsh_args '-o BatchMode=yes -o \
             StrictHostKeyChecking=yes -p 12345 -i /k' --mca btl_tcp_if_include 'eth0,eth1' --output-filename /logs -x NCCL_SOCKET_IFNAME -x PATH -x PYTHONUNBUFFERED \
             --oversubscribe x"
        );
        let many: Vec<String> = (0..64).map(|host| format!("h{host}:1")).collect();
        let command_line = text(&self::order(&many.join(","), "x"), Flavor::OpenMpi);
        let tree = "--mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64";
        assert!(command_line.contains(tree), "{command_line}");
    }

    #[test]
    fn ssh_logs_in_as_the_user_of_the_hosts() {
        let command_line = text(&order("me@a:2,me@b:2", "x"), Flavor::OpenMpi);
        assert!(command_line.contains("-H 'a:2,b:2'"), "{command_line}");
        assert!(command_line.contains("StrictHostKeyChecking=accept-new -l me'"), "{command_line}");
        for hosts in ["me@a:2,you@b:2", "a:2,me@b:2"] {
            let error = line(&order(hosts, "x"), Flavor::OpenMpi).unwrap_err();
            assert!(error.reason.contains("as one user"), "{error:?}");
        }
        assert!(line(&order("localhost:2,me@b:2", "x"), Flavor::OpenMpi).is_ok());
    }

    #[test]
    fn spectrum_binds_to_sockets_and_has_a_tcp_option() {
        let order = DelegatedJob { tcp: true, ..order("localhost:4", "x") };
        assert_eq!(
            text(&order, Flavor::Spectrum),
            "mpirun -tcp --allow-run-as-root --tag-output -np 4 -H localhost:4 --bind-to socket --map-by \
             socket -x NCCL_IB_DISABLE -x PATH -x PYTHONUNBUFFERED x"
        );
    }

    #[test]
    fn hydra_gets_the_same_options_in_its_own_syntax() {
        let order = DelegatedJob {
            interfaces: vec!["eth0".into()],
            ssh: SshOptions { port: Some(22), ..SshOptions::default() },
            output_filename: Some("/logs".into()),
            extra: vec!["-verbose".into()],
            ..order("a:2,b:2", "x y")
        };
        let ssh = "-o BatchMode=yes -o StrictHostKeyChecking=accept-new -p 22";
        assert_eq!(
            text(&order, Flavor::Intel),
            format!(
                "mpirun -l -np 4 -ppn 2 -hosts 'a,b' '-bootstrap=ssh' -bootstrap-exec-args '{ssh}' \
                 -iface eth0 -outfile-pattern /logs -genvall -verbose x y"
            )
        );
        assert_eq!(
            text(&order, Flavor::Mpich),
            "mpirun -l -np 4 -ppn 2 -hosts 'a,b' -iface eth0 -outfile-pattern /logs -genvall -verbose \
             x y"
        );
        let env = line(&order, Flavor::Mpich).unwrap().env;
        assert!(env.contains(&("HYDRA_LAUNCHER_EXTRA_ARGS".into(), ssh.into())));
        let error = line(&self::order("a:1,b:3", "x"), Flavor::Mpich).unwrap_err();
        assert!(error.reason.ends_with("`a` offers 1 slot and `b` offers 3"), "{error:?}");
    }
}
