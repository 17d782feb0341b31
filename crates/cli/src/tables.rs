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
}
