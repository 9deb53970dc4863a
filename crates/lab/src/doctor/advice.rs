//! The advice, and its reasons in words.

use super::measure::Measured;

/// One that is no more than this share above the best in its worse situation may stay.
const SMALL: f64 = 1.1;

/// The p99 of the best in each situation: what all are held against.
struct Best {
    overload: f64,
    kept: f64,
}

impl Best {
    fn of(all: &[&Measured]) -> Best {
        let least = |of: fn(&Measured) -> f64| {
            all.iter().map(|m| of(m)).fold(f64::INFINITY, f64::min).max(1e-9)
        };
        Best { overload: least(|m| m.overload), kept: least(|m| m.kept) }
    }

    /// How far it is from the best where it is farthest.
    fn badness(&self, m: &Measured) -> f64 {
        (m.overload / self.overload).max(m.kept / self.kept)
    }
}

/// What to use of the ways of one server. The best is the one whose worse situation is the least bad, each taken
/// against the best there. `change` says how to come from what the configuration has to a policy.
pub(super) fn advice(
    server: &str,
    ways: &[&Measured],
    policy: &str,
    change: impl Fn(&Measured) -> String,
) -> String {
    let best = Best::of(ways);
    let Some(first) = ways.iter().min_by(|a, b| best.badness(a).total_cmp(&best.badness(b))) else {
        return String::new();
    };
    let Some(now) = ways.iter().find(|m| m.policy == policy) else {
        let figures =
            format!("p99 {:.1} ms under overload, {:.1} kept", first.overload, first.kept);
        return format!("Advice for {server}: {} ({figures}).", first.setting);
    };
    if best.badness(now) <= best.badness(first) * SMALL {
        return format!(
            "Advice for {server}: leave it as it is. With {} the p99 is {:.1} ms under overload and {:.1} ms for connections that \
             stay; no other way is better in its worse situation by more than a tenth.",
            now.setting, now.overload, now.kept
        );
    }
    let times = |now: f64, then: f64| match now / then.max(1e-9) {
        more if more >= 1.05 => format!("{more:.1} times as long now"),
        less if less <= 0.95 => format!("{:.1} times as long then", 1.0 / less),
        _ => "the same".to_owned(),
    };
    format!(
        "Advice for {server}: {}. {} Under overload the p99 is {:.1} ms with it and {:.1} ms as it is ({}); for \
         connections that stay, {:.1} and {:.1} ms ({}). {}",
        first.setting,
        change(first),
        first.overload,
        now.overload,
        times(now.overload, first.overload),
        first.kept,
        now.kept,
        times(now.kept, first.kept),
        why(now, first),
    )
}

/// What is wrong with the way that the configuration has.
fn why(now: &Measured, first: &Measured) -> String {
    let landed = format!(
        "Of the connections that stay, one loop had {} (with {}: {})",
        now.most, first.setting, first.most
    );
    match now.policy.as_str() {
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

    fn way(policy: &str, overload: f64, kept: f64) -> Measured {
        let (label, setting) = (String::new(), format!("accept_balance {policy}"));
        let (policy, program) = (policy.to_owned(), "weir".to_owned());
        Measured { program, label, policy, setting, overload, deviation: 1.0, kept, most: 9 }
    }

    fn advised(now: &str) -> String {
        let all =
            [way("rotate", 36.0, 30.0), way("reuseport", 120.0, 10.0), way("fair", 37.0, 9.0)];
        let ways: Vec<&Measured> = all.iter().collect();
        advice("weir", &ways, now, |to| format!("Change to {}.", to.policy))
    }

    #[test]
    fn the_least_bad_in_its_worse_situation_is_best() {
        let text = advised("reuseport");
        assert!(
            text.starts_with("Advice for weir: accept_balance fair. Change to fair."),
            "{text}"
        );
        assert!(text.contains("37.0 ms with it and 120.0 ms as it is (3.2 times as long now)"));
        assert!(text.contains("hash"), "{text}");
        assert!(advised("rotate").contains("(the same)"), "{}", advised("rotate"));
        assert!(advised("fair").contains("leave it as it is"), "{}", advised("fair"));
        assert!(advised("mutex").starts_with("Advice for weir: accept_balance fair (p99 37.0 ms"));
    }
}
