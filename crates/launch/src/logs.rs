//! Splits the output of ranks into lines, each with a prefix that names its rank.
//!
//! Every line gets Horovod's prefix, `[2]<stderr>:`, and is emitted whole, so that lines of
//! different ranks never mix and no character is split. A carriage return ends a line too, for
//! progress bars. The bytes themselves pass through unchanged, whatever their encoding. The prefix
//! can be preceded by the time, in the format of C's `asctime`, as in Horovod.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use ronde_control::wire::agent::OutputStream;
use ronde_control::{Rank, Worker};

/// Whether lines are prefixed with the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Prefix each line with the time.
    Shown,
    /// No timestamps.
    #[default]
    Left,
}

/// The text before every prefix: the time, or nothing.
#[derive(Debug, Default)]
pub struct Stamp {
    times: Times,
    second: i64,
    text: String,
}

impl Stamp {
    /// A stamp that shows the time if `times` says so.
    pub fn new(times: Times) -> Stamp {
        Stamp { times, second: i64::MIN, text: String::new() }
    }

    /// The text right now.
    pub fn text(&mut self) -> &str {
        if self.times == Times::Shown {
            let now = jiff::Timestamp::now();
            // Looking up the time zone for every line would cost more than the line itself.
            if now.as_second() != self.second {
                self.second = now.as_second();
                let local = now.to_zoned(jiff::tz::TimeZone::system());
                self.text = local.strftime("%a %b %e %H:%M:%S %Y").to_string();
            }
        }
        &self.text
    }
}

