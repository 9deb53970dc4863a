//! "Did you mean": the known name that is closest to an unknown one.

use crate::context::Contexts;
use crate::known::all_known;

/// The closest name that is allowed in `context`, or else the closest of all. `None` if no name is
/// close.
pub(crate) fn directive(name: &[u8], context: Contexts) -> Option<&'static str> {
    let limit = (name.len() / 3).clamp(1, 3);
    all_known()
        .filter(|known| known.name.len().abs_diff(name.len()) <= limit)
        .filter(|known| distance(family(name), family(known.name.as_bytes())) <= limit.min(2))
        .map(|known| (distance(name, known.name.as_bytes()), known))
        .filter(|(far, _)| *far <= limit)
        .min_by_key(|(far, known)| (!known.contexts.meets(context), *far))
        .map(|(_, known)| known.name)
}

/// The closest of some names. `None` if no name is close.
pub fn closest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let limit = (name.len() / 3).clamp(1, 2);
    let far = |other: &str| distance(name.as_bytes(), other.as_bytes());
    names.into_iter().filter(|other| far(other) <= limit).min_by_key(|other| far(other))
}

/// The first word of a name, which says what the directive is about. It may be misspelt. Another
/// word makes it another directive, however similar the rest is.
fn family(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == b'_').next().unwrap_or(name)
}

/// How many single changes turn one name into the other: a letter put in, left out, replaced, or
/// swapped with its neighbour.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at = |row: &[usize], n: usize| row.get(n).copied().unwrap_or(usize::MAX - 1);
            let replaced = at(&last, j) + usize::from(x != y);
            let mut best = replaced.min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_close() {
        let names = ["bench", "lab", "lint"];
        assert_eq!(closest("bnech", names), Some("bench"));
        assert_eq!(closest("lnt", names), Some("lint"));
        assert_eq!((closest("serve", names), closest("", names)), (None, None));
    }

    #[test]
    fn distances() {
        for (a, b, far) in
            [("", "", 0), ("abc", "", 3), ("servr", "server", 1), ("lisetn", "listen", 1)]
        {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), far, "{a} {b}");
            assert_eq!(distance(b.as_bytes(), a.as_bytes()), far, "{b} {a}");
        }
    }

    #[test]
    fn names_allowed_in_the_context_come_first() {
        assert_eq!(directive(b"servr", Contexts::HTTP), Some("server"));
        assert_eq!(directive(b"proxy_pas", Contexts::LOCATION), Some("proxy_pass"));
        assert_eq!(
            directive(b"worker_rlimit_nofiles", Contexts::MAIN),
            Some("worker_rlimit_nofile")
        );
        assert_eq!(directive(b"frobnicate", Contexts::HTTP), None);
        assert_eq!(directive(b"sasl_service_name", Contexts::HTTP), None);
        assert_eq!(directive(b"worcker_processes", Contexts::MAIN), Some("worker_processes"));
    }
}
