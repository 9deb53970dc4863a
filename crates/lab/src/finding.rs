//! What an experiment found.

use std::fmt::Write as _;

/// Rows under headings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Everything that an experiment leaves behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    /// Texts in the order in which they are read: tables, histograms, remarks.
    pub(crate) texts: Vec<String>,
    /// Name and tab-separated values.
    pub(crate) raw: Vec<(String, String)>,
    /// Name and SVG.
    pub(crate) pictures: Vec<(String, String)>,
}

impl Table {
    pub(crate) fn new(heads: &[&str]) -> Table {
        Table { heads: heads.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    /// Columns, the first to the left and the others to the right.
    pub(crate) fn text(&self) -> String {
        let all = || std::iter::once(&self.heads).chain(&self.rows);
        let mut widths = vec![0; self.heads.len()];
        for row in all() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = String::new();
        for row in all() {
            let mut line = String::new();
            for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match n {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn tsv(&self) -> String {
        let lines = std::iter::once(&self.heads).chain(&self.rows).map(|row| row.join("\t"));
        lines.fold(String::new(), |out, line| out + &line + "\n")
    }
}

impl Finding {
    /// A table, as text and as raw data.
    pub(crate) fn table(&mut self, name: &str, table: &Table) {
        self.texts.push(table.text());
        self.raw.push((name.to_owned(), table.tsv()));
    }

    /// A remark, wrapped for a terminal.
    pub(crate) fn remark(&mut self, text: &str) {
        self.texts.push(wrap(text));
    }

    /// A picture; one that cannot be drawn becomes a remark.
    pub(crate) fn picture(&mut self, name: &str, svg: Result<String, String>) {
        match svg {
            Ok(svg) => self.pictures.push((name.to_owned(), svg)),
            Err(e) => self.remark(&format!("The picture {name} could not be drawn: {e}")),
        }
    }
}

/// Breaks a text into lines of at most 100 columns.
pub(crate) fn wrap(text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > 100 {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out + "\n"
}
