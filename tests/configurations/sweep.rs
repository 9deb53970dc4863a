//! Each value of each directive that is drawn, once at least: chance alone would leave most of them
//! to other runs. `WEIR_FAMILY` names a directive, to look at its families alone.

use weir_testkit::{Dice, Oracle, number};

use crate::ask::{Ask, Wire};
use crate::back::Back;
use crate::drawn::DRAWN;
use crate::families::Choice;
use crate::tree::{self, Tree, line};
use crate::{Seen, compare, smallest};

/// Blocks that take values in turn, and what is asked to get there. What is not asked for inside an `if` or a
/// `limit_except` comes too.
const HOSTS: &[(&str, &[&str])] = &[
    ("PREFIX", &["/p/b.txt", "/p/a.html?s=1"]),
    ("NESTED", &["/p/n/b.txt", "/p/n/none"]),
    ("NESTED-REGEX", &["/p/n/a.html", "/p/ssi.html"]),
    ("EXACT", &["/e.txt", "/e.txt?up=odd"]),
    ("REGEX", &["/r/b.txt", "/r/none?up=404"]),
    ("AROUND-IF", &["/i/b.txt", "/i/a.html?up=move"]),
    ("AROUND-LIMIT", &["/l/b.txt", "/l/"]),
    ("IF", &["/i/b.txt?i=1", "/i/none?i=1"]),
    ("LIMIT", &["/l/b.txt", "/l/none"]),
    ("SERVER-IF", &["/p/b.txt?s=1", "/e.txt?s=1"]),
    ("SERVER", &["/none", "/p/b.txt"]),
    ("HTTP", &["/e.txt", "/p/a.html"]),
];

/// So many values stand together in a block: they meet, and do not hide each other too often.
const TOGETHER: usize = 3;

/// A value that is still to be seen.
type Value<'f> = (&'f Choice, &'static str);

/// Configurations in which each value of a family stands once, among others.
pub fn trees(family: &[Choice], dice: &mut Dice) -> Vec<Tree> {
    let all: Vec<Value<'_>> =
        family.iter().flat_map(|choice| choice.values.iter().map(move |v| (choice, *v))).collect();
    let mut left = shuffled(all, dice);
    let mut trees = Vec::new();
    while !left.is_empty() {
        let before = left.len();
        let mut lines = Vec::new();
        for (place, _) in HOSTS {
            let (letter, place) = tree::place(place);
            for (choice, value) in host(letter, &mut left) {
                lines.push((place, line(choice, value)));
            }
            // And what may be needed for any of them: outside, all that the family has is turned on.
            for choice in family {
                let has =
                    |(at, l): &(&str, String)| *at == place && l.starts_with(choice.directive);
                let wanted = if place == "HTTP" { !dice.one_in(4) } else { dice.one_in(8) };
                if wanted && fits(choice, letter) && !lines.iter().any(has) {
                    lines.push((place, line(choice, choice.values[0])));
                }
            }
        }
        trees.push(Tree { lines });
        assert!(left.len() < before, "a directive that fits nowhere: {:?}", left[0]);
    }
    trees
}

/// Takes what one block gets.
fn host<'f>(letter: char, left: &mut Vec<Value<'f>>) -> Vec<Value<'f>> {
    let mut taken: Vec<Value<'f>> = Vec::new();
    left.retain(|value| {
        let again = taken.iter().any(|(choice, _)| choice.directive == value.0.directive);
        let takes = taken.len() < TOGETHER && !again && fits(value.0, letter);
        if takes {
            taken.push(*value);
        }
        !takes
    });
    taken
}

fn fits(choice: &Choice, letter: char) -> bool {
    choice.contexts.contains(letter)
}

fn shuffled<T>(mut items: Vec<T>, dice: &mut Dice) -> Vec<T> {
    for n in (1..items.len()).rev() {
        items.swap(n, dice.below(n + 1));
    }
    items
}

/// One request over HTTP/1 and one over HTTP/2 into each block.
fn asks(dice: &mut Dice, old: bool) -> Vec<Ask> {
    let mut asks = Vec::new();
    for (_, targets) in HOSTS {
        for wires in [[Wire::Plain, Wire::Tls], [Wire::Http2, Wire::Http2Tls]] {
            let mut ask = Ask::any(dice, old);
            ask.wire = dice.pick(&wires);
            ask.target = dice.pick(targets).to_owned();
            asks.push(ask);
        }
    }
    asks
}

/// What is seen of a configuration without the lines for which neither takes it.
fn taken(nginx: &Oracle, mut tree: Tree, back: &Back, asks: &[Ask]) -> (Tree, Seen) {
    loop {
        let seen = compare(nginx, &tree, back, asks);
        match &seen {
            Seen::Refused(says) if !tree.lines.is_empty() => {
                tree = tree.without(tree.refused(says));
            }
            _ => return (tree, seen),
        }
    }
}

#[test]
fn each_value_that_is_drawn_answers_as_with_nginx() {
    let Some(nginx) = Oracle::find() else { return };
    let back = Back::start();
    let seed = number("WEIR_SEED").unwrap_or(1);
    let families = if nginx.is_old() { &DRAWN.old } else { &DRAWN.all };
    let (mut count, mut failures) = (0, Vec::new());
    let named = std::env::var("WEIR_FAMILY").ok();
    let is_named = |choice: &Choice| named.as_ref().is_none_or(|name| name == choice.directive);
    for (n, family) in families.iter().enumerate().filter(|(_, f)| f.iter().any(is_named)) {
        let mut dice = Dice::salted(seed, &format!("sweep {n}"));
        for tree in trees(family, &mut dice) {
            count += 1;
            let asks = asks(&mut dice, nginx.is_old());
            let (tree, seen) = taken(&nginx, tree, &back, &asks);
            match seen {
                Seen::Same | Seen::Refused(_) => {}
                // Over HTTP/2, nginx has no page of the site's for a body that is too large: docs/differences.md.
                Seen::Differs(what, Some(request))
                    if request.is_body_over_http2() && what.contains("-- nginx:\n413") => {}
                Seen::Differs(what, request) => {
                    let few: Vec<Ask> = request.into_iter().collect();
                    let (tree, what) = smallest(&nginx, tree, &back, &few, what);
                    failures.push(format!("seed {seed}: {what}\n{:#?}\n", tree.lines));
                    println!("{}", failures[failures.len() - 1]);
                }
            }
        }
    }
    println!("{count} configurations, seed {seed}, compared with nginx {}", nginx.version);
    assert!(failures.is_empty(), "{} configurations differ", failures.len());
}
