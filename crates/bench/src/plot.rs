//! Pictures as SVG text: lines by percentile, and bars side by side.

use std::fmt::Display;

use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 480);
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0xbc, 0xbd, 0x22),
    RGBColor(0x39, 0x3b, 0x79),
    RGBColor(0xad, 0x49, 0x4a),
];

fn text_of(e: impl Display) -> String {
    e.to_string()
}

fn colour(n: usize) -> RGBColor {
    COLOURS.get(n % COLOURS.len()).copied().unwrap_or(BLACK)
}

/// Latency curves: each point is `(nines, ms)`, 2 nines being the 99th percentile.
///
/// # Errors
///
/// What the drawing library says.
pub fn percentiles(title: &str, series: &[(&str, Vec<(f64, f64)>)]) -> Result<String, String> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(0.0, f64::max).max(1e-3) * 1.05;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text_of)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(text_of)?;
        chart
            .configure_mesh()
            .x_desc("percentile")
            .y_desc("ms")
            .x_labels(right.ceil() as usize + 1)
            .x_label_formatter(&|nines| percent(*nines))
            .draw()
            .map_err(text_of)?;
        for (n, (name, points)) in series.iter().enumerate() {
            let line = LineSeries::new(points.iter().copied(), colour(n).stroke_width(2));
            let drawn = chart.draw_series(line).map_err(text_of)?;
            drawn.label(*name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], colour(n).stroke_width(2))
            });
        }
        let mut legend = chart.configure_series_labels();
        legend.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
        legend.position(SeriesLabelPosition::UpperLeft).draw().map_err(text_of)?;
        root.present().map_err(text_of)?;
    }
    Ok(out)
}

/// Groups of bars: a group per label, in it a bar per series.
///
/// # Errors
///
/// What the drawing library says.
pub fn bars(
    title: &str,
    unit: &str,
    labels: &[String],
    series: &[(String, Vec<f64>)],
) -> Result<String, String> {
    let all = || series.iter().flat_map(|(_, values)| values.iter().copied());
    let top = all().fold(0.0, f64::max).max(1e-9) * 1.08;
    let right = labels.len().max(1) as f64;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(text_of)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 22))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(text_of)?;
        let label = |x: &f64| {
            // A label stands at the middle of its group.
            let at = ((x - 0.5).abs() % 1.0 < 0.01).then(|| (x - 0.5).round() as usize);
            at.and_then(|n| labels.get(n)).cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(labels.len() * 2 + 1)
            .x_label_formatter(&label)
            .y_desc(unit)
            .draw()
            .map_err(text_of)?;
        let width = 0.8 / series.len().max(1) as f64;
        for (n, (name, values)) in series.iter().enumerate() {
            let left = |group: usize| group as f64 + 0.1 + n as f64 * width;
            let boxes = values.iter().enumerate().map(|(group, value)| {
                let corners = [(left(group), 0.0), (left(group) + width * 0.95, *value)];
                Rectangle::new(corners, colour(n).filled())
            });
            let drawn = chart.draw_series(boxes).map_err(text_of)?;
            drawn.label(name.as_str()).legend(move |(x, y)| {
                Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour(n).filled())
            });
        }
        if series.len() > 1 {
            let mut legend = chart.configure_series_labels();
            legend.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
            legend.position(SeriesLabelPosition::UpperRight).draw().map_err(text_of)?;
        }
        root.present().map_err(text_of)?;
    }
    Ok(out)
}

fn percent(nines: f64) -> String {
    let share = 100.0 - 100.0 / 10f64.powf(nines);
    match nines {
        n if n < 1.0 => format!("{share:.0} %"),
        n => format!("{share:.*} %", (n - 2.0).max(0.0).ceil() as usize),
    }
}
