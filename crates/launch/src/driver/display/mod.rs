//! What a terminal shows while several ranks write to it at once: bytes in, bytes out.
//!
//! One rank may have a terminal of its own. What it writes is passed through, so that its progress bars
//! live as if it ran alone. Lines of other ranks, and the launcher's own, come above what it has not
//! finished: that is erased, the line is written, and what was erased is drawn again.
//!
//! Of the bars that ranks without a terminal write, with a carriage return at the end, the one of the
//! lowest rank stands at the bottom, if no unfinished line stands there. The others are left out until
//! it is gone; what they end with, a line with a line feed, is printed as any other.

mod live;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ronde_control::Rank;
use ronde_control::wire::agent::OutputStream;

use live::{LiveLines, cut, width};

/// Who writes a bar.
type BarOwner = (Rank, bool);

/// The state of the screen's last lines.
pub(super) struct Display {
    columns: usize,
    live: LiveLines,
    /// The bars as their ranks last wrote them, without the carriage return.
    bars: BTreeMap<BarOwner, Vec<u8>>,
    /// The bar that stands at the bottom of the screen.
    drawn: Option<Vec<u8>>,
}

impl Display {
    /// Nothing stands on the terminal yet, which is so wide.
    pub(super) fn new(columns: usize) -> Display {
        Display { columns, live: LiveLines::default(), bars: BTreeMap::new(), drawn: None }
    }

    /// The window has another width.
    pub(super) fn resize(&mut self, columns: usize) {
        self.columns = columns;
    }

    /// The rank that has the terminal has written this.
    pub(super) fn pass_through(&mut self, bytes: &[u8]) -> Vec<u8> {
        let shown = self.live.push(bytes);
        let mut out = Vec::with_capacity(shown.len() + 16);
        if !shown.is_empty() {
            self.erase_bar(&mut out);
        }
        out.extend(shown);
        self.draw_bar(&mut out);
        out
    }

    /// The rank that has the terminal has closed it.
    pub(super) fn end_live(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.live.finish(&mut out);
        self.draw_bar(&mut out);
        out
    }

    /// A rank has written these lines and bars, each with its prefix.
    pub(super) fn show(&mut self, rank: Rank, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let owner = owner(rank, stream);
        let mut lines = Vec::with_capacity(bytes.len());
        for segment in segments(bytes) {
            match segment.strip_suffix(b"\r") {
                // The carriage return before it was the end of a line after all.
                None if segment == b"\n" => {
                    let before = self.bars.remove(&owner);
                    lines
                        .extend(before.into_iter().flat_map(|bar| [bar, b"\n".to_vec()]).flatten());
                }
                None => {
                    self.bars.remove(&owner);
                    lines.extend_from_slice(segment);
                }
                Some(bar) => match content(bar) {
                    // Bars begin with a carriage return, too.
                    [] => {}
                    content if is_blank(content) => {
                        self.bars.remove(&owner);
                    }
                    _ => {
                        self.bars.insert(owner, bar.to_vec());
                    }
                },
            }
        }
        self.print(&lines)
    }

    /// A rank has closed a stream: if its bar stands, it is left where it is.
    pub(super) fn end(&mut self, rank: Rank, stream: OutputStream) -> Vec<u8> {
        let owner = owner(rank, stream);
        let stood = self.standing().is_some_and(|(standing, _)| standing == owner);
        let mut out = Vec::new();
        if self.bars.remove(&owner).is_some() && stood && self.drawn.take().is_some() {
            out.push(b'\n');
        }
        self.draw_bar(&mut out);
        out
    }

    /// Prints whole lines above what stands at the bottom.
    pub(super) fn print(&mut self, lines: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(lines.len() + 16);
        if !lines.is_empty() {
            self.erase_bar(&mut out);
            let unfinished = !self.live.is_clean();
            if unfinished {
                self.live.erase(self.columns, &mut out);
            }
            out.extend_from_slice(lines);
            if unfinished {
                self.live.draw(&mut out);
            }
        }
        self.draw_bar(&mut out);
        out
    }

    /// Nothing more comes: the next line begins at the left.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.live.finish(&mut out);
        if self.drawn.take().is_some() {
            out.push(b'\n');
        }
        self.bars.clear();
        out
    }

    fn standing(&self) -> Option<(BarOwner, &[u8])> {
        self.bars.first_key_value().map(|(owner, bar)| (*owner, bar.as_slice()))
    }

    fn erase_bar(&mut self, out: &mut Vec<u8>) {
        if self.drawn.take().is_some() {
            out.extend_from_slice(b"\r\x1b[K");
        }
    }

    /// Draws the bar that should stand at the bottom, unless it does.
    fn draw_bar(&mut self, out: &mut Vec<u8>) {
        if !self.live.is_clean() {
            return;
        }
        let Some((_, bar)) = self.standing() else { return self.erase_bar(out) };
        // A bar that fills the last column would begin another line.
        let room = self.columns.saturating_sub(1);
        let mut bar = match width(bar) > room {
            true => cut(bar, room).to_vec(),
            false => bar.to_vec(),
        };
        if bar.contains(&0x1b) {
            bar.extend_from_slice(b"\x1b[m");
        }
        if self.drawn.as_ref() != Some(&bar) {
            out.push(b'\r');
            out.extend_from_slice(&bar);
            out.extend_from_slice(b"\x1b[K");
            self.drawn = Some(bar);
        }
    }
}

fn owner(rank: Rank, stream: OutputStream) -> BarOwner {
    (rank, stream == OutputStream::Stderr)
}

/// Lines and bars, each with what ends it.
fn segments(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let end = if rest[end..].starts_with(b"\r\n") { end + 2 } else { end + 1 };
        let (segment, later) = rest.split_at(end);
        rest = later;
        Some(segment)
    })
}

/// What a rank wrote, behind its prefix.
fn content(segment: &[u8]) -> &[u8] {
    let start = segment.windows(2).position(|pair| pair == b">:").map_or(0, |at| at + 2);
    &segment[start..]
}

/// Whether a bar shows nothing, because it only erases the one before.
fn is_blank(content: &[u8]) -> bool {
    let erases = [&b"\x1b[K"[..], b"\x1b[2K"].into_iter().find_map(|it| content.strip_prefix(it));
    erases.unwrap_or(content).iter().all(u8::is_ascii_whitespace)
}
