//! Options of other launchers and their equivalents here, for users who come from them.

/// The launcher, the spellings of its option (`-` also matches `_`), and what to use instead, in
/// backticks, or why nothing is needed.
type OptionRow = (&'static str, &'static [&'static str], &'static str);

const ONE_COMMAND: &str = "one `horovodrun` starts the ranks on all hosts in `-H`, and they find each \
                           other";
const ALL_RANKS: &str = "`-np`, the number of processes on all hosts together";
const ONE_HOST_EACH: &str = "`-H node-a:4,node-b:4`, with the number of processes on each host";

const ROWS: &[OptionRow] = &[
    ("torchrun", &["--nproc-per-node"], ALL_RANKS),
    ("torchrun", &["--nnodes"], ONE_HOST_EACH),
    (
        "torchrun",
        &[
            "--node-rank",
            "--master-addr",
            "--master-port",
            "--rdzv-backend",
            "--rdzv-endpoint",
            "--rdzv-id",
            "--rdzv-conf",
            "--standalone",
            "--local-addr",
        ],
        ONE_COMMAND,
    ),
    ("torchrun", &["--max-restarts"], "`--reset-limit`, in a job with `--min-np`"),
    ("torchrun", &["--module"], "`-m`"),
    ("torchrun", &["--no-python"], "anything that is not a `.py` file is run directly"),
    (
        "torchrun",
        &["--log-dir", "--redirects", "-r", "--tee", "-t"],
        "`--output-filename DIRECTORY`",
    ),
    ("accelerate launch", &["--num-processes"], ALL_RANKS),
    ("accelerate launch", &["--num-machines"], ONE_HOST_EACH),
    (
        "accelerate launch",
        &["--machine-rank", "--main-process-ip", "--main-process-port", "--multi-gpu"],
        ONE_COMMAND,
    ),
    ("deepspeed", &["--num-gpus"], ALL_RANKS),
    ("deepspeed", &["--num-nodes", "--include"], ONE_HOST_EACH),
    ("mpirun", &["--host", "-host"], "`-H`"),
    ("mpirun", &["--machinefile", "-machinefile", "-f"], "`--hostfile`"),
    ("mpirun", &["--npernode", "-npernode", "-ppn", "--map-by", "-map-by"], ONE_HOST_EACH),
    ("mpirun", &["-x", "-genv"], "the ranks have the environment of `horovodrun`"),
    ("mpirun", &["--mca", "-mca"], "`--mpi-args`, in a job with `--mpi`"),
    ("mpirun", &["--bind-to", "-bind-to"], "`--binding-args`, in a job with `--mpi`"),
    (
        "mpirun",
        &["--oversubscribe", "--allow-run-as-root", "--tag-output", "-tag-output"],
        "it is the default here",
    ),
    ("srun", &["--ntasks"], ALL_RANKS),
    ("srun", &["--nodelist"], ONE_HOST_EACH),
];

/// Advice on an option of another launcher.
pub(crate) fn about(name: &str) -> Option<String> {
    let plain = name.replace('_', "-");
    let (launcher, _, instead) =
        ROWS.iter().find(|(_, names, _)| names.contains(&plain.as_str()))?;
    Some(match instead.starts_with('`') {
        true => format!("instead of `{launcher}`'s `{name}`, use {instead}"),
        false => format!("leave out `{launcher}`'s `{name}`: {instead}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::FLAGS;

    #[test]
    fn both_spellings_of_torchrun_are_known() {
        for name in ["--nproc_per_node", "--nproc-per-node"] {
            let advice = about(name).unwrap();
            assert!(
                advice.ends_with("use `-np`, the number of processes on all hosts together"),
                "{advice}"
            );
        }
        assert_eq!(
            about("--no-python").unwrap(),
            "leave out `torchrun`'s `--no-python`: anything that is not a `.py` file is run directly"
        );
        assert_eq!(about("--verbos"), None);
    }

    #[test]
    fn none_is_our_own_option_and_the_advice_names_only_known_ones() {
        let known = |name: &str| FLAGS.iter().any(|flag| flag.names.contains(&name));
        for (_, names, instead) in ROWS {
            assert!(!names.iter().any(|name| known(name)), "{names:?}");
            let words = instead.split(|c: char| !c.is_alphanumeric() && c != '-');
            for option in words.filter(|word| word.starts_with('-') && *word != "-m") {
                assert!(known(option), "{option}");
            }
        }
    }
}
