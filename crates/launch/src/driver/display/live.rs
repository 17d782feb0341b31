//! The unfinished lines of a rank that has a terminal: a progress bar, or a block of several lines
//! that the program redraws from the top, as `rich` and nested bars of `tqdm` do.
//!
//! This follows the cursor only as far as needed to erase these lines and draw them again: line
//! feeds, carriage returns, moves up and down, and erasing. Everything else is stored as part of
//! the line in which it occurs. If a program positions the cursor absolutely, tracking starts over.

/// How many rows are remembered, and how many bytes of each.
const ROWS: usize = 64;
const ROW_BYTES: usize = 16 << 10;

/// The tallest block, in rows, that is kept together; a taller one would not fit on small screens.
const TALLEST: usize = 20;

/// How many rows a program starts below its block before we conclude that it has left the block.
const BELOW: usize = 8;

/// The longest escape sequence, in bytes, whose end we wait for.
const LONGEST: usize = 256;

/// The unfinished lines of one rank.
pub(super) struct LiveLines {
    rows: Vec<ScreenRow>,
    /// The row in which the cursor is.
    at: usize,
    /// How many rows above the last one the program goes back.
    height: usize,
    /// How many rows it has started below the last one since it went up.
    begun: usize,
    /// The start of an escape sequence or character whose rest has not arrived.
    cut: Vec<u8>,
    cursor_hidden: bool,
    /// Whether it has hidden the cursor, as programs do before a block, and not yet returned to the
    /// top of the block.
    is_opening: bool,
}

/// What was written to a row: before the last carriage return, and since.
#[derive(Clone, Default)]
struct ScreenRow {
    before: Vec<u8>,
    since: Vec<u8>,
}

impl ScreenRow {
    fn is_empty(&self) -> bool {
        self.before.is_empty() && self.since.is_empty()
    }

    fn push(&mut self, bytes: &[u8]) {
        self.since.extend_from_slice(bytes);
        if self.since.len() > ROW_BYTES {
            self.since.clear();
        }
    }

    fn go_back(&mut self) {
        if !self.since.is_empty() {
            self.before = std::mem::take(&mut self.since);
        }
    }

    fn draw(&self, out: &mut Vec<u8>) {
        if !self.before.is_empty() {
            out.extend_from_slice(&self.before);
            out.push(b'\r');
        }
        out.extend_from_slice(&self.since);
    }

    /// How many screen rows it takes up beyond the first.
    fn wraps(&self, columns: usize) -> usize {
        let width = width(&self.before).max(width(&self.since));
        width.saturating_sub(1) / columns.max(1)
    }
}

impl Default for LiveLines {
    fn default() -> LiveLines {
        LiveLines {
            rows: vec![ScreenRow::default()],
            at: 0,
            height: 0,
            begun: 0,
            cut: Vec::new(),
            cursor_hidden: false,
            is_opening: false,
        }
    }
}

impl LiveLines {
    /// Takes what the program has written; returns what can be shown now: everything but an
    /// incomplete escape sequence or character at the end.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.cut);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        while let Some(first) = rest.first() {
            let Some(length) = length(rest) else { break };
            let (piece, later) = rest.split_at(length);
            match first {
                b'\n' => self.line_feed(),
                b'\r' => self.row().go_back(),
                0x1b => self.escape(piece),
                _ => self.row().push(piece),
            }
            rest = later;
        }
        let shown = all.len() - rest.len();
        self.cut = all.split_off(shown);
        all
    }

    /// Whether nothing is unfinished.
    pub(super) fn is_clean(&self) -> bool {
        self.height == 0 && self.rows[self.at].is_empty() && self.at + 1 == self.rows.len()
    }

    /// Erases the unfinished lines from the screen and leaves the cursor where the first one began.
    pub(super) fn erase(&self, columns: usize, out: &mut Vec<u8>) {
        let above: usize =
            self.rows[self.top()..self.at].iter().map(|row| 1 + row.wraps(columns)).sum();
        out.extend_from_slice(b"\x1b[m\r");
        up(above + self.rows[self.at].wraps(columns), out);
        out.extend_from_slice(b"\x1b[J");
    }

    /// Draws the unfinished lines again and puts the cursor back where it was.
    pub(super) fn draw(&self, out: &mut Vec<u8>) {
        for (index, row) in self.rows[self.top()..].iter().enumerate() {
            if index > 0 {
                out.push(b'\n');
            }
            row.draw(out);
        }
        let below = self.rows.len() - 1 - self.at;
        if below > 0 {
            up(below, out);
            out.push(b'\r');
            self.rows[self.at].draw(out);
        }
    }

    /// Leaves the lines of a program that has ended as they are, and the cursor below them.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        let below = self.rows.len() - 1 - self.at;
        if below > 0 {
            out.extend_from_slice(format!("\x1b[{below}B").as_bytes());
        }
        if self.rows.iter().any(|row| row.since.contains(&0x1b)) {
            out.extend_from_slice(b"\x1b[m");
        }
        if self.cursor_hidden {
            out.extend_from_slice(b"\x1b[?25h");
        }
        if self.rows.last().is_some_and(|row| !row.is_empty()) {
            out.push(b'\n');
        }
        *self = LiveLines::default();
    }

    fn row(&mut self) -> &mut ScreenRow {
        &mut self.rows[self.at]
    }

    /// The first row that may still change.
    fn top(&self) -> usize {
        self.at.min(self.rows.len() - 1 - self.height)
    }

    fn line_feed(&mut self) {
        self.at += 1;
        if self.at < self.rows.len() {
            return;
        }
        self.rows.push(ScreenRow::default());
        self.begun += 1;
        if self.is_opening || self.height > 0 {
            self.height += 1;
        }
        let continues_below = !self.is_opening && self.begun > BELOW;
        if continues_below || self.height > TALLEST {
            (self.height, self.is_opening) = (0, false);
        }
        let forgotten = self.rows.len().saturating_sub(ROWS);
        self.rows.drain(..forgotten);
        self.at -= forgotten;
        self.height = self.height.min(self.rows.len() - 1);
    }

    fn escape(&mut self, sequence: &[u8]) {
        let Some((final_byte, parameters)) = parameters(sequence) else {
            return self.row().push(sequence);
        };
        let number = parameters.parse::<usize>();
        let count = number.clone().unwrap_or(1).max(1);
        match final_byte {
            b'A' | b'F' => self.go_up(count),
            b'B' | b'E' => self.at = (self.at + count).min(self.rows.len() - 1),
            b'K' => self.erase_line(number.unwrap_or(0)),
            b'J' if number.clone().unwrap_or(0) == 0 => {
                self.rows.truncate(self.at + 1);
                self.height = self.height.min(self.at);
                self.erase_line(0);
            }
            b'J' | b'H' | b'f' => self.restart(),
            b'l' | b'h' if parameters == "?25" => {
                self.cursor_hidden = final_byte == b'l';
                self.is_opening = self.cursor_hidden;
                self.height = 0;
            }
            _ => self.row().push(sequence),
        }
    }

    fn go_up(&mut self, count: usize) {
        self.at = self.at.saturating_sub(count);
        self.height = self.rows.len() - 1 - self.at;
        self.begun = 0;
        self.is_opening = false;
    }

    fn erase_line(&mut self, which: usize) {
        let row = self.row();
        row.before.clear();
        if which == 2 {
            row.since.clear();
        }
    }

    fn restart(&mut self) {
        let cursor_hidden = self.cursor_hidden;
        *self = LiveLines { cursor_hidden, ..LiveLines::default() };
    }
}

