//! No inert directive: with its line and without it something else happens, with nginx and with weir alike.
//!
//! Each run looks at a few directives, chosen by `WEIR_SEED`; `WEIR_DIRECTIVES` says how many (1000: all), `WEIR_TRIES` in
//! how many configurations each is looked for. Those that no configuration showed to matter are named in the output.

use std::collections::BTreeSet;

use weir_testkit::{Dice, Oracle, Server, ask_until, number};

use crate::ask::Ask;
use crate::back::Back;
use crate::drawn::DRAWN;
use crate::tree::Tree;
use crate::{WEIR, files, logged, seen, verdict};

/// Requests that each configuration gets.
const REQUESTS: usize = 25;

/// All that a program does with a configuration: an answer for each request, and what it logs. `None` if it takes it not.
fn observe(program: &str, text: &str, back: &Back, requests: &[Ask]) -> Option<Vec<String>> {
    verdict(program, text).0.then_some(())?;
    let server = Server::start_in(files(), program, text);
    let mut all: Vec<String> = requests.iter().map(|ask| seen(&server, back, ask)).collect();
    let mut looks = 0;
    ask_until(|| {
        looks += 1;
        logged(&server).lines().count() >= requests.len() || looks > 300
    });
    all.push(logged(&server));
    Some(all)
}

#[test]
fn what_a_directive_says_is_seen() {
    let Some(nginx) = Oracle::find() else { return };
    let old = nginx.is_old();
    let (families, back) = (if old { &DRAWN.old } else { &DRAWN.all }, Back::start());
    let all: BTreeSet<&str> = families.iter().flatten().map(|c| c.directive).collect();
    let mut left: Vec<&str> = all.into_iter().collect();
    let mut dice = Dice::new(number("WEIR_SEED").unwrap_or(1));
    let count = number("WEIR_DIRECTIVES").unwrap_or(5) as usize;
    let tries = number("WEIR_TRIES").unwrap_or(6);
    let (mut unseen, mut wrong) = (Vec::new(), Vec::<String>::new());
    let mut shown = 0;
    while shown + unseen.len() < count && !left.is_empty() {
        let name = left.remove(dice.below(left.len()));
        let look = || {
            let (tree, n) = Tree::about(&mut dice, families, name)?;
            let asks: Vec<Ask> = (0..REQUESTS).map(|_| Ask::any(&mut dice, old)).collect();
            let texts =
                [&tree, &tree.without(n)].map(|t| t.text(&back.address, nginx.minor() < 25));
            let with = observe(&nginx.path, &texts[0], &back, &asks)?;
            let without = observe(&nginx.path, &texts[1], &back, &asks)?;
            let at = (0..with.len()).find(|at| with[*at] != without[*at])?;
            let ours =
                texts.map(|text| observe(WEIR, &text, &back, &asks).map(|all| all[at].clone()));
            let same = ours == [Some(with[at].clone()), Some(without[at].clone())];
            Some((!same).then(|| {
                format!(
                    "{name}: {:#?}\nrequest {:?}\n-- nginx:\n{}\n-- weir:\n{}\n-- weir without it:\n{}\n",
                    tree.lines,
                    asks.get(at),
                    with[at],
                    ours[0].as_deref().unwrap_or("refused"),
                    ours[1].as_deref().unwrap_or("refused")
                )
            }))
        };
        match std::iter::repeat_with(look).take(tries as usize).flatten().next() {
            None => {
                println!("not seen: {name}");
                unseen.push(name);
            }
            Some(difference) => {
                shown += 1;
                difference.iter().for_each(|difference| println!("{difference}"));
                wrong.extend(difference);
            }
        }
    }
    println!(
        "{shown} directives seen to matter as with nginx {}, {} not seen",
        nginx.version,
        unseen.len()
    );
    assert!(wrong.is_empty(), "{} directives differ", wrong.len());
}
