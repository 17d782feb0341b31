//! Recognizes lines of error messages that are useless to a user, and cuts long lines.

use super::WIDTH;

/// Prefixes of lines that only repeat or explain what frameworks always print.
const NOISE: &[&str] = &[
    "\"\"\"",
    "[[{{",
    "frame #",
    "For simplicity, JAX has removed its internal frames",
    "The stack trace below excludes JAX-internal frames",
    "The preceding is the original exception that occurred, unmodified",
    "For further information visit https://errors.pydantic.dev",
    "CUDA kernel errors might be asynchronously reported",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Horovod has been shut down. This was caused by an exception on one of the ranks",
    "Will shutdown.",
    "Current thread 0x",
    "Thread 0x",
    "Python runtime state:",
    "Extension modules:",
    "[Previous line repeated",
    "@ 0x",
    "WARNING: All log messages before absl::InitializeLog()",
    "To enable the following instructions:",
];

/// Exceptions that carry a stack but no message.
const EMPTY_LINKS: &[&str] =
    &["JaxStackTraceBeforeTransformation", "SimplifiedTraceback", "UnfilteredStackTrace"];

/// Exceptions that carry the text of the next one from another process.
const ECHOES: &[&str] = &["RemoteTraceback", "_RemoteTraceback", "RankTraceback"];

/// Whether a trimmed line may be left out.
pub(super) fn is_noise(line: &str) -> bool {
    line.is_empty()
        || NOISE.iter().any(|start| line.starts_with(start))
        || line.chars().all(|c| matches!(c, '^' | '~' | '-' | '=' | '*' | ' '))
        || is_log(line)
}

/// Whether a line belongs to a log that was interleaved with the exception, like TensorFlow's:
/// `W0000 00:00:1794785191.904458   20687 local_rendezvous.cc:412] ...`.
fn is_log(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let (Some(level), Some(time)) = (words.next(), words.next()) else { return false };
    let digits = level.strip_prefix(['I', 'W', 'E']).unwrap_or_default();
    digits.len() == 4
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && time.bytes().filter(|byte| *byte == b':').count() == 2
}

/// Whether an exception of this class only carries a stack.
pub(super) fn is_empty_link(class: &str) -> bool {
    EMPTY_LINKS.contains(&class)
}

/// Whether an exception of this class only repeats another.
pub(super) fn is_echo(class: &str) -> bool {
    ECHOES.contains(&class)
}

/// Cuts a line that is too long.
pub(super) fn cut(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) if !line[end..].eq("…") => format!("{}…", &line[..end]),
        _ => line.to_owned(),
    }
}
