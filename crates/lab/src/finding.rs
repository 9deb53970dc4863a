//! What an experiment found.

use std::fmt::Write as _;

/// Rows under headings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// What is shown, in the order in which it is read.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Table(Table),
    /// Texts in columns of their own, side by side where there is room.
    Blocks(Vec<String>),
    Remark(String),
    Picture {
        svg: String,
        caption: String,
    },
}

/// Everything that an experiment leaves behind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    /// Published figures and those of this machine: what, there, here.
    beside: Vec<[String; 3]>,
    /// Where this machine differs, and why.
    because: Vec<String>,
    parts: Vec<Part>,
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

    pub(crate) fn heads(&self) -> &[String] {
        &self.heads
    }

    pub(crate) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    fn tsv(&self) -> String {
        let lines = std::iter::once(&self.heads).chain(&self.rows).map(|row| row.join("\t"));
        lines.fold(String::new(), |out, line| out + &line + "\n")
    }
}

impl Finding {
    /// A published figure and its counterpart.
    pub(crate) fn beside(&mut self, what: &str, published: &str, here: impl Into<String>) {
        self.beside.push([what.to_owned(), published.to_owned(), here.into()]);
    }

    /// A sentence on where this machine differs from the published figures, and why.
    pub(crate) fn because(&mut self, text: impl Into<String>) {
        self.because.push(text.into());
    }

    /// A table, to be read and as raw data.
    pub(crate) fn table(&mut self, name: &str, table: &Table) {
        self.parts.push(Part::Table(table.clone()));
        self.raw.push((name.to_owned(), table.tsv()));
    }

    /// A remark.
    pub(crate) fn remark(&mut self, text: &str) {
        self.parts.push(Part::Remark(text.to_owned()));
    }

    /// Texts whose lines stay as they are, side by side where there is room.
    pub(crate) fn blocks(&mut self, texts: Vec<String>) {
        self.parts.push(Part::Blocks(texts));
    }

    /// A picture as SVG, and what is to be seen in it; one that cannot be drawn becomes a remark.
    pub(crate) fn picture(&mut self, name: &str, caption: &str, svg: Result<String, String>) {
        match svg {
            Ok(svg) => {
                self.parts.push(Part::Picture { svg: svg.clone(), caption: caption.to_owned() });
                self.pictures.push((name.to_owned(), svg));
            }
            Err(e) => self.remark(&format!("The picture {name} could not be drawn: {e}")),
        }
    }

    /// Published figures beside those of this machine, if there are any.
    pub(crate) fn comparison(&self) -> Option<Table> {
        let mut table = Table::new(&["", "the article saw", "this machine"]);
        self.beside.iter().for_each(|row| table.row(row));
        (!self.beside.is_empty()).then_some(table)
    }

    pub(crate) fn reasons(&self) -> &[String] {
        &self.because
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// All of it for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut texts: Vec<String> = self.comparison().iter().map(Table::text).collect();
        texts.extend(self.because.iter().map(|text| wrap(text)));
        texts.extend(self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table.text()),
            Part::Blocks(blocks) => Some(blocks.join("\n")),
            Part::Remark(text) => Some(wrap(text)),
            Part::Picture { .. } => None,
        }));
        texts.join("\n")
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
