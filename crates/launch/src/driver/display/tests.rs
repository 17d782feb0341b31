//! Each case is a list of inputs and the expected contents of a small terminal.

use OutputStream::{Stderr, Stdout};

use super::*;

/// A terminal that understands what [`Display`] and the programs in these tests write.
struct TestTerminal {
    rows: Vec<Vec<char>>,
    at: (usize, usize),
}

impl TestTerminal {
    fn of(bytes: &[u8]) -> Vec<String> {
        let mut terminal = TestTerminal { rows: vec![Vec::new()], at: (0, 0) };
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let mut length = first.len_utf8();
            match first {
                '\n' => {
                    terminal.at = (terminal.at.0 + 1, 0);
                    if terminal.at.0 == terminal.rows.len() {
                        terminal.rows.push(Vec::new());
                    }
                }
                '\r' => terminal.at.1 = 0,
                '\x1b' => {
                    length = rest[2..].find(|it: char| it.is_ascii_alphabetic()).unwrap() + 3;
                    terminal.escape(&rest[2..length - 1], &rest[length - 1..length]);
                }
                letter => terminal.put(letter),
            }
            rest = &rest[length..];
        }
        let rows = terminal.rows.iter().map(|row| row.iter().collect::<String>());
        let mut rows: Vec<String> = rows.map(|row| row.trim_end().to_owned()).collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn put(&mut self, letter: char) {
        let (row, column) = self.at;
        if column == COLUMNS {
            self.at = (row + 1, 0);
            if self.at.0 == self.rows.len() {
                self.rows.push(Vec::new());
            }
            return self.put(letter);
        }
        let row = &mut self.rows[row];
        row.resize(row.len().max(column + 1), ' ');
        row[column] = letter;
        self.at.1 += 1;
    }

    fn escape(&mut self, parameters: &str, command: &str) {
        let count = parameters.parse().unwrap_or(1);
        match command {
            "A" => self.at.0 = self.at.0.checked_sub(count).expect("moved above the first line"),
            "B" => self.at.0 = (self.at.0 + count).min(self.rows.len() - 1),
            "K" if parameters == "2" => self.rows[self.at.0].clear(),
            "K" => self.rows[self.at.0].truncate(self.at.1),
            "J" => {
                self.rows.truncate(self.at.0 + 1);
                self.rows[self.at.0].truncate(self.at.1);
            }
            "m" | "h" | "l" => {}
            other => panic!("unknown escape sequence: {other}"),
        }
    }
}

const COLUMNS: usize = 40;

