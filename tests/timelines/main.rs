//! When bytes arrive: a server behind sends a piece of its answer, and the next one only once the
//! client has the first. A piece that weir holds back blocks its own answer for ever, so the check
//! needs no clock.
//!
//! nginx is `$WEIR_NGINX`, or `nginx` on the path: what it passes on before more comes, weir must pass on. Without one the
//! rules of [`Case::passes`] are checked alone. `WEIR_CASES` for another number of drawn cases than 60, `WEIR_SEED` for the same again.

#[path = "../tls/anybody.rs"]
mod anybody;
mod case;
mod client;
mod origin;
#[path = "../tls/secured.rs"]
mod secured;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use weir_testkit::{Dice, Oracle, PATIENCE, Server, certified, number, seed};

use case::Case;
use origin::Origins;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// How long nginx may take for a piece; one that takes longer counts as held back.
const THEIR_PATIENCE: Duration = Duration::from_millis(400);

/// Clients at a time.
const CLIENTS: usize = 8;

/// So many faults are enough.
const FAULTS: usize = 12;

/// Pieces of an answer or of a body.
pub const PIECES: usize = 3;

#[test]
fn pieces_of_answers_and_bodies_arrive_as_with_nginx() {
    let mut dice = Dice::salted(seed(), "timelines");
    let count = number("WEIR_CASES").unwrap_or(60);
    let drawn = (0..count).map(|_| Case::draw(&mut dice));
    let cases: Vec<Case> = case::failed_once().into_iter().chain(drawn).collect();
    let origins = Origins::start();
    let conf = case::conf(&cases, &origins);
    let ours = Server::start_in(certified(), WEIR, &conf);
    let nginx = Oracle::find().filter(|nginx| !nginx.is_old());
    let theirs = nginx.map(|nginx| Server::start_in(certified(), &nginx.path, &conf));
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                // Each fault takes as long as a test waits at the most.
                while wrong.lock().unwrap().len() < FAULTS
                    && let n = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(case) = cases.get(n)
                {
                    if let Some(text) = fault(n, case, &origins, &ours, theirs.as_ref()) {
                        let text = format!("{text}\n{case:?}\n{}", case.text(&origins));
                        wrong.lock().unwrap().insert(n, text);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    wrong.values().for_each(|text| println!("{text}\n"));
    assert!(wrong.is_empty(), "{} of {} cases", wrong.len(), cases.len());
}

/// What is wrong with a case, if anything is.
fn fault(
    n: usize,
    case: &Case,
    origins: &Origins,
    ours: &Server,
    theirs: Option<&Server>,
) -> Option<String> {
    let steps = case.steps();
    let mut wanted: Vec<bool> = steps.iter().map(|step| case.passes(*step)).collect();
    if let Some(theirs) = theirs {
        let patience = |_| Some(THEIR_PATIENCE);
        let seen = match client::talk(n, case, origins, theirs, false, &patience) {
            Ok(seen) => seen,
            Err(error) => return Some(format!("nginx: {error}")),
        };
        for ((wanted, came), step) in wanted.iter_mut().zip(seen).zip(&steps) {
            if came && !*wanted {
                println!("no rule says that nginx passes on {step:?}: {case:?}");
            }
            *wanted |= came;
        }
    }
    // What need not come is not waited for.
    let patience = |step: usize| wanted[step].then_some(PATIENCE);
    let seen = client::talk(n, case, origins, ours, true, &patience);
    seen.err().map(|error| format!("weir: {error}"))
}
