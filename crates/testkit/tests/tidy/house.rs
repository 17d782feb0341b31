//! The rules of the repository as tables: which crate or module may use which, and what it must not
//! contain.
//!
//! Edit this file when a rule changes; `rules` implements the checks. A line is added here in the
//! change that needs it, with the argument for it in that change's description.

/// Which of our crates each crate may depend on. Tests may also use `testkit`.
pub(crate) const CRATE_ARROWS: &[(&str, &[&str])] = &[
    ("control", &[]),
    // The stand-in is for its tests.
    ("core", &["control", "standin-gpu"]),
    ("launch", &["control"]),
    ("hub", &["control"]),
    ("cli", &["control", "launch", "hub"]),
    // Under another launcher, rank 0 runs the rendezvous, which is part of `launch`.
    ("py", &["control", "core", "launch", "cli"]),
    // It knows nothing of Ronde, only the interfaces of NVIDIA.
    ("standin-gpu", &[]),
    ("tensorflow", &[]),
    ("testkit", &["control", "core", "launch"]),
];

/// Which modules of `core` each of its modules may name, besides itself.
pub(crate) const CORE_ARROWS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("watch", &["error"]),
    ("buffer", &["error"]),
    ("reduce", &["error", "buffer"]),
    ("device", &["buffer", "reduce"]),
    ("transport", &["error", "buffer"]),
    ("group", &["error", "buffer", "transport"]),
    // The tunnel of a data service: connections, but no tensors.
    ("tunnel", &["transport"]),
    ("collective", &["error", "buffer", "reduce", "transport", "group"]),
    (
        "engine",
        &["error", "watch", "buffer", "reduce", "device", "transport", "group", "collective"],
    ),
];

/// External crates that a crate of ours must not depend on, except in its tests.
pub(crate) const FORBIDDEN_DEPENDENCIES: &[(&str, &[&str], &str)] = &[
    ("control", &["rustix", "tokio", "tracing", "pyo3"], "decisions are pure: no I/O, no clock"),
    ("core", &["anyhow", "axum", "hyper", "pyo3", "tokio"], "the data plane has its own threads"),
    ("launch", &["anyhow", "half", "pyo3"], "the launcher knows no tensors and no Python"),
    ("py", &["anyhow", "tokio"], "the binding translates, it decides nothing"),
];

/// Names that the code of a crate must not contain.
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

/// Crates whose `lib.rs` forbids unsafe code.
pub(crate) const SAFE_CRATES: &[&str] = &["control", "launch", "hub", "cli"];

/// The only files that may contain unsafe code. An entry that ends in `/` is a folder.
pub(crate) const UNSAFE_PLACES: &[&str] = &[
    "crates/core/src/buffer/",
    "crates/core/src/reduce/",
    "crates/core/src/transport/shm/",
    // A signal handler: the compiler cannot check what it does.
    "crates/core/src/watch/signal.rs",
    // Socket filters are raw memory, and a library's descriptors are plain numbers.
    "crates/core/src/tunnel/filter.rs",
    // The C interfaces of NVIDIA's driver and of NCCL.
    "crates/core/src/device/",
    "crates/core/tests/gpu/",
    "crates/core/tests/models/",
    "crates/py/src/capsule.rs",
    // Calls a C library that is loaded at run time.
    "crates/py/src/mpi.rs",
    // C symbols: the compiler cannot check that their names are unique.
    "crates/py/src/symbols.rs",
    // MXNet's engine calls functions by address, and expects errors as C++ exceptions.
    "crates/py/src/mxnet/",
    // Functions of frameworks are looked up by name, and called with the signatures of their C
    // interfaces.
    "crates/py/src/native/library.rs",
    "crates/py/src/tensor.rs",
    "crates/py/src/tensorflow/",
    // XLA calls functions by address, with structures of its C interface.
    "crates/py/src/xla/",
    // The C interfaces of NVIDIA's driver and of NCCL, and tests that call them as C does.
    "crates/standin-gpu/",
    "crates/tensorflow/src/",
];

/// Lints of the workspace that other rules rely on, as they must appear in `Cargo.toml`.
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

/// The thresholds of those lints, as they must appear in `clippy.toml`.
pub(crate) const THRESHOLDS: &[&str] =
    &["too-many-lines-threshold = 80", "too-many-arguments-threshold = 6"];

/// Maximum number of lines in a source file.
pub(crate) const MOST_LINES: usize = 800;

/// Source files that may be longer, each with the reason in its opening paragraph.
pub(crate) const LONG_FILES: &[&str] = &[];

/// `ARCHITECTURE.md` must be shorter than this.
pub(crate) const ARCHITECTURE_LINES: usize = 250;

/// Words that say nothing about the contents of a file.
pub(crate) const EMPTY_NAMES: &[&str] = &["utils", "common", "helpers", "manager", "base"];

/// Names that Horovod's users import, and which must stay.
pub(crate) const HOROVOD_NAMES: &[&str] = &[
    "python/horovod/common/",
    "python/horovod/data/data_loader_base.py",
    "python/horovod/ray/utils.py",
    "python/horovod/runner/common/",
    "python/horovod/runner/util/",
    "python/horovod/spark/common/",
];

/// Each framework and the folders under `python/horovod` that may import it. `_bench` compares our
/// collectives with torch's own, `_selftest` uses all frameworks, and Lightning builds on torch.
pub(crate) const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("torch", &["torch", "lightning", "spark/torch", "spark/lightning", "_bench", "_selftest"]),
    ("lightning", &["lightning", "spark/lightning"]),
    ("tensorflow", &["tensorflow", "keras", "spark/keras", "_keras", "_selftest"]),
    ("keras", &["tensorflow", "keras", "spark/keras", "_keras", "_selftest"]),
    ("jax", &["jax", "_selftest"]),
    ("mxnet", &["mxnet", "_selftest"]),
];

/// Marks of unfinished work, in two halves so that this file does not break its own rule.
pub(crate) const UNFINISHED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];

/// Text that ties a file to one machine or to one package registry, in two halves for the same
/// reason.
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

/// Paths that are the same in every container of our images, where people mount their keys.
pub(crate) const PLACES_IN_IMAGES: &[&str] = &[concat!("/ro", "ot/.ssh")];

/// Where Python may read or write environment variables. All other code uses `environment`, or the
/// native module, which has read them.
pub(crate) const ENVIRONMENT_PLACES: &[&str] = &[
    "python/horovod/common/environment.py",
    // Horovod's `env`, which sets the variables that its caller names.
    "python/horovod/common/util.py",
    // PyTorch's own variables.
    "python/horovod/lightning/environment.py",
    // Part of Horovod's API, and about variables of others as well.
    "python/horovod/runner/common/util/env.py",
    // The search path for programs.
    "python/horovod/runner/program.py",
    // The environment of a child process.
    "python/horovod/_bench/mpirun.py",
    "python/horovod/_selftest/__main__.py",
];

/// Code that makes decisions based on the text of an error.
pub(crate) const READING_ERRORS: &[&str] = &[
    "in str(",
    "in repr(",
    "str(error).",
    "error.args[",
    ".to_string().contains(",
    ".to_string().starts_with(",
    ".to_string().ends_with(",
];
