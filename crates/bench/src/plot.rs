//! Charts in SVG: latency by percentile.

use std::io;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 440);
/// Width of the legend, at the right.
const LEGEND_WIDTH: u32 = 250;
/// Distance between lines of the legend.
const LEGEND_LINE_HEIGHT: i32 = 21;
/// If the ratio of greatest to least time exceeds this, the scale is logarithmic.
const LOG_SCALE_RATIO: f64 = 30.0;
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

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An error of the drawing library.
pub type DrawingError = DrawingAreaErrorKind<io::Error>;

fn colour(n: usize) -> RGBColor {
    COLOURS.get(n % COLOURS.len()).copied().unwrap_or(BLACK)
}

/// Draws latency curves. A point is `(nines, ms)`; 2 nines are the 99th percentile. If the times
/// differ widely, the scale is logarithmic.
///
/// # Errors
///
/// An error of the drawing library.
pub fn percentiles(
    title: &str,
    series: &[(&str, Vec<(f64, f64)>)],
) -> Result<String, DrawingError> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(0.0, f64::max).max(1e-3);
    let bottom = points().map(|p| p.1).filter(|ms| *ms > 0.0).fold(top, f64::min);
    let is_wide = top / bottom > LOG_SCALE_RATIO;
    let height = |ms: f64| if is_wide { ms.max(bottom).log10() } else { ms };
    let back = |y: &f64| time(if is_wide { 10f64.powf(*y) } else { *y });
    let range = match is_wide {
        true => bottom.log10().floor()..top.log10().ceil(),
        false => 0.0..top * 1.05,
    };
    let lines = (range.end - range.start).round() as usize + 1;
    let mut out = String::new();
    {
        let root = SVGBackend::with_string(&mut out, SIZE).into_drawing_area();
        let (area, names) = frame(&root, title)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(30)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..right, range)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .x_desc("percentile")
            .y_desc("ms")
            .x_labels(right.ceil() as usize + 1)
            .x_label_formatter(&|nines| percent(*nines))
            .y_labels(if is_wide { lines } else { 8 })
            .y_label_formatter(&back)
            .draw()?;
        for (n, (_, points)) in series.iter().enumerate() {
            let points = points.iter().map(|(nines, ms)| (*nines, height(*ms)));
            let line = LineSeries::new(points, colour(n).stroke_width(2));
            chart.draw_series(line)?;
        }
        draw_legend(&names, series.iter().map(|(name, _)| *name))?;
        root.present()?;
    }
    Ok(out)
}

/// Draws the title. Returns the areas for the curves and for the legend.
fn frame<'a>(root: &Area<'a>, title: &str) -> Result<(Area<'a>, Area<'a>), DrawingError> {
    root.fill(&WHITE)?;
    let area = root.titled(title, ("sans-serif", 20))?;
    Ok(area.split_horizontally(SIZE.0 - LEGEND_WIDTH))
}

/// Draws the names of the series beside their colours.
fn draw_legend<'n>(
    area: &Area<'_>,
    names: impl Iterator<Item = &'n str>,
) -> Result<(), DrawingError> {
    for (n, name) in names.enumerate() {
        let y = 18 + LEGEND_LINE_HEIGHT * i32::try_from(n).unwrap_or(0);
        let mark = Rectangle::new([(4, y), (18, y + 10)], colour(n).filled());
        area.draw(&mark)?;
        let text = Text::new(name.to_owned(), (26, y - 1), ("sans-serif", 13));
        area.draw(&text)?;
    }
    Ok(())
}

fn percent(nines: f64) -> String {
    let share = 100.0 - 100.0 / 10f64.powf(nines);
    match nines {
        n if n < 1.0 => format!("{share:.0} %"),
        n => format!("{share:.*} %", (n - 2.0).max(0.0).ceil() as usize),
    }
}

/// Formats milliseconds: the smaller, the more decimals, three at most.
fn time(ms: f64) -> String {
    match ms {
        ms if ms >= 10.0 => amount(ms.round()),
        ms if ms >= 1.0 => format!("{ms:.1}"),
        ms if ms > 0.0 => format!("{ms:.3}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        _ => "0".to_owned(),
    }
}

/// Formats a number with commas between thousands. Fractions below 10 have one decimal.
fn amount(value: f64) -> String {
    if value.abs() < 10.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        let all = [140_000.0, 999.0, 1000.0, 0.0, 2.5].map(amount);
        assert_eq!(all, ["140,000", "999", "1,000", "0", "2.5"]);
        assert_eq!([0.0, 0.01, 1.0, 2500.0].map(time), ["0", "0.01", "1.0", "2,500"]);
    }

    #[test]
    fn every_series_is_named_once() {
        let series =
            [("alpha", vec![(0.0, 1.0), (2.0, 2.0)]), ("beta", vec![(0.0, 1.0), (2.0, 900.0)])];
        let svg = percentiles("T", &series).unwrap();
        assert_eq!((svg.matches("alpha").count(), svg.matches("beta").count()), (1, 1), "{svg}");
        assert!(svg.contains("1,000"), "to a logarithmic scale");
        let none: [(&str, Vec<(f64, f64)>); 0] = [];
        assert!(percentiles("T", &none).is_ok());
    }
}