/// The local time of day, such as `14:03:59`, of a time since 1970.
pub fn time_of_day(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    let moment = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    moment.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// The local time of day.
pub fn time_of_day_now() -> String {
    time_of_day(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// A longer line is emitted in pieces.
const LONGEST: usize = 1 << 20;

/// The unfinished lines of all workers.
#[derive(Default)]
pub struct Lines {
    partial: HashMap<(Worker, OutputStream), Vec<u8>>,
    /// Ranks to show for workers whose number is not their rank.
    names: HashMap<Worker, Rank>,
    /// The stream that wrote last, if it ended with a carriage return: a line feed may still
    /// follow.
    returned: Option<(Worker, OutputStream)>,
}

impl Lines {
    /// From now on, the lines of this worker are labeled with `rank`.
    pub fn rename(&mut self, worker: Worker, rank: Rank) {
        self.names.insert(worker, rank);
    }

    /// The rank in the prefix of a worker's lines: its own number, unless renamed.
    pub fn name(&self, worker: Worker) -> Rank {
        self.names.get(&worker).copied().unwrap_or(Rank(worker.0))
    }

    /// Adds a worker's output; returns the finished lines with their prefixes.
    pub fn push(
        &mut self,
        worker: Worker,
        stream: OutputStream,
        bytes: &[u8],
        stamp: &str,
    ) -> Vec<u8> {
        let prefix = format!("{stamp}{}", prefix(self.name(worker), stream));
        let mut out = Vec::with_capacity(bytes.len() + 64);
        let mut partial = std::mem::take(self.partial(worker, stream));
        let mut rest = bytes;
        if partial.is_empty()
            && rest.first() == Some(&b'\n')
            && self.returned == Some((worker, stream))
        {
            out.push(b'\n');
            rest = &rest[1..];
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let end = if rest[end..].starts_with(b"\r\n") { end + 2 } else { end + 1 };
            let (line, later) = rest.split_at(end);
            out.extend_from_slice(prefix.as_bytes());
            out.append(&mut partial);
            out.extend_from_slice(line);
            rest = later;
        }
        partial.extend_from_slice(rest);
        let long = partial.len() > LONGEST;
        *self.partial(worker, stream) = partial;
        if long {
            out.extend(self.end(worker, stream, stamp));
        }
        if let Some(last) = out.last() {
            self.returned = (*last == b'\r').then_some((worker, stream));
        }
        out
    }

    /// The stream has ended: returns its last line if that was unfinished.
    pub fn end(&mut self, worker: Worker, stream: OutputStream, stamp: &str) -> Vec<u8> {
        let last = self.partial.remove(&(worker, stream)).unwrap_or_default();
        if last.is_empty() {
            return last;
        }
        let mut out = format!("{stamp}{}", prefix(self.name(worker), stream)).into_bytes();
        out.extend(last);
        out.push(b'\n');
        self.returned = None;
        out
    }

    /// All streams have ended: returns the rest of each, with the rank in its prefix.
    pub fn end_all(&mut self, stamp: &str) -> Vec<(Rank, OutputStream, Vec<u8>)> {
        let mut left: Vec<_> = self.partial.keys().copied().collect();
        left.sort_by_key(|(worker, _)| *worker);
        let end = |(worker, stream)| (self.name(worker), stream, self.end(worker, stream, stamp));
        left.into_iter().map(end).collect()
    }

    fn partial(&mut self, worker: Worker, stream: OutputStream) -> &mut Vec<u8> {
        self.partial.entry((worker, stream)).or_default()
    }
}

/// The prefix of every line.
pub fn prefix(rank: Rank, stream: OutputStream) -> String {
    match stream {
        OutputStream::Stdout => format!("[{}]<stdout>:", rank.0),
        OutputStream::Stderr => format!("[{}]<stderr>:", rank.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    fn printed(pieces: &[(u32, OutputStream, &str)]) -> String {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        for (rank, stream, text) in pieces {
            out.extend(lines.push(Worker(*rank), *stream, text.as_bytes(), ""));
        }
        out.extend(lines.end_all("").into_iter().flat_map(|(_, _, text)| text));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_emitted_whole_and_with_their_prefix() {
        for (pieces, expected) in [
            (&[(0, Stdout, "a\nb\n")][..], "[0]<stdout>:a\n[0]<stdout>:b\n"),
            (
                &[(0, Stdout, "a"), (1, Stderr, "x\n"), (0, Stdout, "b\n")][..],
                "[1]<stderr>:x\n[0]<stdout>:ab\n",
            ),
            (&[(3, Stdout, "last")][..], "[3]<stdout>:last\n"),
            (&[(0, Stdout, "\n\n")][..], "[0]<stdout>:\n[0]<stdout>:\n"),
            (&[(0, Stderr, "10%\r20%\r")][..], "[0]<stderr>:10%\r[0]<stderr>:20%\r"),
            (&[(0, Stdout, "dos\r\nfile\r\n")][..], "[0]<stdout>:dos\r\n[0]<stdout>:file\r\n"),
            (
                &[(0, Stdout, "dos\r"), (0, Stdout, "\nx\n")][..],
                "[0]<stdout>:dos\r\n[0]<stdout>:x\n",
            ),
            (&[][..], ""),
        ] {
            assert_eq!(printed(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn output_of_two_workers_with_the_same_rank_does_not_mix() {
        let mut lines = Lines::default();
        lines.rename(Worker(5), Rank(1));
        let mut out = lines.push(Worker(1), Stdout, b"old", "");
        out.extend(lines.push(Worker(5), Stdout, b"new\nlast", ""));
        out.extend(lines.end(Worker(1), Stdout, ""));
        assert_eq!(String::from_utf8(out).unwrap(), "[1]<stdout>:new\n[1]<stdout>:old\n");
        let left = lines.end_all("");
        assert_eq!(left, [(Rank(1), Stdout, b"[1]<stdout>:last\n".to_vec())]);
    }

    #[test]
    fn no_character_is_split_and_no_byte_is_lost() {
        let text = "größer 火 🎈\n".repeat(50);
        for size in 1..9 {
            let mut lines = Lines::default();
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                let finished = lines.push(Worker(0), Stdout, piece, "");
                assert!(String::from_utf8(finished.clone()).is_ok());
                out.extend(finished);
            }
            assert_eq!(String::from_utf8(out).unwrap().replace("[0]<stdout>:", ""), text);
        }
        let raw = Lines::default().push(Worker(0), Stdout, b"\xff\xfe\n", "");
        assert_eq!(raw, b"[0]<stdout>:\xff\xfe\n");
    }

    #[test]
    fn an_endless_line_takes_bounded_memory() {
        let mut lines = Lines::default();
        let mut out = 0;
        for _ in 0..100 {
            out += lines.push(Worker(0), Stdout, &[b'x'; 64 << 10], "").len();
            assert!(lines.partial(Worker(0), Stdout).len() <= LONGEST);
        }
        assert!(out > 4 * LONGEST);
    }

    #[test]
    fn every_line_is_prefixed_with_the_time_like_asctime() {
        let mut lines = Lines::default();
        let out = lines.push(Worker(0), Stdout, b"a\nb\nc", "now");
        assert_eq!(out, b"now[0]<stdout>:a\nnow[0]<stdout>:b\n");
        assert_eq!(lines.end(Worker(0), Stdout, "then"), b"then[0]<stdout>:c\n");
        assert_eq!(Stamp::new(Times::Left).text(), "");
        let text = Stamp::new(Times::Shown).text().to_owned();
        let parts: Vec<&str> = text.split_whitespace().collect();
        assert!(text.len() == 24 && parts.len() == 5 && parts[3].len() == 8, "{text}");
    }
}