/// One input.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// From the rank with the terminal.
    Live(&'a str),
    /// From another rank, as `logs` formats it.
    Text(u32, OutputStream, &'a str),
    /// A rank has closed its stream.
    End(u32, OutputStream),
    EndLive,
    Note(&'a str),
}
use Step::{End, EndLive, Live, Note, Text};

fn bytes(steps: &[Step<'_>]) -> Vec<u8> {
    let mut display = Display::new(COLUMNS);
    steps.iter().flat_map(|step| one(&mut display, step)).collect()
}

fn one(display: &mut Display, step: &Step<'_>) -> Vec<u8> {
    match step {
        Live(text) => display.pass_through(text.as_bytes()),
        Text(rank, stream, text) => display.show(Rank(*rank), *stream, text.as_bytes()),
        End(rank, stream) => display.end(Rank(*rank), *stream),
        EndLive => display.end_live(),
        Note(text) => display.print(text.as_bytes()),
    }
}

fn screen(steps: &[Step<'_>]) -> Vec<String> {
    TestTerminal::of(&bytes(steps))
}

#[test]
fn output_of_a_single_writer_is_unchanged() {
    let texts =
        ["plain\n", "\r 10%|#  |", "\r 20%|## |", "\x1b[2K\x1b[1A\x1b[31mred\x1b[0m", "größer"];
    let steps: Vec<Step<'_>> = texts.iter().map(|text| Live(text)).collect();
    assert_eq!(bytes(&steps), texts.concat().as_bytes());
    let lines = [Text(1, Stdout, "[1]<stdout>:a\n"), Note("[ronde] b\n")];
    assert_eq!(bytes(&lines), b"[1]<stdout>:a\n[ronde] b\n");
}

#[test]
fn escape_sequences_and_characters_are_never_split() {
    let text = "a\x1b[38;5;208mgrün\x1b]0;title\x07 火🎈\x1b(B\x1b[0m\x1b[?25l\r\n";
    for size in 1..7 {
        let mut display = Display::new(COLUMNS);
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let shown = display.pass_through(piece);
            assert!(std::str::from_utf8(&shown).is_ok(), "{shown:?}");
            assert!(!shown.ends_with(b"\x1b") && !shown.ends_with(b"[38;5"), "{shown:?}");
            out.extend(shown);
        }
        assert_eq!(out, text.as_bytes());
    }
}

#[test]
fn lines_of_others_come_above_the_bar_of_the_rank_with_the_terminal() {
    let steps = [
        Live("start\n"),
        Live("\r 10%|#   |"),
        Text(1, Stdout, "[1]<stdout>:hello\n[1]<stdout>:again\n"),
        Live("\r 20%|##  |"),
        Note("[ronde] a note\n"),
    ];
    let above = ["start", "[1]<stdout>:hello", "[1]<stdout>:again", "[ronde] a note"];
    assert_eq!(screen(&steps), [&above[..], &[" 20%|##  |"]].concat());
    let erased = b"start\n\r 10%|#   |\x1b[m\r\x1b[J[1]<stdout>:hello\n";
    assert!(bytes(&steps).starts_with(erased));
    // A shorter text over a longer one is drawn again as it was.
    let steps = [Live("\rlonger text"), Live("\rshort"), Note("line\n"), Live("!")];
    assert_eq!(screen(&steps), ["line", "short! text"]);
}

#[test]
fn an_unfinished_line_that_wraps_is_erased_whole() {
    let long = "x".repeat(COLUMNS * 2 + 5);
    let steps = [Live("a\n"), Live(&long), Note("line\n")];
    let rows = ["x".repeat(COLUMNS), "x".repeat(COLUMNS), "x".repeat(5)];
    assert_eq!(screen(&steps), [vec!["a".to_owned(), "line".to_owned()], rows.to_vec()].concat());
}

#[test]
fn a_block_of_several_lines_stays_together() {
    let block = |number: u32| format!("epoch {number}\nstep {number}\nloss {number}");
    let again = "\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K";
    let refresh = |number| format!("{again}{}", block(number));
    let first = format!("\x1b[?25l{}", block(0));
    let line = |text| Text(1, Stderr, text);
    for hello_after in 0..3 {
        let mut steps = vec![Live("begin\n"), Live(&first)];
        let texts = [refresh(1), refresh(2), refresh(3)];
        for (index, text) in texts.iter().enumerate() {
            if index == hello_after {
                steps.push(line("[1]<stderr>:hello\n"));
            }
            steps.push(Live(text));
        }
        let expected = ["begin", "[1]<stderr>:hello", "epoch 3", "step 3", "loss 3"];
        assert_eq!(screen(&steps), expected, "after {hello_after}");
        // Once the block has ended, later output appears below it.
        steps.extend([Live("\n\x1b[?25h"), line("[1]<stderr>:bye\n"), Live("end\n")]);
        assert_eq!(screen(&steps)[2..], ["epoch 3", "step 3", "loss 3", "[1]<stderr>:bye", "end"]);
    }
}

#[test]
fn a_block_that_grows_stays_together_and_ends_when_the_program_has_left_it() {
    let again = "\r\x1b[2K\x1b[1A\x1b[2K";
    let grown = format!("{again}text\nepoch\nstep\nloss");
    let steps = [Live("epoch\nstep"), Live(&grown), Note("hello\n")];
    assert_eq!(screen(&steps), ["hello", "text", "epoch", "step", "loss"]);
    let below = "\n".to_owned() + &"more\n".repeat(BELOW_A_BLOCK);
    let steps = [Live("epoch\nstep"), Live(&grown), Live(&below), Note("hello\n"), Live("end")];
    assert_eq!(screen(&steps)[12..], ["more", "hello", "end"]);
}

const BELOW_A_BLOCK: usize = 9;

#[test]
fn bars_below_each_other_stay_together_with_the_cursor_at_the_upper_one() {
    let steps = [
        Live("\r outer 0%"),
        Live("\n\r inner 10%\x1b[A"),
        Text(1, Stdout, "[1]<stdout>:hello\n"),
        Live("\n\r inner 20%\x1b[A"),
        Live("\r outer 1%"),
    ];
    assert_eq!(screen(&steps), ["[1]<stdout>:hello", " outer 1%", " inner 20%"]);
    let ended = [&steps[..4], &[EndLive, Note("bye\n")]].concat();
    assert_eq!(screen(&ended), ["[1]<stdout>:hello", " outer 0%", " inner 20%", "bye"]);
}

#[test]
fn only_the_bar_of_the_lowest_rank_is_shown() {
    let steps = [
        Text(1, Stderr, "[1]<stderr>:10%\r"),
        Text(0, Stderr, "[0]<stderr>:\r"),
        Text(0, Stderr, "[0]<stderr>:10%\r"),
        Text(1, Stderr, "[1]<stderr>:20%\r"),
        Text(0, Stderr, "[0]<stderr>:20%\r"),
        Text(2, Stdout, "[2]<stdout>:hello\n"),
        Text(1, Stderr, "[1]<stderr>:30%\r"),
    ];
    assert_eq!(screen(&steps), ["[2]<stdout>:hello", "[0]<stderr>:20%"]);
    // An input that changes nothing writes nothing, so nothing flickers.
    let mut display = Display::new(COLUMNS);
    let written: Vec<usize> = steps.iter().map(|step| one(&mut display, step).len()).collect();
    assert_eq!((written[1], written[3], written[6]), (0, 0, 0), "{written:?}");
    // When it is done, the next one is shown.
    let done = [Text(0, Stderr, "[0]<stderr>:100%\n"), Text(1, Stderr, "[1]<stderr>:40%\r")];
    let rows = screen(&[&steps[..], &done].concat());
    assert_eq!(rows, ["[2]<stdout>:hello", "[0]<stderr>:100%", "[1]<stderr>:40%"]);
}

#[test]
fn a_line_does_not_leave_the_rest_of_a_bar_behind() {
    let bar = Text(0, Stderr, "[0]<stderr>:a rather long bar\r");
    let rows = screen(&[bar, Text(0, Stdout, "[0]<stdout>:x\n")]);
    assert_eq!(rows, ["[0]<stdout>:x", "[0]<stderr>:a rather long bar"]);
    let bar = Text(0, Stderr, "[0]<stderr>:a rather long bar\r");
    assert_eq!(screen(&[bar, Text(0, Stderr, "[0]<stderr>:x\n")]), ["[0]<stderr>:x"]);
}

#[test]
fn a_bar_that_erases_itself_disappears_and_one_that_does_not_remains() {
    for blank in ["[0]<stderr>:      \r", "[0]<stderr>:\x1b[2K\r", "[0]<stderr>:\x1b[K  \r"] {
        let steps = [Text(0, Stderr, "[0]<stderr>:10%\r"), Text(0, Stderr, blank), Note("n\n")];
        assert_eq!(screen(&steps), ["n"], "{blank:?}");
    }
    let steps = [
        Text(0, Stderr, "[0]<stderr>:10%\r"),
        Text(1, Stderr, "[1]<stderr>:20%\r"),
        End(0, Stderr),
        End(0, Stdout),
    ];
    assert_eq!(screen(&steps), ["[0]<stderr>:10%", "[1]<stderr>:20%"]);
    let mut display = Display::new(COLUMNS);
    let mut out: Vec<u8> = steps.iter().flat_map(|step| one(&mut display, step)).collect();
    out.extend(display.finish());
    out.extend(display.finish());
    out.extend_from_slice(b"error: x");
    assert_eq!(TestTerminal::of(&out), ["[0]<stderr>:10%", "[1]<stderr>:20%", "error: x"]);
}

#[test]
fn a_line_feed_that_arrives_late_belongs_to_the_previous_line() {
    let steps = [
        Text(0, Stderr, "[0]<stderr>:bar\r"),
        Text(1, Stdout, "[1]<stdout>:dos\r"),
        Text(1, Stdout, "\n[1]<stdout>:file\r\n"),
    ];
    assert_eq!(screen(&steps), ["[1]<stdout>:dos", "[1]<stdout>:file", "[0]<stderr>:bar"]);
}

#[test]
fn a_bar_never_wraps() {
    let bar = format!("[0]<stderr>:\x1b[32m{}\r", "█".repeat(COLUMNS));
    let steps = [Text(0, Stderr, &bar), Note("a line\n")];
    assert_eq!(screen(&steps), ["a line".to_owned(), format!("[0]<stderr>:{}", "█".repeat(27))]);
    assert!(bytes(&steps[..1]).ends_with("█\x1b[m\x1b[K".as_bytes()));
}

#[test]
fn a_bar_of_another_rank_waits_for_unfinished_lines() {
    let bar = || Text(1, Stderr, "[1]<stderr>:10%\r");
    let steps = [bar(), Live("\r 50%|")];
    assert_eq!(screen(&steps), [" 50%|"]);
    let steps = [bar(), Live("\r 50%|"), Live("\n")];
    assert_eq!(screen(&steps), [" 50%|", "[1]<stderr>:10%"]);
    let steps = [Live("a\n"), bar(), Live("b\n")];
    assert_eq!(screen(&steps), ["a", "b", "[1]<stderr>:10%"]);
}

#[test]
fn a_rank_that_dies_in_the_middle_leaves_the_terminal_in_order() {
    let steps = [Live("\x1b[?25l\x1b[31m 50%"), EndLive, Note("error\n")];
    assert_eq!(bytes(&steps), b"\x1b[?25l\x1b[31m 50%\x1b[m\x1b[?25h\nerror\n");
    assert_eq!(bytes(&[Live("a\n"), EndLive, EndLive]), b"a\n");
}

#[test]
fn no_program_output_causes_unbounded_growth_or_a_panic() {
    let mut display = Display::new(COLUMNS);
    for piece in [
        "\x1b[5A",
        "\x1b[99B",
        "\x1b[H",
        "\x1b[2J",
        "\x1b[J",
        "\x1b[3A\x1b[J",
        "\x1b[999999999999999A",
    ] {
        display.pass_through(piece.as_bytes());
        display.print(b"line\n");
        display.pass_through("a\n".repeat(100).as_bytes());
        display.pass_through(piece.as_bytes());
        display.print(b"line\n");
    }
    let endless = display.pass_through(b"\x1b[").len();
    assert_eq!(endless, 0);
    assert_eq!(display.pass_through(&b"1;".repeat(300)).len(), 602);
    for _ in 0..100 {
        display.pass_through(&[b'x'; 10_000]);
    }
    assert!(display.print(b"line\n").len() < 100_000);
}
