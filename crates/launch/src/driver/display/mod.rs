//! What a terminal shows while several ranks write to it at once: bytes in, bytes out.
//!
//! The terminal of one rank may be passed through, so that its progress bars work as if it ran
//! alone. Lines of other ranks and of the launcher appear above its unfinished lines: these are
//! erased, the new line is written, and the unfinished lines are drawn again.
//!
//! Ranks without a terminal may write bars too, each ending with a carriage return. Only the bar of
//! the lowest rank is shown, at the bottom, if there is no unfinished line. The other bars are
//! hidden until it is gone; their final state, a line with a line feed, is printed like any other
//! line.

mod live;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ronde_control::Rank;
use ronde_control::wire::agent::OutputStream;

use live::{LiveLines, cut, width};

/// The rank that writes a bar, and whether it writes it to standard error.
type BarOwner = (Rank, bool);

/// The state of the screen's last lines.
pub(super) struct Display {
    columns: usize,
    live: LiveLines,
    /// The bars as their ranks last wrote them, without the carriage return.
    bars: BTreeMap<BarOwner, Vec<u8>>,
    /// The bar now drawn at the bottom of the screen.
    drawn: Option<Vec<u8>>,
}

impl Display {
    /// An empty terminal with this many columns.
    pub(super) fn new(columns: usize) -> Display {
        Display { columns, live: LiveLines::default(), bars: BTreeMap::new(), drawn: None }
    }

    /// Sets the new width of the window.
    pub(super) fn resize(&mut self, columns: usize) {
        self.columns = columns;
    }

    /// Shows what the rank with the terminal has written.
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

    /// Handles the end of the terminal's output.
    pub(super) fn end_live(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.live.finish(&mut out);
        self.draw_bar(&mut out);
        out
    }

    /// Shows lines and bars that a rank has written, each with its prefix.
    pub(super) fn show(&mut self, rank: Rank, stream: OutputStream, bytes: &[u8]) -> Vec<u8> {
        let owner = owner(rank, stream);
        let mut lines = Vec::with_capacity(bytes.len());
        for segment in segments(bytes) {
            match segment.strip_suffix(b"\r") {
                // The preceding carriage return was part of a line ending after all.
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
                    // Bars may begin with a carriage return, too.
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

    /// Handles the end of a rank's stream: if its bar is shown, it is left where it is.
    pub(super) fn end(&mut self, rank: Rank, stream: OutputStream) -> Vec<u8> {
        let owner = owner(rank, stream);
        let was_shown = self.bottom_bar().is_some_and(|(shown, _)| shown == owner);
        let mut out = Vec::new();
        if self.bars.remove(&owner).is_some() && was_shown && self.drawn.take().is_some() {
            out.push(b'\n');
        }
        self.draw_bar(&mut out);
        out
    }

    /// Prints whole lines above the unfinished lines and the bar.
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

    /// Ends the display, so that the next output starts on a fresh line.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.live.finish(&mut out);
        if self.drawn.take().is_some() {
            out.push(b'\n');
        }
        self.bars.clear();
        out
    }

    fn bottom_bar(&self) -> Option<(BarOwner, &[u8])> {
        self.bars.first_key_value().map(|(owner, bar)| (*owner, bar.as_slice()))
    }

    fn erase_bar(&mut self, out: &mut Vec<u8>) {
        if self.drawn.take().is_some() {
            out.extend_from_slice(b"\r\x1b[K");
        }
    }

    /// Draws the bar that belongs at the bottom, unless it is already there.
    fn draw_bar(&mut self, out: &mut Vec<u8>) {
        if !self.live.is_clean() {
            return;
        }
        let Some((_, bar)) = self.bottom_bar() else { return self.erase_bar(out) };
        // A bar that fills the last column would start another line.
        let available = self.columns.saturating_sub(1);
        let mut bar = match width(bar) > available {
            true => cut(bar, available).to_vec(),
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

/// Splits into lines and bars, each with its ending.
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

/// What a rank wrote, without its prefix.
fn content(segment: &[u8]) -> &[u8] {
    let start = segment.windows(2).position(|pair| pair == b">:").map_or(0, |at| at + 2);
    &segment[start..]
}

/// Whether a bar shows nothing, because it only erases the one before.
fn is_blank(content: &[u8]) -> bool {
    let erases = [&b"\x1b[K"[..], b"\x1b[2K"].into_iter().find_map(|it| content.strip_prefix(it));
    erases.unwrap_or(content).iter().all(u8::is_ascii_whitespace)
}
