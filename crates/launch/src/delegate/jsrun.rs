//! `jsrun`, the launcher of LSF on IBM's clusters: hosts from LSF's variables, a file that assigns
//! cores to ranks, and the command line.

use std::ffi::OsString;
use std::path::Path;

use super::{DelegatedJob, LauncherCommand, exported};
use crate::hosts::{Host, Slot};

/// A host of an allocation and its cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, as the user wrote it.
    pub name: String,
    /// How many cores the job has there.
    pub cores: u32,
}

/// The hosts of an allocation, from LSF's variables; `None` if there is no allocation. The first of
/// several hosts, if it has one core, runs the batch script and gets no rank.
pub fn allocation(look_up: impl Fn(&str) -> Option<String>) -> Option<Vec<Node>> {
    look_up("LSB_JOBID")?;
    let text = look_up("LSB_MCPU_HOSTS")?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut nodes = Vec::new();
    for pair in words.chunks_exact(2) {
        let (name, cores) = (pair[0].to_owned(), pair[1].parse().ok()?);
        nodes.push(Node { name, cores });
    }
    if nodes.len() > 1 && nodes[0].cores == 1 {
        nodes.remove(0);
    }
    (!nodes.is_empty()).then_some(nodes)
}

/// Spreads ranks evenly over the hosts of an allocation.
pub fn hosts(nodes: &[Node], count: u32) -> Vec<Host> {
    let each = count.div_ceil(nodes.len().max(1) as u32).max(1);
    nodes.iter().map(|node| Host { name: node.name.clone(), user: None, slots: each }).collect()
}

/// The file that gives each rank its share of its host's cores.
pub fn resources(slots: &[Slot], nodes: &[Node]) -> String {
    let mut text = String::from("overlapping_rs: allow\ncpu_index_using: logical\n");
    for slot in slots {
        let cores = nodes.iter().find(|node| node.name == slot.host).map_or(1, |node| node.cores);
        let share = (cores / slot.local_size).max(1);
        let first = slot.local_rank * share;
        text += &format!(
            "\nrank: {}: {{ hostname: {}; cpu: {{{}-{}}} ; gpu: * ; mem: * }}",
            slot.rank.0,
            slot.host,
            first,
            first + share - 1
        );
    }
    text + "\n"
}

/// The command to run; `resources` is the path of the file that assigns cores to ranks.
pub fn line(order: &DelegatedJob, resources: &Path) -> LauncherCommand {
    let mut arguments: Vec<OsString> = match &order.binding {
        Some(binding) => binding.clone(),
        None => vec!["--erf_input".into(), resources.into()],
    };
    if let Some(path) = &order.output_filename {
        for option in ["--stdio_stdout", "--stdio_stderr"] {
            arguments.extend([OsString::from(option), path.into()]);
        }
    }
    if let Some(path) = &order.workdir {
        arguments.extend([OsString::from("--chdir"), path.into()]);
    }
    let mut extra = order.extra.clone();
    if order.tcp {
        extra.push("-tcp".into());
    }
    if !extra.is_empty() {
        arguments.extend(["--smpiargs".into(), extra.join(" ".as_ref())]);
    }
    arguments.extend(order.command.iter().cloned());
    LauncherCommand { program: "jsrun".into(), arguments, env: exported(order) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::assign;

    fn nodes(text: &str) -> Option<Vec<Node>> {
        allocation(|name| match name {
            "LSB_JOBID" => Some("7".into()),
            "LSB_MCPU_HOSTS" => Some(text.into()),
            _ => None,
        })
    }

    #[test]
    fn the_host_of_the_batch_script_gets_no_ranks() {
        let node = |name: &str, cores| Node { name: name.into(), cores };
        let two = vec![node("h1", 42), node("h2", 42)];
        assert_eq!(nodes("batch 1 h1 42 h2 42"), Some(two));
        assert_eq!(nodes("h1 4"), Some(vec![node("h1", 4)]));
        assert_eq!(nodes("h1 x"), None);
        assert_eq!(nodes(""), None);
        assert_eq!(allocation(|_| None), None);
    }

    #[test]
    fn each_rank_has_its_share_of_its_hosts_cores() {
        let nodes = nodes("batch 1 h1 8 h2 8").unwrap();
        let slots = assign(&hosts(&nodes, 4), 4).unwrap();
        assert_eq!(
            resources(&slots, &nodes),
            "overlapping_rs: allow\n\
             cpu_index_using: logical\n\
             \n\
             rank: 0: { hostname: h1; cpu: {0-3} ; gpu: * ; mem: * }\n\
             rank: 1: { hostname: h1; cpu: {4-7} ; gpu: * ; mem: * }\n\
             rank: 2: { hostname: h2; cpu: {0-3} ; gpu: * ; mem: * }\n\
             rank: 3: { hostname: h2; cpu: {4-7} ; gpu: * ; mem: * }\n"
        );
    }

    #[test]
    fn the_command_line_names_the_resource_file() {
        let order = DelegatedJob {
            command: vec!["python".into(), "x.py".into()],
            output_filename: Some("/logs".into()),
            extra: vec!["-gpu".into()],
            tcp: true,
            ..DelegatedJob::default()
        };
        assert_eq!(
            line(&order, Path::new("/tmp/erf")).to_text(),
            "jsrun --erf_input /tmp/erf --stdio_stdout /logs --stdio_stderr /logs --smpiargs '-gpu \
             -tcp' python x.py"
        );
    }
}
