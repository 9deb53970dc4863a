//! The values on a terminal, live.

use std::collections::{BTreeMap, VecDeque};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use crate::fetch::FetchError;
use crate::plain::{bar, columns, or_no_loop, totals};
use crate::values::{LoopRow, ShownValues};
use crate::words::{age, count, cut, percent, time, wait};

/// The state of the screen.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub values: ShownValues,
    /// Why there is no newer snapshot.
    pub trouble: Option<FetchError>,
    pub paused: bool,
    /// Whether loops are sorted by work.
    sorted: bool,
    /// Index of the first shown loop.
    first: usize,
    /// The longest wait of each loop in each of the last seconds, in microseconds, the newest last.
    waits: BTreeMap<(u32, u32), VecDeque<f64>>,
}

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAction {
    Leave,
    Pause,
    Sort,
    Up,
    Down,
}

/// Number of waits to keep per loop.
const WAITS_KEPT: usize = 60;
/// Width of a loop's line without its bar and its waits.
const FIXED_WIDTH: usize = 55;

/// The widths of a bar and of the waits, for a line of this width.
fn widths(width: usize) -> (usize, usize) {
    let bar = if width < 110 { 12 } else { 24 };
    (bar, width.saturating_sub(FIXED_WIDTH + bar).min(WAITS_KEPT))
}

const NORMAL: Style = Style::new().fg(Color::Cyan);
const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red);
const ALARM: Style =
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD).add_modifier(Modifier::REVERSED);

impl Screen {
    /// Shows newer values.
    pub(crate) fn take(&mut self, values: ShownValues) {
        self.trouble = None;
        self.waits.retain(|key, _| values.loops.iter().any(|l| l.key == *key));
        for l in &values.loops {
            let waits = self.waits.entry(l.key).or_default();
            waits.push_back(l.blocked);
            while waits.len() > WAITS_KEPT {
                waits.pop_front();
            }
        }
        self.values = values;
    }

    pub(crate) fn apply(&mut self, key_action: KeyAction) {
        match key_action {
            KeyAction::Leave => {}
            KeyAction::Pause => self.paused = !self.paused,
            KeyAction::Sort => self.sorted = !self.sorted,
            KeyAction::Up => self.first = self.first.saturating_sub(1),
            KeyAction::Down => {
                self.first = (self.first + 1).min(self.values.loops.len().saturating_sub(1))
            }
        }
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let f = &self.values;
        let width = usize::from(frame.area().width);
        let (rest, (bar, waits)) = (self.rest(width), widths(width));
        let most = frame.area().height.saturating_sub(7);
        // The tables below get up to half of the height.
        let below = (rest.height() as u16).min(most / 2);
        let loops = (f.loops.len() as u16).min(most - below);
        let parts = [3, 1, loops, 1, 0, 1].map(Constraint::Length);
        let mut parts = parts.to_vec();
        parts[4] = Constraint::Min(0);
        let areas = Layout::vertical(parts).split(frame.area());
        let state = if f.state.1 { ALARM } else { BOLD };
        let head = Text::from(vec![
            Line::styled(cut(&f.about, width), BOLD),
            Line::styled(cut(&f.state.0, width), state),
            Line::raw(cut(&totals(f), width)),
        ]);
        frame.render_widget(Paragraph::new(head), areas[0]);
        let names = format!(
            "{:>7} {:<bar$} {:>6} {:>10} {:>6} {:>9} {:>9}  {}",
            "loop",
            "at work",
            "",
            "requests/s",
            "open",
            "in flight",
            "longest",
            if waits < 26 { "waits".to_owned() } else { format!("waits of the last {waits} s") }
        );
        frame.render_widget(Line::styled(cut(&names, width), DIM), areas[1]);
        self.draw_loops(frame, areas[2]);
        let hidden = f.loops.len().saturating_sub(usize::from(loops));
        let more =
            if hidden > 0 { format!("{hidden} loops more: ↑ ↓ · ") } else { String::new() };
        let next = format!("{more}▾ woken next: {}", or_no_loop(&f.next));
        frame.render_widget(Line::styled(cut(&next, width), DIM), areas[3]);
        frame.render_widget(Paragraph::new(rest), areas[4]);
        let foot = match &self.trouble {
            Some(trouble) => Line::styled(format!("no answer: {trouble}"), ALARM),
            None => Line::styled(self.keys(), DIM),
        };
        frame.render_widget(foot, areas[5]);
    }

