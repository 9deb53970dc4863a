//! The finding of an experiment: its answer, tables, charts and raw data.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use weir_bench::Log2Histogram;

use crate::chart::Chart;
use crate::comparison::Comparison;

/// A table with headings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FindingTable {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A part of a finding, in the order of presentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FindingPart {
    Table(FindingTable),
    /// Preformatted texts, side by side if there is room.
    Blocks(Vec<String>),
    Remark(String),
    Chart(Chart),
    /// Histograms side by side.
    Histograms(Vec<DoublingHistogram>),
}

/// A histogram whose bounds double.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DoublingHistogram {
    pub(crate) title: String,
    /// Lower bounds of the rows, and their counts.
    pub(crate) rows: Vec<(u64, u64)>,
    /// The histogram as terminal text.
    text: String,
}

impl DoublingHistogram {
    pub(crate) fn new(title: &str, values: &Log2Histogram, median: f64) -> DoublingHistogram {
        let text = values.render(title, median);
        DoublingHistogram { title: title.to_owned(), rows: values.rows().collect(), text }
    }
}

/// The answer of an experiment: a comparison, and a note for the reader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LabVerdict {
    pub(crate) comparison: Comparison,
    /// A sentence that is true whatever the measurement shows.
    pub(crate) note: String,
}

/// A published result and its counterpart on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Counterpart {
    what: String,
    published: String,
    here: HereFigure,
}

/// The counterpart on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum HereFigure {
    Text(String),
    Compared(Comparison),
}

/// All results of an experiment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LabFinding {
    beside: Vec<Counterpart>,
    /// Where this machine differs from the published results, and why.
    because: Vec<String>,
    parts: Vec<FindingPart>,
    /// Raw data: names and tab-separated values.
    #[serde(skip)]
    pub(crate) raw: Vec<(String, String)>,
    verdict: Option<LabVerdict>,
}

