//! Comparisons of measured values, in words that follow from the measurement.
//!
//! Texts of the lab take words such as "less" and "more" from [`Relation`] alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chart::amount;

/// Whether small or large values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Better {
    Less,
    More,
}

/// The relation of a value to another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Relation {
    /// One of them was not measured.
    Unknown,
    /// The difference is within the noise.
    Same,
    /// The value is smaller, by this factor if there is one.
    Less(Option<f64>),
    /// The value is larger, by this factor if there is one.
    More(Option<f64>),
}

/// The relation of a way to another one, in terms of better and worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Ahead,
    Level,
    Behind,
    Unknown,
}

/// With fewer rounds, their spread is not known well.
const MIN_ROUNDS: usize = 3;
/// The margin by which a spread is widened, as a share of its ends: with enough rounds, and with
/// fewer.
const MARGIN: f64 = 0.025;
const MARGIN_OF_FEW: f64 = 0.1;

/// The median of all rounds, and the range of its noise.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    low: f64,
    high: f64,
}

impl Spread {
    /// The spread of finite values. `None` if there are none.
    fn of(rounds: &[f64]) -> Option<Spread> {
        let mut all: Vec<f64> = rounds.iter().copied().filter(|value| value.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let margin = if all.len() < MIN_ROUNDS { MARGIN_OF_FEW } else { MARGIN };
        let (least, most) = (*all.first()?, *all.last()?);
        let median = *all.get(all.len() / 2)?;
        Some(Spread { median, low: least - margin * least.abs(), high: most + margin * most.abs() })
    }
}

impl Relation {
    /// The relation of a value to another one. Each has a value per round.
    pub(crate) fn of(figure: &[f64], other: &[f64]) -> Relation {
        let (Some(figure), Some(other)) = (Spread::of(figure), Spread::of(other)) else {
            return Relation::Unknown;
        };
        let factor = |large: f64, small: f64| {
            Some(large / small).filter(|factor| small > 0.0 && factor.is_finite())
        };
        if figure.high < other.low {
            Relation::Less(factor(other.median, figure.median))
        } else if figure.low > other.high {
            Relation::More(factor(figure.median, other.median))
        } else {
            Relation::Same
        }
    }

    /// The words between a relation and the name of the other way.
    fn than(self) -> &'static str {
        match self {
            Relation::Unknown => "beside",
            Relation::Same => "from",
            Relation::More(Some(factor)) if factor >= 2.0 => "as with",
            Relation::Less(_) | Relation::More(_) => "than with",
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relation::Unknown => f.write_str("not measured"),
            Relation::Same => f.write_str("no difference beyond the noise"),
            Relation::Less(None) => f.write_str("less"),
            Relation::More(None) => f.write_str("more"),
            Relation::Less(Some(factor)) if *factor >= 2.0 => {
                write!(f, "{} times less", amount(*factor))
            }
            Relation::More(Some(factor)) if *factor >= 2.0 => {
                write!(f, "{} times as much", amount(*factor))
            }
            Relation::Less(Some(factor)) => write!(f, "{:.0} % less", 100.0 * (1.0 - 1.0 / factor)),
            Relation::More(Some(factor)) => write!(f, "{:.0} % more", 100.0 * (factor - 1.0)),
        }
    }
}

/// A way to do something, and its measured value in each round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeasuredWay {
    pub(crate) way: String,
    pub(crate) rounds: Vec<f64>,
}

impl MeasuredWay {
    fn new(way: &str, figure: f64) -> MeasuredWay {
        let rounds = Some(figure).filter(|value| value.is_finite()).into_iter().collect();
        MeasuredWay { way: way.to_owned(), rounds }
    }

    /// The median of the rounds.
    pub(crate) fn figure(&self) -> Option<f64> {
        Spread::of(&self.rounds).map(|spread| spread.median)
    }

    /// `2.5 to 3.1`, if the rounds differ.
    fn range(&self) -> Option<String> {
        let least = self.rounds.iter().copied().min_by(f64::total_cmp).map(amount)?;
        let most = self.rounds.iter().copied().max_by(f64::total_cmp).map(amount)?;
        (least != most).then(|| format!("{least} to {most}"))
    }

