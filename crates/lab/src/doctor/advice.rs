//! The advice, and its reasons in words.

use super::measure::MeasuredSetup;
use crate::comparison::Relation;

/// The configured way is kept if its worse situation exceeds the best way's by at most this factor.
const TOLERANCE: f64 = 1.1;

/// The best p99 in each situation. All ways are compared with it.
struct Best {
    overload: f64,
    kept: f64,
}

impl Best {
    fn of(all: &[&MeasuredSetup]) -> Best {
        let least = |of: fn(&MeasuredSetup) -> f64| {
            all.iter().map(|m| of(m)).fold(f64::INFINITY, f64::min).max(1e-9)
        };
        Best { overload: least(|m| m.overload), kept: least(|m| m.kept) }
    }

    /// The larger of the two ratios of a way's p99 to the best one.
    fn worst_ratio(&self, m: &MeasuredSetup) -> f64 {
        (m.overload / self.overload).max(m.kept / self.kept)
    }
}

/// Advises one way to accept for a server. The best way has the smallest ratio in its worse
/// situation. `change` describes how to change the configuration to a way.
pub(super) fn advice(
    server: &str,
    ways: &[&MeasuredSetup],
    change: impl Fn(&MeasuredSetup) -> String,
) -> String {
    let best = Best::of(ways);
    let Some(first) =
        ways.iter().min_by(|a, b| best.worst_ratio(a).total_cmp(&best.worst_ratio(b)))
    else {
        return String::new();
    };
    let Some(current) = ways.iter().find(|m| m.is_configured) else {
        return format!("Advice for {server}: {}. {}", first.setting, figures(first));
    };
    if best.worst_ratio(current) <= best.worst_ratio(first) * TOLERANCE {
        return format!(
            "Advice for {server}: leave it as it is ({}). {} In the worse of the two situations, none of the other ways is more than a \
             tenth better.",
            current.setting,
            figures(current)
        );
    }
    let overload = Relation::of(&[current.overload], &[first.overload]);
    let kept = Relation::of(&[current.kept], &[first.kept]);
    if (overload, kept) == (Relation::Same, Relation::Same) {
        return format!(
            "Advice for {server}: none. {} is not better than what there is ({}) beyond the noise. {}",
            first.setting,
            current.setting,
            figures(current)
        );
    }
    format!(
        "Advice for {server}: {}. {} When all workers are overloaded, 99 of 100 requests are then answered within {:.1} ms, and within \
         {:.1} ms as it is now ({}); on connections that stay, within {:.1} and {:.1} ms ({}). {}",
        first.setting,
        change(first),
        first.overload,
        current.overload,
        overload,
        first.kept,
        current.kept,
        kept,
        why(current, first),
    )
}

/// Compares with nginx under the same configuration, for operators with nginx and no weir.
pub(super) fn beside_nginx(ways: &[&MeasuredSetup]) -> Option<String> {
    let current = ways.iter().find(|m| m.is_configured)?;
    let nginx = ways.iter().find(|m| m.policy == "rotate").filter(|m| !m.is_configured)?;
    Some(format!(
        "An nginx of today (1.21.6 and later) with this configuration does what accept_balance rotate does: {:.1} ms under overload and \
         {:.1} ms on connections that stay, of which its busiest worker had {} (here: {}). --server \
         nginx=/usr/sbin/nginx measures the one that is installed.",
        nginx.overload, nginx.kept, nginx.most_on_one_worker, current.most_on_one_worker
    ))
}

fn figures(way: &MeasuredSetup) -> String {
    format!(
        "When all workers are overloaded, 99 of 100 requests are answered within {:.1} ms, and within {:.1} ms on \
         connections that stay.",
        way.overload, way.kept
    )
}

/// Explains what is wrong with the configured way.
fn why(current: &MeasuredSetup, first: &MeasuredSetup) -> String {
    let landed = format!(
        "Of the connections that stay, one worker had {} (with {}: {})",
        current.most_on_one_worker, first.setting, first.most_on_one_worker
    );
    match current.policy.as_str() {
        "reuseport" => {
            format!(
                "Why: the kernel's hash binds each connection to one worker's queue, and whoever is hashed to a \
                     busy one waits there though others are idle. {landed}."
            )
        }
        "mutex" => format!(
            "Why: only the worker that holds the lock accepts, and the others look for it once in a while. {landed}."
        ),
        _ => format!(
            "Why: the worker that comes first in the kernel's list takes one connection after the other while \
             it is awake or first asleep. {landed}, and each of their requests waits for the others'."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(policy: &str, overload: f64, kept: f64) -> MeasuredSetup {
        let (label, setting) = (String::new(), format!("accept_balance {policy}"));
        let (policy, program) = (policy.to_owned(), "weir".to_owned());
        let (deviation, most_on_one_worker, is_configured) = (1.0, 9, false);
        MeasuredSetup {
            program,
            label,
            policy,
            setting,
            is_configured,
            overload,
            deviation,
            kept,
            most_on_one_worker,
        }
    }

    fn ways(configured: &str) -> Vec<MeasuredSetup> {
        let mut all =
            vec![way("rotate", 36.0, 30.0), way("reuseport", 120.0, 10.0), way("fair", 37.0, 9.0)];
        all.iter_mut().for_each(|way| way.is_configured = way.policy == configured);
        all
    }

    fn advised(configured: &str) -> String {
        let all = ways(configured);
        let ways: Vec<&MeasuredSetup> = all.iter().collect();
        advice("weir", &ways, |to| format!("Change to {}.", to.policy))
    }

    #[test]
    fn the_least_bad_in_its_worse_situation_is_best() {
        let text = advised("reuseport");
        assert!(
            text.starts_with("Advice for weir: accept_balance fair. Change to fair."),
            "{text}"
        );
        assert!(text.contains("within 37.0 ms, and within 120.0 ms as it is now (3.24 times as"));
        assert!(text.contains("hash"), "{text}");
        assert!(
            advised("rotate").contains("(no difference beyond the noise)"),
            "{}",
            advised("rotate")
        );
        let current = MeasuredSetup { is_configured: true, ..way("rotate", 44.0, 10.0) };
        let none = advice("weir", &[&current, &way("fair", 38.0, 9.0)], |_| String::new());
        assert!(none.starts_with("Advice for weir: none. accept_balance fair is not"), "{none}");
        let stays = advised("fair");
        assert!(stays.contains("leave it as it is (accept_balance fair)"), "{stays}");
        let unknown = advised("mutex");
        assert!(unknown.starts_with("Advice for weir: accept_balance fair. When all"), "{unknown}");
    }

    #[test]
    fn a_comparison_with_nginx_is_added_where_it_differs() {
        let told = |configured| {
            let all = ways(configured);
            beside_nginx(&all.iter().collect::<Vec<_>>())
        };
        let text = told("fair").unwrap();
        assert!(text.contains("rotate does: 36.0 ms under overload and 30.0 ms"), "{text}");
        assert_eq!(told("rotate"), None);
    }
}