fn up(count: usize, out: &mut Vec<u8>) {
    if count > 0 {
        out.extend_from_slice(format!("\x1b[{count}A").as_bytes());
    }
}

/// The length of the first control character, escape sequence or run of text; `None` if its end is
/// missing.
fn length(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n' | b'\r', ..] => Some(1),
        [0x1b, ..] => match sequence_length(bytes) {
            None if bytes.len() > LONGEST => Some(bytes.len()),
            length => length,
        },
        _ => {
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r' | 0x1b));
            match end {
                Some(end) => Some(end),
                None => Some(bytes.len() - missing(bytes)).filter(|length| *length > 0),
            }
        }
    }
}

/// The length of an escape sequence; `None` if its end is missing.
fn sequence_length(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'[' => bytes[2..].iter().position(|byte| (0x40..=0x7e).contains(byte)).map(|at| at + 3),
        // A title or a link, up to a bell or `ESC \`.
        b']' => {
            let end = bytes[2..].iter().position(|byte| matches!(byte, 0x07 | 0x1b))? + 2;
            match bytes[end] {
                0x07 => Some(end + 1),
                _ => (bytes.len() > end + 1).then_some(end + 2),
            }
        }
        b'(' | b')' | b'#' => (bytes.len() > 2).then_some(3),
        _ => Some(2),
    }
}

/// How many bytes at the end belong to a character whose rest has not arrived.
fn missing(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let start = bytes[tail..].iter().rposition(|byte| *byte >= 0xc0);
    let Some(start) = start.map(|start| tail + start) else { return 0 };
    let needed = match bytes[start] {
        0xf0.. => 4,
        0xe0.. => 3,
        _ => 2,
    };
    let there = bytes.len() - start;
    if there < needed { there } else { 0 }
}

/// The last byte of `ESC [ … x` and the parameters before it.
fn parameters(sequence: &[u8]) -> Option<(u8, &str)> {
    let (final_byte, parameters) = sequence.strip_prefix(b"\x1b[")?.split_last()?;
    Some((*final_byte, std::str::from_utf8(parameters).ok()?))
}

/// How many columns a text takes up, counting one per character.
pub(super) fn width(mut bytes: &[u8]) -> usize {
    let mut width = 0;
    while let Some(first) = bytes.first() {
        let length = match first {
            0x1b => sequence_length(bytes).unwrap_or(bytes.len()),
            _ => 1,
        };
        // Continuation bytes of a character do not count.
        width += usize::from(*first >= 0x20 && !(0x80..0xc0).contains(first));
        bytes = &bytes[length..];
    }
    width
}

/// The part of a text that fits into this many columns.
pub(super) fn cut(bytes: &[u8], columns: usize) -> &[u8] {
    let (mut at, mut width) = (0, 0);
    while at < bytes.len() {
        let first = bytes[at];
        let length = if first == 0x1b { sequence_length(&bytes[at..]) } else { Some(1) };
        width += usize::from(first >= 0x20 && !(0x80..0xc0).contains(&first));
        if width > columns {
            return &bytes[..at];
        }
        at += length.unwrap_or(bytes.len() - at);
    }
    bytes
}