impl FindingTable {
    pub(crate) fn new(heads: &[&str]) -> FindingTable {
        FindingTable { heads: heads.iter().map(|h| (*h).to_owned()).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        self.rows.push(cells.to_vec());
    }

    /// The table as text, with the first column to the left and the others to the right.
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

impl LabFinding {
    /// Adds a published result and its counterpart.
    pub(crate) fn beside(&mut self, what: &str, published: &str, here: impl Into<String>) {
        let (what, published) = (what.to_owned(), published.to_owned());
        self.beside.push(Counterpart { what, published, here: HereFigure::Text(here.into()) });
    }

    /// Adds a published relation and its counterpart.
    pub(crate) fn beside_compared(&mut self, what: &str, published: &str, here: Comparison) {
        let (what, published) = (what.to_owned(), published.to_owned());
        self.beside.push(Counterpart { what, published, here: HereFigure::Compared(here) });
    }

    /// Adds a sentence about a difference from the published results and its reason.
    pub(crate) fn because(&mut self, text: impl Into<String>) {
        self.because.push(text.into());
    }

    /// Adds a table, also as raw data.
    pub(crate) fn table(&mut self, name: &str, table: &FindingTable) {
        self.parts.push(FindingPart::Table(table.clone()));
        self.raw.push((name.to_owned(), table.tsv()));
    }

    /// Adds a remark.
    pub(crate) fn remark(&mut self, text: &str) {
        self.parts.push(FindingPart::Remark(text.to_owned()));
    }

    /// Adds preformatted texts, side by side if there is room.
    pub(crate) fn blocks(&mut self, texts: Vec<String>) {
        self.parts.push(FindingPart::Blocks(texts));
    }

    /// Adds a chart.
    pub(crate) fn chart(&mut self, chart: Chart) {
        self.parts.push(FindingPart::Chart(chart));
    }

    /// Adds histograms side by side.
    pub(crate) fn histograms(&mut self, all: Vec<DoublingHistogram>) {
        self.parts.push(FindingPart::Histograms(all));
    }

    /// Sets the answer. `note` is true whatever the measurement shows.
    pub(crate) fn verdict(&mut self, comparison: Comparison, note: &str) {
        self.verdict = Some(LabVerdict { comparison, note: note.to_owned() });
    }

    /// The answer, if there is one.
    pub(crate) fn answer(&self) -> Option<&LabVerdict> {
        self.verdict.as_ref()
    }

    /// Merges rounds: shows the round with the median answer. Its answer and charts get the values
    /// of all rounds.
    pub(crate) fn of_rounds(mut rounds: Vec<LabFinding>) -> Option<LabFinding> {
        let figure = |finding: &LabFinding| finding.verdict.as_ref()?.comparison.own.figure();
        rounds.sort_by(|a, b| {
            figure(a).unwrap_or_default().total_cmp(&figure(b).unwrap_or_default())
        });
        let middle = rounds.len() / 2;
        let mut shown = rounds.get(middle)?.clone();
        for (n, round) in rounds.iter().enumerate() {
            if n != middle {
                shown.join(round);
            }
        }
        let charts = shown.parts.iter_mut().filter_map(chart_of);
        for (n, chart) in charts.enumerate() {
            let all =
                rounds.iter_mut().filter_map(|r| r.parts.iter_mut().filter_map(chart_of).nth(n));
            let mut all: Vec<&Chart> = all.map(|chart| &*chart).collect();
            let mut joined = all.remove(0).clone();
            all.into_iter().for_each(|other| joined.join(other));
            // The rows keep the order of the shown round.
            chart.rows.iter_mut().for_each(|row| {
                if let Some(all) = joined.rows.iter().find(|other| other.label == row.label) {
                    row.clone_from(all);
                }
            });
        }
        Some(shown)
    }

    /// Adds the compared values of another round.
    fn join(&mut self, round: &LabFinding) {
        if let (Some(own), Some(other)) = (&mut self.verdict, &round.verdict) {
            own.comparison.join(&other.comparison);
        }
        for own in &mut self.beside {
            let other = round.beside.iter().find(|other| other.what == own.what);
            if let (HereFigure::Compared(own), Some(HereFigure::Compared(other))) =
                (&mut own.here, other.map(|other| &other.here))
            {
                own.join(other);
            }
        }
    }

    /// Published results beside those of this machine, if there are any.
    pub(crate) fn comparison(&self) -> Option<FindingTable> {
        let mut table = FindingTable::new(&["", "the article saw", "this machine"]);
        for Counterpart { what, published, here } in &self.beside {
            table.row(&[what.clone(), published.clone(), here.text()]);
        }
        (!self.beside.is_empty()).then_some(table)
    }

    pub(crate) fn reasons(&self) -> &[String] {
        &self.because
    }

    pub(crate) fn parts(&self) -> &[FindingPart] {
        &self.parts
    }

    /// The finding as text for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut texts: Vec<String> = self.verdict.iter().map(LabVerdict::text).collect();
        let beside = self.beside.iter().map(Counterpart::text);
        texts.extend((!self.beside.is_empty()).then(|| beside.collect()));
        texts.extend(self.because.iter().map(|text| wrap(text)));
        texts.extend(self.parts.iter().filter_map(|part| match part {
            FindingPart::Table(table) => Some(table.text()),
            FindingPart::Blocks(blocks) => Some(blocks.join("\n")),
            FindingPart::Remark(text) => Some(wrap(text)),
            FindingPart::Histograms(all) => {
                Some(all.iter().map(|h| h.text.as_str()).collect::<Vec<_>>().join("\n"))
            }
            FindingPart::Chart(_) => None,
        }));
        texts.join("\n")
    }
}

fn chart_of(part: &mut FindingPart) -> Option<&mut Chart> {
    match part {
        FindingPart::Chart(chart) => Some(chart),
        _ => None,
    }
}

impl HereFigure {
    fn text(&self) -> String {
        match self {
            HereFigure::Text(text) => text.clone(),
            HereFigure::Compared(comparison) => comparison.line(),
        }
    }
}

impl Counterpart {
    /// One line, or several if the texts are long.
    fn text(&self) -> String {
        let Counterpart { what, published, here } = self;
        let here = here.text();
        match published.as_str() {
            "-" => wrap(&format!("{what}: {here}")),
            _ => wrap(&format!("{what}: published {published}; here {here}")),
        }
    }
}

impl LabVerdict {
    fn text(&self) -> String {
        let rounds = match self.comparison.rounds() {
            0 | 1 => String::new(),
            rounds => format!(" {rounds} rounds."),
        };
        wrap(&format!("Here: {}.{rounds} {}", self.comparison.line(), self.note))
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
