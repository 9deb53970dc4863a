//! Charts: rows of dots on one scale. The page draws them without a fixed size, so that phones show
//! them legibly.

use serde::{Deserialize, Serialize};
use weir_bench::RunOutcome;

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scale {
    /// From zero to the largest value.
    Linear,
    /// Logarithmic: each step is a factor.
    Log,
}

/// Rows of dots on one scale.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the scale counts, and which end is better.
    pub(crate) unit: String,
    pub(crate) caption: String,
    pub(crate) scale: Scale,
    /// The names of the first dots of each row. Each gets a number. The other dots have none.
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<ChartRow>,
}

/// A row of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChartRow {
    pub(crate) label: String,
    pub(crate) dots: Vec<Dot>,
}

/// The values of a cell in all rounds. Empty if none was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Dot(Vec<f64>);

impl Dot {
    /// The median of the rounds.
    pub(crate) fn value(&self) -> Option<f64> {
        let mut all = self.0.clone();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// The smallest and the largest value of the rounds.
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        let least = self.0.iter().copied().min_by(f64::total_cmp);
        least.zip(self.0.iter().copied().max_by(f64::total_cmp))
    }
}

impl Chart {
    pub(crate) fn new(title: &str, unit: &str, scale: Scale, columns: &[&str]) -> Chart {
        let columns = columns.iter().map(|c| (*c).to_owned()).collect();
        let (title, unit) = (title.to_owned(), unit.to_owned());
        Chart { title, unit, caption: String::new(), scale, columns, rows: Vec::new() }
    }

    pub(crate) fn caption(mut self, text: &str) -> Chart {
        text.clone_into(&mut self.caption);
        self
    }

    /// A chart of the latency percentiles of these runs, with a row per run.
    pub(crate) fn percentiles<'a>(
        title: &str,
        runs: impl IntoIterator<Item = (&'a str, &'a RunOutcome)>,
    ) -> Chart {
        let columns = ["p50", "p90", "p99", "p99.9", "max"];
        let mut chart = Chart::new(title, "ms, less is better", Scale::Log, &columns);
        for (label, run) in runs {
            let at = [50.0, 90.0, 99.0, 99.9].map(|percent| run.tally.percentile(percent));
            chart.row(label, at.into_iter().chain([run.tally.log2.max()]));
        }
        chart
    }

    /// Adds a row with the values of one round. A value that is not finite is left out.
    pub(crate) fn row(&mut self, label: &str, values: impl IntoIterator<Item = f64>) {
        let dot = |value: f64| Dot(if value.is_finite() { vec![value] } else { Vec::new() });
        let dots = values.into_iter().map(dot).collect();
        self.rows.push(ChartRow { label: label.to_owned(), dots });
    }

    /// Adds the values of another round. Rows are matched by label.
    pub(crate) fn join(&mut self, other: &Chart) {
        for row in &mut self.rows {
            let Some(more) = other.rows.iter().find(|more| more.label == row.label) else {
                continue;
            };
            for (dot, more) in row.dots.iter_mut().zip(&more.dots) {
                dot.0.extend(&more.0);
            }
        }
    }

    /// The least and the greatest value of the scale.
    pub(crate) fn ends(&self) -> (f64, f64) {
        let ranges = self.rows.iter().flat_map(|row| &row.dots).filter_map(Dot::range);
        let (least, most) = ranges.fold((f64::INFINITY, 0.0_f64), |(least, most), (low, high)| {
            (if low > 0.0 { least.min(low) } else { least }, most.max(high))
        });
        let most = if most > 0.0 { most } else { 1.0 };
        match self.scale {
            Scale::Linear => (0.0, most * 1.02),
            Scale::Log => ((least.min(most / 2.0) / 1.15).max(most * 1e-6), most * 1.15),
        }
    }

    /// The position of a value on the scale, from 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let (least, most) = self.ends();
        let place = match self.scale {
            Scale::Linear => (value - least) / (most - least),
            Scale::Log => (value.max(least) / least).ln() / (most / least).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// Round values on the scale, for its labels.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.ends();
        let inside = |value: &f64| (least..=most).contains(value);
        match self.scale {
            Scale::Linear => {
                let power = 10f64.powf((most / 4.0).log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
                let step = step.into_iter().find(|step| most / step <= 4.5).unwrap_or(power);
                (0..6).map(|n| f64::from(n) * step).filter(inside).collect()
            }
            Scale::Log => {
                let decades = |steps: &[f64]| {
                    let from = least.log10().floor() as i32;
                    let powers = (from..=most.log10().ceil() as i32).map(|n| 10f64.powi(n));
                    let all = powers.flat_map(|power| steps.iter().map(move |n| n * power));
                    all.filter(inside).collect::<Vec<f64>>()
                };
                let each = [&[1.0, 2.0, 5.0][..], &[1.0], &[1.0]];
                let all = each.map(decades);
                all.iter().find(|ticks| ticks.len() <= 6).unwrap_or(&all[2]).clone()
            }
        }
    }
}

/// Formats a number with two or three digits. Thousands end with `k`.
pub(crate) fn amount(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 10_000.0 => format!("{:.0}k", value / 1000.0),
        _ if size >= 1000.0 => format!("{:.1}k", value / 1000.0),
        _ if size >= 100.0 || value == 0.0 || (size >= 1.0 && value.fract() == 0.0) => {
            format!("{value:.0}")
        }
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, values: &[f64]) -> Chart {
        let mut chart = Chart::new("", "ms", scale, &["p50"]);
        values.iter().for_each(|value| chart.row(&value.to_string(), [*value]));
        chart
    }

    #[test]
    fn rounds_make_a_range() {
        let mut one = chart(Scale::Log, &[1.0]);
        for value in [3.0, 2.0] {
            let mut other = chart(Scale::Log, &[]);
            other.row("1", [value]);
            one.join(&other);
        }
        let dot = &one.rows[0].dots[0];
        assert_eq!((dot.value(), dot.range()), (Some(2.0), Some((1.0, 3.0))));
        let none = chart(Scale::Log, &[f64::NAN]);
        assert_eq!((none.rows[0].dots[0].value(), none.rows[0].dots[0].range()), (None, None));
    }

    proptest::proptest! {
        #[test]
        fn every_value_has_a_position_on_the_scale(
            values in proptest::collection::vec(0.0..1e7f64, 0..20),
            log: bool,
        ) {
            let chart = chart(if log { Scale::Log } else { Scale::Linear }, &values);
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let places: Vec<f64> = sorted.iter().map(|value| chart.place(*value)).collect();
            proptest::prop_assert!(places.iter().all(|at| (0.0..=1.0).contains(at)));
            proptest::prop_assert!(places.is_sorted());
            let ticks = chart.ticks();
            proptest::prop_assert!(ticks.len() <= 10 && ticks.is_sorted(), "{:?}", ticks);
        }
    }

    #[test]
    fn amounts_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (2.0, "2"),
            (2.345, "2.35"),
            (23.45, "23.4"),
            (1234.0, "1.2k"),
            (45_678.0, "46k"),
        ] {
            assert_eq!(amount(value), text);
        }
    }
}
