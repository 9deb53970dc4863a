//! Host names, in which `*.` stands for one or more labels.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Whether a pattern includes all names of another pattern or name. An empty pattern includes all.
pub fn covers(pattern: &str, name: &str) -> bool {
    if pattern.is_empty() {
        return true;
    }
    match pattern.strip_prefix('*') {
        // `*.a.test` covers `b.a.test` and `*.b.a.test`, and not `a.test`.
        Some(suffix) => {
            pattern == name
                || name.ends_with(suffix)
                    && name.len() > suffix.len() + usize::from(name.starts_with('*'))
        }
        None => pattern == name,
    }
}

/// The pattern of the names that two patterns have in common.
pub fn intersection<'n>(a: &'n str, b: &'n str) -> Option<&'n str> {
    match (covers(a, b), covers(b, a)) {
        (true, _) => Some(b),
        (false, true) => Some(a),
        (false, false) => None,
    }
}

/// A set of patterns, which finds those that have names in common with another one.
#[derive(Debug, Default)]
pub struct Patterns {
    /// The patterns from their ends, so that those below a domain follow each other.
    reversed: BTreeSet<String>,
}

impl Patterns {
    pub fn insert(&mut self, pattern: &str) {
        self.reversed.insert(reversed(pattern));
    }

    /// Whether one of them has an intersection with this pattern.
    pub fn meet(&self, pattern: &str) -> bool {
        let has = |known: &str| self.reversed.contains(&reversed(known));
        if pattern.is_empty() || has("") || has(pattern) {
            return !self.reversed.is_empty();
        }
        let mut ends = pattern.match_indices('.').filter_map(|(at, _)| pattern.get(at..));
        if ends.any(|end| has(&format!("*{end}"))) {
            return true;
        }
        let Some(suffix) = pattern.strip_prefix('*').map(reversed) else { return false };
        self.reversed.range(suffix.clone()..).next().is_some_and(|next| next.starts_with(&suffix))
    }
}

fn reversed(text: &str) -> String {
    text.chars().rev().collect()
}

/// Orders by precedence: names without a wildcard first, then longer ones first.
pub fn by_precision(a: &str, b: &str) -> Ordering {
    let key = |name: &str| (name.is_empty(), name.starts_with('*'), std::cmp::Reverse(name.len()));
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_has_any_number_of_labels_and_not_none() {
        for (pattern, name, wanted) in [
            ("", "a.test", true),
            ("", "*.test", true),
            ("*.a.test", "b.a.test", true),
            ("*.a.test", "c.b.a.test", true),
            ("*.a.test", "a.test", false),
            ("*.a.test", "*.a.test", true),
            ("*.a.test", "*.b.a.test", true),
            ("*.b.a.test", "*.a.test", false),
            ("*.a.test", "xa.test", false),
            ("a.test", "a.test", true),
            ("a.test", "*.a.test", false),
            ("a.test", "", false),
        ] {
            assert_eq!(covers(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn an_intersection_is_the_narrower_one() {
        for (a, b, wanted) in [
            ("", "a.test", Some("a.test")),
            ("*.a.test", "", Some("*.a.test")),
            ("*.a.test", "b.a.test", Some("b.a.test")),
            ("b.a.test", "*.a.test", Some("b.a.test")),
            ("*.a.test", "*.b.a.test", Some("*.b.a.test")),
            ("a.test", "b.test", None),
            ("", "", Some("")),
        ] {
            assert_eq!(intersection(a, b), wanted, "{a} {b}");
        }
    }

    #[test]
    fn a_set_of_patterns_meets_what_one_of_them_meets() {
        let all = ["", "a.test", "*.a.test", "b.a.test", "*.b.a.test", "ba.test", "*.test", "x.y"];
        for few in 0_u32..1 << all.len() {
            let some = all.iter().enumerate().filter(|(n, _)| few >> n & 1 == 1);
            let some: Vec<&str> = some.map(|(_, name)| *name).collect();
            let mut patterns = Patterns::default();
            some.iter().for_each(|one| patterns.insert(one));
            for name in all.iter().chain(&["c.b.a.test", "*.x.y", "test"]) {
                let wanted = some.iter().any(|one| intersection(one, name).is_some());
                assert_eq!(patterns.meet(name), wanted, "{some:?} {name}");
            }
        }
    }

    #[test]
    fn the_most_specific_name_comes_first() {
        let mut names = ["", "*.test", "b.a.test", "*.a.test", "a.test"];
        names.sort_by(|a, b| by_precision(a, b));
        assert_eq!(names, ["b.a.test", "a.test", "*.a.test", "*.test", ""]);
    }
}