    /// The figure with its range: `2.8 ms (2.5 to 3.1)`.
    fn text(&self, unit: &str) -> String {
        let figure = self.figure().map_or_else(|| "-".to_owned(), amount);
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        let range = self.range().map(|range| format!(" ({range})")).unwrap_or_default();
        format!("{figure}{unit}{range}")
    }
}

/// A measured quantity of one way, compared with the same quantity of others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    /// The name of the quantity.
    what: String,
    unit: String,
    better: Better,
    pub(crate) own: MeasuredWay,
    pub(crate) others: Vec<MeasuredWay>,
}

impl Comparison {
    /// A comparison of this way with none yet. `what` begins a sentence.
    pub(crate) fn new(
        what: &str,
        unit: &str,
        better: Better,
        (way, figure): (&str, f64),
    ) -> Comparison {
        let (what, unit) = (what.to_owned(), unit.to_owned());
        Comparison { what, unit, better, own: MeasuredWay::new(way, figure), others: Vec::new() }
    }

    /// Adds the value of another way. A way that is already present is ignored.
    pub(crate) fn beside(mut self, (way, figure): (&str, f64)) -> Comparison {
        if self.others.iter().all(|other| other.way != way) {
            self.others.push(MeasuredWay::new(way, figure));
        }
        self
    }

    /// Adds the values of another round.
    pub(crate) fn join(&mut self, round: &Comparison) {
        self.own.rounds.extend(&round.own.rounds);
        for other in &mut self.others {
            let same = round.others.iter().find(|more| more.way == other.way);
            other.rounds.extend(same.iter().flat_map(|more| &more.rounds));
        }
    }

    /// The relation to another way.
    pub(crate) fn relation(&self, other: &MeasuredWay) -> Relation {
        Relation::of(&self.own.rounds, &other.rounds)
    }

    /// Whether this way is better than another one.
    pub(crate) fn standing(&self, other: &MeasuredWay) -> Standing {
        match (self.relation(other), self.better) {
            (Relation::Unknown, _) => Standing::Unknown,
            (Relation::Same, _) => Standing::Level,
            (Relation::Less(_), Better::Less) | (Relation::More(_), Better::More) => {
                Standing::Ahead
            }
            (Relation::Less(_), Better::More) | (Relation::More(_), Better::Less) => {
                Standing::Behind
            }
        }
    }

    /// The factor between this way and another one. 0 if they are level.
    pub(crate) fn distance(&self, other: &MeasuredWay) -> f64 {
        match self.relation(other) {
            Relation::Unknown | Relation::Same => 0.0,
            Relation::Less(factor) | Relation::More(factor) => factor.unwrap_or(f64::INFINITY),
        }
    }

    /// The quantity and this way: `p99 with fair`.
    pub(crate) fn subject(&self) -> String {
        format!("{} with {}", self.what, self.own.way)
    }

    /// `26 % more than with reuseport, 5.1 ms (4.8 to 5.3) against 4 ms`.
    pub(crate) fn beside_other(&self, other: &MeasuredWay) -> String {
        let relation = self.relation(other);
        let (own, others) = (self.own.text(&self.unit), other.text(&self.unit));
        format!("{relation} {} {}, {own} against {others}", relation.than(), other.way)
    }

    /// A sentence about this way and another one.
    pub(crate) fn sentence(&self, other: &MeasuredWay) -> String {
        format!("{}: {}.", self.subject(), self.beside_other(other))
    }

    /// One line about all ways; the figure alone if there is no other way.
    pub(crate) fn line(&self) -> String {
        if self.others.is_empty() {
            return format!("{}: {}", self.subject(), self.own.text(&self.unit));
        }
        let others = self.others.iter().map(|other| self.beside_other(other));
        format!("{}: {}", self.subject(), others.collect::<Vec<_>>().join("; "))
    }

