//! `weir histogram`: reads numbers from standard input and prints their histogram.

use std::io::BufRead;

use crate::Log2Histogram;

/// The numbers of standard input.
pub(crate) struct Numbers {
    /// The histogram as text.
    pub(crate) text: String,
    /// Numbers of the lines, from 1, that do not begin with a number.
    pub(crate) invalid_lines: Vec<usize>,
}

/// Reads the number at the start of each line and ignores the rest. So the raw output of `weir
/// bench` can be used as it is.
pub(crate) fn read(input: impl BufRead, title: &str) -> std::io::Result<Numbers> {
    let mut values: Vec<f64> = Vec::new();
    let mut invalid_lines = Vec::new();
    for (n, line) in input.lines().enumerate() {
        let line = line?;
        let Some(word) = line.split_whitespace().next() else { continue };
        match word.parse::<f64>() {
            Ok(value) if value.is_finite() => values.push(value),
            _ => invalid_lines.push(n + 1),
        }
    }
    values.sort_by(f64::total_cmp);
    let mut all = Log2Histogram::new();
    values.iter().for_each(|&value| all.add(value));
    Ok(Numbers { text: all.render(title, median(&values)), invalid_lines })
}

/// The middle one of sorted values, or the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match (sorted.get(half.wrapping_sub(1)), sorted.get(half)) {
        (Some(low), Some(high)) if sorted.len().is_multiple_of(2) => (low + high) / 2.0,
        (_, Some(middle)) => *middle,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_are_numbers() {
        let numbers = read(&b"1.5 200\n\nx\n  4\n2.5 503\n8\n"[..], "T").unwrap();
        assert_eq!(numbers.invalid_lines, [3]);
        let first = numbers.text.lines().next().unwrap();
        assert_eq!(first, "min:1.50 avg:4.00 med=3.25 max:8.00 dev:2.47 count:4");
        assert!(numbers.text.contains("\nT:\n"));
    }

    #[test]
    fn input_without_numbers_has_zeros() {
        assert!(read(&b""[..], "T").unwrap().text.starts_with("min:0.00 avg:0.00"));
    }
}