    fn keys(&self) -> String {
        let paused = if self.paused { "PAUSED  " } else { "" };
        let sort = if self.sorted { "in their order" } else { "by their work" };
        format!("{paused}q leave  p pause  s sort loops {sort}  ↑ ↓ scroll")
    }

    fn draw_loops(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut loops: Vec<&LoopRow> = self.values.loops.iter().collect();
        if self.sorted {
            loops.sort_by(|a, b| b.share.total_cmp(&a.share));
        }
        let mean = loops.iter().map(|l| l.share).sum::<f64>() / loops.len().max(1) as f64;
        let height = usize::from(area.height);
        let first = self.first.min(loops.len().saturating_sub(height));
        let lines: Vec<Line<'_>> =
            loops.iter().skip(first).take(height).map(|l| self.line(l, mean, area.width)).collect();
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn line(&self, l: &LoopRow, mean: f64, width: u16) -> Line<'_> {
        let (full, widths) = widths(width.into());
        // A share of more than twice the mean is marked by a sign in addition to its colour.
        let high = mean > 0.02 && l.share > 2.0 * mean;
        let style = if high { Style::new().fg(Color::Red) } else { NORMAL };
        let waits = self.waits.get(&l.key);
        let before = waits.map_or(0, |waits| waits.len().saturating_sub(widths));
        let waits = waits.into_iter().flatten().skip(before);
        Line::from(vec![
            Span::raw(format!("{} {:>5} ", if l.armed { "▾" } else { " " }, l.name)),
            Span::styled(format!("{:<full$}", bar(l.share, full)), style),
            Span::raw(format!(
                " {:>5}{} {:>10} {:>6} {:>9} {:>9}  ",
                percent(l.share),
                if high { "!" } else { " " },
                count(l.requests),
                l.open,
                l.inflight,
                wait(l.blocked)
            )),
            Span::styled(waits.map(|micros| height(*micros)).collect::<String>(), NORMAL),
        ])
    }

    /// The tables, then the causes of blocked loops.
    fn rest(&self, width: usize) -> Text<'_> {
        let mut lines = Vec::new();
        for table in &self.values.tables {
            lines.extend([Line::raw(""), Line::styled(table.title, BOLD)]);
            let text = columns(table, width).into_iter();
            let styles = table.rows.iter().map(|row| if row.alarm { BAD } else { Style::new() });
            let styles = std::iter::once(DIM).chain(styles);
            lines.extend(text.zip(styles).map(|(line, style)| Line::styled(line, style)));
        }
        if !self.values.culprits.is_empty() {
            lines.extend([Line::raw(""), Line::styled("What held loops up", BOLD)]);
        }
        for c in self.values.culprits.iter().take(6) {
            let (longest, last) = (time(c.longest), age(c.last));
            let times = if c.times == 1 { "once".into() } else { format!("{} times", c.times) };
            let (line, style) = match c.running {
                true => (format!("  {longest:>8} so far: {}", c.what), BAD),
                false => (format!("  {longest:>8}, {times}, {last} ago: {}", c.what), Style::new()),
            };
            lines.push(Line::styled(cut(&line, width), style));
        }
        Text::from(lines)
    }
}

/// The height of a wait: a step for each factor of three from a millisecond on.
fn height(micros: f64) -> char {
    const HEIGHTS: &[char] = &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = if micros < 1000.0 { 0 } else { 1 + (micros / 1000.0).log(3.0) as usize };
    HEIGHTS[step.min(HEIGHTS.len() - 1)]
}
