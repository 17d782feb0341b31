//! The house rules as tables: which room may use which, and what it may not hold.
//!
//! This is the file to edit when a rule changes; how a rule is checked stands in `rules`. A line is
//! added here in the change that needs it, with the argument for it in that change's description.

/// Which of our crates each crate may depend on. Tests may also use `testkit`.
pub(crate) const CRATE_ARROWS: &[(&str, &[&str])] = &[
    ("control", &[]),
    ("core", &["control"]),
    ("launch", &["control"]),
    ("cli", &["control", "launch"]),
    // Under another launcher, rank 0 keeps the rendezvous, which is `launch`'s.
    ("py", &["control", "core", "launch", "cli"]),
    ("tensorflow", &[]),
    ("testkit", &["control", "core", "launch"]),
];

/// Which modules of `core` each of its modules may name; a module always may name itself.
pub(crate) const CORE_ARROWS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("watch", &["error"]),
    ("buffer", &["error"]),
    ("reduce", &["error", "buffer"]),
    ("transport", &["error", "buffer"]),
    ("group", &["error", "buffer", "transport"]),
    // The tunnel of a data service: connections, and nothing of tensors.
    ("tunnel", &["transport"]),
    ("collective", &["error", "buffer", "reduce", "transport", "group"]),
    ("engine", &["error", "watch", "buffer", "reduce", "transport", "group", "collective"]),
];

/// Crates of others that a crate of ours may not depend on; what only its tests use is free.
pub(crate) const FORBIDDEN_DEPENDENCIES: &[(&str, &[&str], &str)] = &[
    ("control", &["rustix", "tokio", "tracing", "pyo3"], "decisions are pure: no I/O, no clock"),
    ("core", &["anyhow", "axum", "hyper", "pyo3", "tokio"], "the data plane has its own threads"),
    ("launch", &["anyhow", "half", "pyo3"], "the launcher knows no tensors and no Python"),
    ("py", &["anyhow", "tokio"], "the binding translates, it decides nothing"),
];

/// Words that the code of a room may not hold, whatever it calls them by.
pub(crate) const FORBIDDEN_WORDS: &[(&str, &[&str], &str)] = &[
    (
        "crates/control/src/",
        &[
            "TcpListener",
            "TcpStream",
            "UdpSocket",
            "UnixStream",
            "ToSocketAddrs",
            "std::env",
            "std::fs",
            "std::process",
            "std::thread",
            "Instant::now",
            "SystemTime",
            "async",
            "tokio",
        ],
        "decisions are pure: pass in what was read, and the time",
    ),
    (
        "crates/core/src/",
        &["async", "tokio", "std::process::Command", "Command::new"],
        "the data plane runs no async runtime and starts no process; that is `launch`",
    ),
];

/// Rooms whose `lib.rs` forbids unsafe code.
pub(crate) const SAFE_ROOMS: &[&str] = &["control", "launch", "cli"];

/// Where unsafe code may stand: the only list of it. An entry that ends in `/` is a folder.
pub(crate) const UNSAFE_PLACES: &[&str] = &[
    "crates/core/src/buffer/",
    "crates/core/src/reduce/",
    "crates/core/src/transport/shm/",
    // A signal handler: only whoever installs it can promise what it does.
    "crates/core/src/watch/signal.rs",
    // Socket filters are addresses in memory, and descriptors of another library mere numbers.
    "crates/core/src/tunnel/filter.rs",
    "crates/core/tests/models/",
    "crates/py/src/capsule.rs",
    // Calls a library of C that is found at run time.
    "crates/py/src/mpi.rs",
    // Names for C: that nobody else has them, no compiler can check.
    "crates/py/src/symbols.rs",
    // MXNet's engine calls functions by their addresses, and takes an exception of C++ for an error.
    "crates/py/src/mxnet/",
    // Functions of frameworks are found by name, and called by the signatures of their C interfaces.
    "crates/py/src/native/library.rs",
    "crates/py/src/tensor.rs",
    "crates/py/src/tensorflow/",
    // XLA calls functions by their addresses, with structures of its C interface.
    "crates/py/src/xla/",
    "crates/tensorflow/src/",
];

