//! A rotation gives the same turns as a look at the state of each peer.

use super::*;
use crate::peer_set::PeerSet;
use crate::{Changes, Duty};

/// Round robin that looks at the state of each peer for each request.
#[derive(Debug)]
struct Looking;

impl Balance for Looking {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        peers.smooth(&choice.tried, now, |_| true)
    }

    fn out_of_turn(&mut self, peers: &mut PeerSet, at: usize, choice: &Choice, now: Instant) {
        peers.out_of_turn(at, &choice.tried, now);
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// So many requests are served.
    Serve(u8),
    /// A request comes and stays.
    Begin,
    /// One that is bound to the server of another one.
    BeginBound,
    /// The last one tries another server.
    Retry,
    /// The oldest one ends: 0 well, 1 failed, 2 without the server's fault.
    End(u8),
    Wait(u16),
    Reweigh(usize, u32),
    Duty(usize, Duty),
    /// The first server goes, or comes back.
    Replace(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let duty = prop_oneof![Just(Duty::Up), Just(Duty::Up), Just(Duty::Drain), Just(Duty::Down)];
    prop_oneof![
        6 => (1u8..20).prop_map(Step::Serve),
        4 => Just(Step::Begin),
        1 => Just(Step::BeginBound),
        2 => Just(Step::Retry),
        4 => prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => Just(2u8)].prop_map(Step::End),
        1 => (1u16..15_000).prop_map(Step::Wait),
        1 => (0usize..6, 1u32..3).prop_map(|(at, weight)| Step::Reweigh(at, weight)),
        1 => (0usize..6, duty).prop_map(|(at, duty)| Step::Duty(at, duty)),
        1 => any::<bool>().prop_map(Step::Replace),
    ]
}

/// A group with requests that have not ended.
struct Served {
    group: Group,
    all: Vec<Arc<Peer>>,
    open: Vec<(Choice, crate::Picked)>,
    /// The names of the servers that were chosen.
    chosen: Vec<Option<String>>,
}

impl Served {
    fn new(options: &[PeerOptions], balance: Box<dyn Balance>) -> Served {
        let each = |(i, options): (usize, &PeerOptions)| peer(8000 + i as u16, options.clone());
        let all: Vec<_> = options.iter().enumerate().map(each).collect();
        let group = Group::new("g", all.clone(), balance, 1).binding();
        Served { group, all, open: Vec::new(), chosen: Vec::new() }
    }

    fn begin(&mut self, mut choice: Choice, now: Instant) {
        let picked = self.group.pick(&mut choice, now);
        self.chosen.push(picked.as_ref().map(|picked| picked.peer.name.clone()));
        self.open.extend(picked.map(|picked| (choice, picked)));
    }

    fn end(&mut self, how: u8, now: Instant) {
        if self.open.is_empty() {
            return;
        }
        let (_, picked) = self.open.remove(0);
        let how = [well(), Ended::Failed, Ended::Next][usize::from(how)];
        self.group.ended(&picked, how, now);
    }

    fn step(&mut self, step: &Step, now: Instant) {
        let named = |at: usize| self.all.get(at).map(|peer| peer.name.clone());
        match step {
            Step::Serve(count) => {
                for _ in 0..*count {
                    let mut choice = Choice::default();
                    let picked = self.group.pick(&mut choice, now);
                    self.chosen.push(picked.as_ref().map(|picked| picked.peer.name.clone()));
                    if let Some(picked) = picked {
                        self.group.ended(&picked, well(), now);
                    }
                }
            }
            Step::Begin => self.begin(Choice::default(), now),
            Step::BeginBound => {
                let bound = self.open.first().map(|(_, picked)| picked.peer.sid());
                let mut choice = Choice::default();
                choice.bound = bound.unwrap_or_default().into();
                self.begin(choice, now);
            }
            Step::Retry => {
                let Some((choice, picked)) = self.open.pop() else { return };
                self.group.ended(&picked, Ended::Next, now);
                self.begin(choice, now);
            }
            Step::End(how) => self.end(*how, now),
            Step::Wait(_) => {}
            Step::Reweigh(at, weight) => {
                let (name, weight) = (named(*at), Some(*weight));
                let which = |state: &crate::PeerState| Some(&state.peer.name) == name.as_ref();
                self.group.change(which, &|changes: &mut Changes| changes.weight = weight, now);
            }
            Step::Duty(at, duty) => {
                let (name, duty) = (named(*at), Some(*duty));
                let which = |state: &crate::PeerState| Some(&state.peer.name) == name.as_ref();
                self.group.change(which, &|changes: &mut Changes| changes.duty = duty, now);
            }
            Step::Replace(whole) => {
                let from = usize::from(!whole && self.all.len() > 2);
                self.group.replace(self.all.iter().skip(from).cloned().collect());
            }
        }
    }
}

proptest! {
    #[test]
    fn a_known_order_is_that_of_looking(
        options in prop::collection::vec((0u32..12, 0u64..8, 0u32..3).prop_map(|(most, slow, fails)| PeerOptions {
            max_conns: if most < 10 { 0 } else { most - 9 },
            slow_start: Duration::from_secs(slow.saturating_sub(5)),
            max_fails: fails,
            ..PeerOptions::default()
        }), 2..6),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut known = Served::new(&options, Box::new(RoundRobin));
        let mut looked = Served::new(&options, Box::new(Looking));
        let mut now = Instant::now();
        for step in &steps {
            if let Step::Wait(millis) = step {
                now += Duration::from_millis((*millis).into());
            }
            known.step(step, now);
            looked.step(step, now);
            prop_assert_eq!(&known.chosen, &looked.chosen, "after {:?}", step);
        }
    }
}

#[test]
fn alike_servers_are_taken_in_a_known_order_again_after_one_has_failed() {
    let group = Group::new("g", peers(&[1; 100]), Box::new(RoundRobin), 1);
    let mut now = Instant::now();
    let serve = |count: usize, now| {
        for _ in 0..count {
            let picked = group.pick(&mut Choice::default(), now).unwrap();
            group.ended(&picked, well(), now);
        }
    };
    serve(250, now);
    assert!(group.rotates());
    let picked = group.pick(&mut Choice::default(), now).unwrap();
    group.ended(&picked, Ended::Failed, now);
    serve(1, now);
    assert!(!group.rotates());
    now += Duration::from_secs(11);
    serve(500, now);
    assert!(group.rotates());
}