    /// The number of rounds.
    pub(crate) fn rounds(&self) -> usize {
        self.own.rounds.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_follow_sign_and_size() {
        for (figure, other, words) in [
            (&[5.1][..], &[4.04][..], "26 % more"),
            (&[4.04], &[5.1], "21 % less"),
            (&[1.0], &[16.0], "16 times less"),
            (&[16.0], &[1.0], "16 times as much"),
            // The spread of one round is not known.
            (&[1.0], &[1.2], "no difference beyond the noise"),
            (&[1.0], &[1.3], "23 % less"),
            // Two rounds are still few, three show the spread.
            (&[1.0, 1.0], &[1.2, 1.2], "no difference beyond the noise"),
            (&[1.0, 1.0, 1.0], &[1.2, 1.2, 1.2], "17 % less"),
            (&[1.0, 1.0, 1.3], &[1.2, 1.2, 1.2], "no difference beyond the noise"),
            (&[1.0, 1.0, 1.0], &[1.04, 1.04, 1.04], "no difference beyond the noise"),
            // A zero has no factor.
            (&[0.0], &[59.0], "less"),
            (&[59.0, 60.0, 61.0], &[0.0, 0.0, 0.0], "more"),
            (&[0.0], &[0.0], "no difference beyond the noise"),
            (&[-0.0], &[0.0], "no difference beyond the noise"),
            (&[-2.0], &[3.0], "less"),
            (&[-2.0], &[-3.0], "more"),
            (&[], &[3.0], "not measured"),
            (&[f64::NAN], &[3.0], "not measured"),
            (&[f64::NAN, 3.0], &[f64::INFINITY, 3.0], "no difference beyond the noise"),
            (&[1e-300], &[1e300], "less"),
        ] {
            assert_eq!(Relation::of(figure, other).to_string(), words, "{figure:?} {other:?}");
        }
    }

    proptest! {
        #[test]
        fn words_hold_from_both_sides(
            one in proptest::collection::vec(any::<f64>(), 0..5),
            other in proptest::collection::vec(any::<f64>(), 0..5),
        ) {
            let there = Relation::of(&one, &other);
            match (there, Relation::of(&other, &one)) {
                (Relation::Less(a), Relation::More(b)) | (Relation::More(b), Relation::Less(a)) => {
                    prop_assert_eq!(a, b);
                    prop_assert!(a.is_none_or(|factor| factor >= 1.0), "{:?}", a);
                }
                (there, back) => prop_assert_eq!(there, back),
            }
            prop_assert!(matches!(Relation::of(&one, &one), Relation::Same | Relation::Unknown));
            prop_assert!(!there.to_string().contains("NaN"));
        }

        #[test]
        fn a_larger_figure_is_never_called_less(small in 0.0..1e6f64, more in 0.0..1e6f64) {
            prop_assert!(!matches!(Relation::of(&[small + more], &[small]), Relation::Less(_)));
        }
    }

    #[test]
    fn sentences_name_both_figures_and_their_ranges() {
        let round = |fair, each| {
            Comparison::new("p99", "ms", Better::Less, ("fair", fair)).beside(("reuseport", each))
        };
        let mut all = round(5.0, 40.0);
        all.join(&round(6.0, 44.0));
        all.join(&round(5.5, f64::NAN));
        let [other] = &all.others[..] else { panic!("one other way") };
        assert_eq!(all.standing(other), Standing::Ahead);
        assert_eq!(
            all.sentence(other),
            "p99 with fair: 8 times less than with reuseport, 5.50 ms (5 to 6) against 44 ms (40 to 44)."
        );
        let other = round(5.0, 4.0);
        assert_eq!(other.standing(&other.others[0]), Standing::Behind);
        assert_eq!(other.line(), "p99 with fair: 25 % more than with reuseport, 5 ms against 4 ms");
        let rate = Comparison::new("Rate", "", Better::More, ("fair", 5.0)).beside(("other", 4.0));
        assert_eq!(rate.standing(&rate.others[0]), Standing::Ahead);
    }
}
