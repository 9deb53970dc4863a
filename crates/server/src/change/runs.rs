//! The difference between two `http` blocks, as runs of old and of new directives.

use std::collections::HashMap;

use weir_conf::{Block, Directive, DirectiveBody};

/// A run of consecutive directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Directives of the old block: the index of the first, and their number.
    Old(usize, usize),
    /// The next new directives: their number.
    New(usize),
}

impl Run {
    pub fn is_old(&self) -> bool {
        matches!(self, Run::Old(..))
    }

    /// As numbers: the index of the first one plus 1, or 0 for new directives, and the length.
    pub fn to_numbers(self) -> (u64, u64) {
        match self {
            Run::Old(from, len) => (from as u64 + 1, len as u64),
            Run::New(len) => (0, len as u64),
        }
    }

    pub fn of_numbers(from: u64, len: u64) -> Run {
        let len = len as usize;
        match from.checked_sub(1) {
            Some(from) => Run::Old(from as usize, len),
            None => Run::New(len),
        }
    }
}

fn is_http(directive: &&Directive) -> bool {
    directive.name.is("http")
}

/// The `http` block. None if there is none.
fn http(main: &[Directive]) -> Option<&Block> {
    main.iter().find(is_http)?.shared_block()
}

/// The directives without those in `http` that `old` has, and the runs that describe the block. A
/// directive is old if it has the same block in memory.
pub fn part(old: &[Directive], new: &[Directive]) -> (Vec<Directive>, Vec<Run>) {
    let mut main = new.to_vec();
    let (Some(old), Some(new)) = (http(old), http(new)) else { return (main, Vec::new()) };
    let places: HashMap<usize, usize> = old
        .iter()
        .enumerate()
        .filter_map(|(at, directive)| Some((directive.shared_block()?.address(), at)))
        .collect();
    let (mut added, mut runs) = (Vec::new(), Vec::new());
    for directive in new.iter() {
        let place = directive.shared_block().and_then(|block| places.get(&block.address()));
        let place = place.filter(|at| {
            old.get(**at)
                .is_some_and(|old| old.name == directive.name && old.args == directive.args)
        });
        match (place, runs.last_mut()) {
            (Some(at), Some(Run::Old(from, len))) if *from + *len == *at => *len += 1,
            (Some(at), _) => runs.push(Run::Old(*at, 1)),
            (None, Some(Run::New(len))) => *len += 1,
            (None, _) => runs.push(Run::New(1)),
        }
        if place.is_none() {
            added.push(directive.clone());
        }
    }
    if let Some(http) = main.iter_mut().find(|directive| is_http(&&**directive)) {
        http.body = DirectiveBody::Block(added.into());
    }
    (main, runs)
}

/// The inverse of [`part`]. `None` if the runs do not match.
pub fn join(old: &[Directive], mut main: Vec<Directive>, runs: &[Run]) -> Option<Vec<Directive>> {
    if runs.is_empty() {
        return Some(main);
    }
    let old = http(old)?;
    let http = main.iter_mut().find(|directive| is_http(&&**directive))?;
    let mut added = http.block().iter();
    let mut all = Vec::new();
    for run in runs {
        match *run {
            Run::Old(from, len) => all.extend_from_slice(old.get(from..from.checked_add(len)?)?),
            Run::New(len) => {
                for _ in 0..len {
                    all.push(added.next()?.clone());
                }
            }
        }
    }
    added.next().is_none().then_some(())?;
    http.body = DirectiveBody::Block(all.into());
    Some(main)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn tree(text: &str) -> Vec<Directive> {
        weir_conf::read_text(Path::new("/t"), text.as_bytes()).main
    }

    fn lines(of: &[u8]) -> String {
        of.iter()
            .map(|n| format!("server {{ server_name s{n}; }} map $uri $x{n} {{ a {n}; }}\n"))
            .collect()
    }

    proptest! {
        #[test]
        fn what_is_parted_is_joined_again(a in "[a-e]{0,8}", b in "[a-g]{0,8}", swap: bool) {
            let old = tree(&format!("user x; events {{ }} http {{ tcp_nodelay on; {} }}", lines(a.as_bytes())));
            // Some old blocks, in another order and among others.
            let mut new = tree(&format!("user y; events {{ }} http {{ sendfile on; {} }} stream {{ }}", lines(b.as_bytes())));
            let mut list = new[2].block().to_vec();
            for (at, directive) in old[2].block().iter().enumerate() {
                if at % 3 != 1 {
                    list.insert(if swap { list.len() / 2 } else { list.len() }, directive.clone());
                }
            }
            new[2].body = DirectiveBody::Block(list.into());
            let (rest, runs) = part(&old, &new);
            let kept: usize = runs.iter().filter(|run| run.is_old()).map(|run| run.to_numbers().1 as usize).sum();
            let shared = old[2].block().iter().enumerate().filter(|(at, d)| at % 3 != 1 && d.shared_block().is_some());
            prop_assert_eq!(kept, shared.count());
            prop_assert_eq!(rest[2].block().len() + kept, new[2].block().len());
            let runs: Vec<Run> = runs.into_iter().map(|run| { let (a, b) = run.to_numbers(); Run::of_numbers(a, b) }).collect();
            prop_assert_eq!(join(&old, rest, &runs), Some(new));
        }
    }

    #[test]
    fn an_equal_block_is_a_new_one_and_so_is_one_with_another_name() {
        let old = tree("http { upstream a { server a; } }");
        let (rest, runs) = part(&old, &tree("http { upstream a { server a; } }"));
        assert_eq!((rest[0].block().len(), runs), (1, vec![Run::New(1)]));
        let mut renamed = old.clone();
        let mut list = old[0].block().to_vec();
        list[0].args[0].bytes = b"b".to_vec();
        renamed[0].body = DirectiveBody::Block(list.into());
        assert_eq!(part(&old, &renamed).1, [Run::New(1)]);
    }

    #[test]
    fn runs_that_do_not_fit_are_refused() {
        let old = tree("http { server { } server { } }");
        let new = || tree("http { server { } }");
        for runs in [
            vec![Run::Old(1, 2)],
            vec![Run::Old(usize::MAX, usize::MAX), Run::New(1)],
            vec![Run::New(2)],
            vec![Run::Old(0, 1)],
        ] {
            assert_eq!(join(&old, new(), &runs), None, "{runs:?}");
        }
        assert_eq!(join(&[], new(), &[Run::New(1)]), None);
    }
}
