//! Tables in plain text and Markdown.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// The columns of the terminal on standard output, if it is one.
pub(crate) fn terminal_width() -> Option<u16> {
    terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| width.0)
}

/// Aligns rows in columns; `right` says which columns are right-aligned. Cells that do not fit into
/// `width` are broken into several lines.
pub(crate) fn plain(rows: &[Vec<String>], right: &[bool], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.get(index) == Some(&true) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

/// Ends lines that do not fit into `width` with `…`.
pub(crate) fn cut(text: &str, width: Option<u16>) -> String {
    let Some(width) = width.map(usize::from).filter(|width| *width > 0) else { return text.into() };
    let line = |line: &str| match line.chars().count() > width {
        true => line.chars().take(width - 1).chain(['…', '\n']).collect(),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// Like `plain`, but a table that is too wide is transposed: the first row becomes the first column.
pub(crate) fn plain_or_transposed(rows: &[Vec<String>], width: Option<u16>) -> String {
    let text = plain(rows, &[], None);
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    if width.is_none_or(|width| longest <= usize::from(width)) {
        return text;
    }
    let columns = rows.iter().map(Vec::len).min().unwrap_or_default();
    let column = |index: usize| rows.iter().map(|row| row[index].clone()).collect();
    let transposed: Vec<Vec<String>> = (0..columns).map(column).collect();
    plain(&transposed, &[], width)
}

/// A table in Markdown: a heading and the cells of each column.
pub(crate) fn markdown(columns: &[(String, Vec<String>)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(columns.iter().map(|(name, _)| name));
    let rows = columns.first().map_or(0, |(_, cells)| cells.len());
    for row in 0..rows {
        table.add_row(columns.iter().map(|(_, cells)| &cells[row]));
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_broken_if_the_terminal_is_narrow() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [row(["n", "what"]), row(["12", "two words and more"])];
        let right = [true, false];
        assert_eq!(plain(&rows, &right, None), " n  what\n12  two words and more\n");
        let narrow = plain(&rows, &right, Some(16));
        assert_eq!(narrow, " n  what\n12  two words\n    and more\n");
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(cut("12345\n123456\n", Some(5)), "12345\n1234…\n");
        assert_eq!(cut("12345\n", None), "12345\n");
    }

    #[test]
    fn a_table_that_is_too_wide_is_transposed() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["host", "CPUs", "memory"]), row(["node-a", "2", "16 GiB"])];
        let wide = "host    CPUs  memory\nnode-a  2     16 GiB\n";
        assert_eq!(plain_or_transposed(&rows, None), wide);
        assert_eq!(plain_or_transposed(&rows, Some(20)), wide);
        let narrow = plain_or_transposed(&rows, Some(19));
        assert_eq!(narrow, "host    node-a\nCPUs    2\nmemory  16 GiB\n");
    }
}
