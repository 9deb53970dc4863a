//! Compares the model's values with the measured ones.

/// The values of several measurements, or of several runs of the model.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredValues(Vec<f64>);

impl MeasuredValues {
    pub(super) fn push(&mut self, value: f64) {
        let place = self.0.partition_point(|v| *v < value);
        self.0.insert(place, value);
    }

    fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    fn most(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    fn contains(&self, value: f64) -> bool {
        (self.least()..=self.most()).contains(&value)
    }

    /// `least to most`, or one value if both are equal.
    pub(super) fn text(&self) -> String {
        let (least, most) = (format!("{:.1}", self.least()), format!("{:.1}", self.most()));
        if least == most { least } else { format!("{least} to {most}") }
    }
}

/// Values that differ by less than this share count as equal. The cost of a request is not known
/// more precisely.
const RESOLUTION: f64 = 0.02;

/// The model agrees if its median is in the measured range, or the measured median in the model's
/// range. Otherwise the text says how far the medians are apart.
pub(super) fn verdict(seen: &MeasuredValues, model: &MeasuredValues) -> String {
    let (real, drawn) = (seen.median(), model.median());
    let near = (drawn - real).abs() <= RESOLUTION * real.abs();
    if near || seen.contains(drawn) || model.contains(real) {
        return "inside".to_owned();
    }
    match (drawn / real - 1.0) * 100.0 {
        far if !far.is_finite() => format!("outside, {drawn:.1} for {real:.1}"),
        far if far < 0.0 => format!("outside, {:.0} % below", -far),
        far => format!("outside, {far:.0} % above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const N: usize>(all: [f64; N]) -> MeasuredValues {
        let mut values = MeasuredValues::default();
        all.into_iter().for_each(|value| values.push(value));
        values
    }

    #[test]
    fn verdicts_say_how_far() {
        let seen = values([4.0, 2.0, 3.0]);
        let of = |all| verdict(&seen, &values(all));
        assert_eq!(of([2.5, 9.0, 2.5]), "inside", "its middle is in what was measured");
        assert_eq!(of([1.0, 1.1, 3.2]), "inside", "it has the middle of what was measured");
        assert_eq!(of([1.4, 1.5, 1.6]), "outside, 50 % below");
        assert_eq!(of([6.0, 6.0, 7.0]), "outside, 100 % above");
        assert_eq!(verdict(&values([0.0]), &values([2.0])), "outside, 2.0 for 0.0");
        assert_eq!(verdict(&values([100.0]), &values([101.0])), "inside", "nobody can tell");
        assert_eq!((seen.text(), values([3.0]).text()), ("2.0 to 4.0".into(), "3.0".into()));
    }
}
