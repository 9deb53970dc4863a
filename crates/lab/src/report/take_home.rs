//! The summary: a few sentences over all comparisons of weir's default ways.

use super::{ExperimentRecord, OWN};
use crate::comparison::{Comparison, MeasuredWay, Standing};
use crate::experiment::Experiment;

/// With at least this share of noise, other programs decide the result.
pub(super) const NOISY: f64 = 0.1;
/// The most sentences about comparisons in which weir is behind.
const MOST_BEHIND: usize = 2;

/// One of weir's default ways, compared with another way.
struct Pair<'a> {
    comparison: &'a Comparison,
    other: &'a MeasuredWay,
    standing: Standing,
    /// Whether the other way is that of another server.
    is_peer: bool,
}

/// Three to five sentences, which name the comparisons in which weir is behind.
pub(super) fn sentences(found: &[(&Experiment, ExperimentRecord)]) -> Vec<String> {
    let peers = peers(found);
    let pairs: Vec<Pair<'_>> = found
        .iter()
        .filter_map(|(_, record)| Some(&record.finding.answer()?.comparison))
        .filter(|comparison| OWN.contains(&comparison.own.way.as_str()))
        .flat_map(|comparison| pairs(comparison, &peers))
        .collect();
    if pairs.is_empty() {
        return vec![noise(found)];
    }
    let mut out = vec![format!("weir's default beside other ways: {}.", counts(pairs.iter()))];
    out.push(if peers.is_empty() {
        "No other server took part: the other ways are policies of weir that do the same."
            .to_owned()
    } else {
        let names: Vec<String> =
            peers.iter().map(|[name, version]| format!("{name} {version}")).collect();
        let beside = counts(pairs.iter().filter(|pair| pair.is_peer));
        format!("Beside {} alone: {beside}.", names.join(" and "))
    });
    let furthest = |standing: Standing| {
        let mut all: Vec<&Pair<'_>> = pairs.iter().filter(|p| p.standing == standing).collect();
        // A comparison with another server says more than one with another policy of weir.
        let key = |pair: &Pair<'_>| (pair.is_peer, pair.comparison.distance(pair.other));
        all.sort_by(|a, b| {
            let ((a_peer, a), (b_peer, b)) = (key(a), key(b));
            b_peer.cmp(&a_peer).then(b.total_cmp(&a))
        });
        all
    };
    if let Some(pair) = furthest(Standing::Ahead).first() {
        out.push(format!("Furthest ahead: {}", pair.comparison.sentence(pair.other)));
    }
    let behind = furthest(Standing::Behind);
    let mut told: Vec<&Pair<'_>> = Vec::new();
    for pair in behind {
        // At most one sentence per experiment.
        if told.iter().all(|other| !std::ptr::eq(other.comparison, pair.comparison)) {
            told.push(pair);
        }
    }
    let told = told.iter().take(MOST_BEHIND);
    out.extend(told.map(|pair| format!("Behind: {}", pair.comparison.sentence(pair.other))));
    // There are at most five sentences.
    if out.len() < 5 {
        out.push(noise(found));
    }
    out
}

/// Name and version of each server but weir.
fn peers(found: &[(&Experiment, ExperimentRecord)]) -> Vec<[String; 2]> {
    let servers = found.iter().flat_map(|(_, record)| &record.machine.servers);
    let mut all: Vec<[String; 2]> = servers
        .filter(|server| !server.is_weir)
        .map(|server| [server.name.clone(), server.version.clone()])
        .collect();
    all.sort();
    all.dedup();
    all
}

fn pairs<'a>(comparison: &'a Comparison, peers: &[[String; 2]]) -> Vec<Pair<'a>> {
    let is_peer = |other: &MeasuredWay| {
        peers.iter().any(|[name, _]| other.way.starts_with(&format!("{name}, ")))
    };
    let all = comparison.others.iter().map(|other| Pair {
        comparison,
        other,
        standing: comparison.standing(other),
        is_peer: is_peer(other),
    });
    all.filter(|pair| pair.standing != Standing::Unknown).collect()
}

/// `better in 7 of 12 comparisons, no difference in 3, behind in 2`
fn counts<'a>(pairs: impl Iterator<Item = &'a Pair<'a>>) -> String {
    let (mut all, mut ahead, mut level, mut behind) = (0, 0, 0, 0);
    for pair in pairs {
        all += 1;
        match pair.standing {
            Standing::Ahead => ahead += 1,
            Standing::Behind => behind += 1,
            Standing::Level | Standing::Unknown => level += 1,
        }
    }
    format!("better in {ahead} of {all} comparisons, no difference in {level}, behind in {behind}")
}

fn noise(found: &[(&Experiment, ExperimentRecord)]) -> String {
    let most = found.iter().map(|(_, record)| record.noise.share).fold(0.0, f64::max);
    let share = 100.0 * most;
    if most > NOISY {
        format!(
            "Other programs took up to {share:.0} % of the time: repeat the runs on a quiet machine before you rely on them."
        )
    } else {
        format!("Other programs took at most {share:.1} % of the time.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Better;
    use crate::experiments::ALL;
    use crate::finding::LabFinding;
    use crate::report::{MachineFacts, Noise};

    fn record(comparison: Comparison, share: f64) -> (&'static Experiment, ExperimentRecord) {
        let mut finding = LabFinding::default();
        finding.verdict(comparison, "");
        let machine = MachineFacts::of_servers(&[("weir", "1", true), ("nginx", "1.31.5", false)]);
        let noise = Noise { share, longest: 1.0, load: 0.0 };
        (ALL.first().unwrap(), ExperimentRecord { finding, machine, noise })
    }

    fn deviation(fair: f64, nginx: f64, weir: f64) -> Comparison {
        Comparison::new("Deviation", "ms", Better::Less, ("fair", fair))
            .beside(("nginx, reuseport", nginx))
            .beside(("reuseport", weir))
    }

    #[test]
    fn the_summary_names_where_weir_is_behind() {
        let found =
            [record(deviation(2.0, 20.0, 1.0), 0.64), record(deviation(5.1, 4.0, 5.0), 0.0)];
        assert_eq!(
            sentences(&found),
            [
                "weir's default beside other ways: better in 1 of 4 comparisons, no difference in 1, behind in 2.",
                "Beside nginx 1.31.5 alone: better in 1 of 2 comparisons, no difference in 0, behind in 1.",
                "Furthest ahead: Deviation with fair: 10 times less than with nginx, reuseport, 2 ms against 20 ms.",
                "Behind: Deviation with fair: 27 % more than with nginx, reuseport, 5.10 ms against 4 ms.",
                "Behind: Deviation with fair: 2 times as much as with reuseport, 2 ms against 1 ms.",
            ]
        );
    }

    #[test]
    fn noise_is_reported_and_other_ways_are_not_judged() {
        let other = Comparison::new("Cost", "", Better::Less, ("epoll", 1.0)).beside(("poll", 9.0));
        assert_eq!(
            sentences(&[record(other, 0.64)]),
            [
                "Other programs took up to 64 % of the time: repeat the runs on a quiet machine before you rely on them."
            ]
        );
        let unmeasured = deviation(f64::NAN, 4.0, 5.0);
        let told = sentences(&[record(unmeasured, 0.001)]);
        assert_eq!(told, ["Other programs took at most 0.1 % of the time."]);
    }
}