/// Lints of the workspace that other rules lean on, and how they must stand in `Cargo.toml`.
pub(crate) const LINTS: &[&str] = &[
    r#"unsafe_code = "deny""#,
    r#"unsafe_op_in_unsafe_fn = "deny""#,
    r#"undocumented_unsafe_blocks = "deny""#,
    r#"multiple_unsafe_ops_per_block = "deny""#,
    r#"missing_docs = "warn""#,
    r#"unwrap_used = "warn""#,
    r#"too_many_lines = "warn""#,
    r#"too_many_arguments = "warn""#,
    r#"fn_params_excessive_bools = "warn""#,
];

/// The thresholds of those lints, as they must stand in `clippy.toml`.
pub(crate) const THRESHOLDS: &[&str] =
    &["too-many-lines-threshold = 80", "too-many-arguments-threshold = 6"];

/// The most lines a source file may have.
pub(crate) const MOST_LINES: usize = 800;

/// Source files that may be longer, each with its reason in its opening paragraph.
pub(crate) const LONG_FILES: &[&str] = &[];

/// `ARCHITECTURE.md` stays shorter than this.
pub(crate) const ARCHITECTURE_LINES: usize = 250;

/// Words that say nothing about what a file holds.
pub(crate) const EMPTY_NAMES: &[&str] = &["utils", "common", "helpers", "manager", "base"];

/// Names that Horovod's users import, and which therefore stay.
pub(crate) const HOROVOD_NAMES: &[&str] = &[
    "python/horovod/common/",
    "python/horovod/data/data_loader_base.py",
    "python/horovod/runner/common/",
    "python/horovod/runner/util/",
];

/// Each framework and the folders under `python/horovod` that may import it; `_bench` measures
/// torch's own collectives beside ours, `_selftest` is a user of all, and Lightning is a framework on top
/// of torch.
pub(crate) const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("torch", &["torch", "lightning", "_bench", "_selftest"]),
    ("lightning", &["lightning"]),
    ("tensorflow", &["tensorflow", "keras", "_keras", "_selftest"]),
    ("keras", &["tensorflow", "keras", "_keras", "_selftest"]),
    ("jax", &["jax", "_selftest"]),
    ("mxnet", &["mxnet", "_selftest"]),
];

/// Marks of unfinished work. Written in two halves, so that this file does not break its own rule.
pub(crate) const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// What ties a file to one machine or to one package registry; in two halves for the same reason.
pub(crate) const PLACES: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("crates", ".io"), "a registry host: the tools know theirs"),
    (concat!("pypi", ".org"), "a registry host: the tools know theirs"),
    (concat!("python", "hosted.org"), "a registry host: the tools know theirs"),
    (concat!("npm", "js.org"), "a registry host: the tools know theirs"),
    (concat!("deb.", "debian.org"), "a registry host: the tools know theirs"),
    (concat!("download.", "pytorch.org"), "a registry host: the tools know theirs"),
];

/// Where Python may read or write variables of the environment. Everybody else asks `environment`, or
/// the native module, which has read them.
pub(crate) const ENVIRONMENT_PLACES: &[&str] = &[
    "python/horovod/common/environment.py",
    // Horovod's `env`, which sets what its caller names.
    "python/horovod/common/util.py",
    // PyTorch's own variables.
    "python/horovod/lightning/environment.py",
    // Horovod's question, which is about the variables of others, too.
    "python/horovod/runner/common/util/env.py",
    // The search path of programs.
    "python/horovod/runner/program.py",
    // The environment of a child process.
    "python/horovod/_bench/mpirun.py",
    "python/horovod/_selftest/__main__.py",
];

/// Ways to decide something by the text of an error.
pub(crate) const READING_ERRORS: &[&str] = &[
    "in str(",
    "in repr(",
    "str(error).",
    "error.args[",
    ".to_string().contains(",
    ".to_string().starts_with(",
    ".to_string().ends_with(",
];
