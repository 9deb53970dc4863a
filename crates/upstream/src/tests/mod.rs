//! Laws that hold for every method, by macro, and tests of each method's own purpose.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::balance::*;
use crate::peer_set::PeerSet;
use crate::{
    Choice, Ended, Failure, Failures, Group, Peer, PeerAddress, PeerOptions, PeerTimes, Retry, Sent,
};

mod counting;
mod processes;
mod rotation;
mod sharing;

fn peer(port: u16, options: PeerOptions) -> Arc<Peer> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Arc::new(Peer::new(PeerAddress::Inet(address), address.to_string(), options))
}

fn peers(weights: &[u32]) -> Vec<Arc<Peer>> {
    let each = |(i, w): (usize, &u32)| {
        peer(8000 + i as u16, PeerOptions { weight: *w, ..PeerOptions::default() })
    };
    weights.iter().enumerate().map(each).collect()
}

fn well() -> Ended {
    Ended::Well(PeerTimes::default())
}

fn key(text: &str) -> Choice {
    Choice::new(text.as_bytes().to_vec())
}

macro_rules! laws {
    ($($name:ident => $balance:expr;)*) => {$(
        mod $name {
            use super::*;

            proptest! {
                /// Every peer is tried once before none is left, and none that is down.
                #[test]
                fn tries_each_once(
                    weights in prop::collection::vec(1u32..6, 2..70),
                    down in prop::collection::vec(any::<bool>(), 70),
                    text in "[a-z]{0,5}",
                ) {
                    let list: Vec<_> = weights.iter().enumerate().map(|(i, w)| {
                        let options = PeerOptions { weight: *w, down: down[i], ..PeerOptions::default() };
                        peer(8000 + i as u16, options)
                    }).collect();
                    let group = Group::new("g", list, Box::new($balance), 7);
                    let now = Instant::now();
                    let mut choice = key(&text);
                    let mut seen = Vec::new();
                    while let Some(picked) = group.pick(&mut choice, now) {
                        prop_assert!(!picked.peer.options.down);
                        prop_assert!(!seen.contains(&picked.peer.name));
                        seen.push(picked.peer.name.clone());
                        group.ended(&picked, Ended::Next, now);
                    }
                    prop_assert_eq!(seen.len(), group.tries() as usize);
                }

                /// `max_conns` is never exceeded.
                #[test]
                fn keeps_max_conns(n in 2usize..6, most in 1u32..4, text in "[a-z]{0,5}") {
                    let options = PeerOptions { max_conns: most, ..PeerOptions::default() };
                    let list = (0..n).map(|i| peer(8000 + i as u16, options.clone())).collect();
                    let group = Group::new("g", list, Box::new($balance), 7);
                    let now = Instant::now();
                    let mut count = 0;
                    while group.pick(&mut key(&text), now).is_some() {
                        count += 1;
                        prop_assert!(count <= n as u32 * most);
                    }
                    prop_assert_eq!(count, n as u32 * most);
                }

                /// Any words may stand in a zone: a group chooses and counts, and none of its sums overflows.
                #[test]
                fn bears_any_words(
                    spoilt in prop::collection::vec((0usize..700, sharing::word()), 1..60),
                    ends in prop::collection::vec(0u8..4, 1..60),
                ) {
                    let zone = sharing::zone();
                    let options = PeerOptions { slow_start: Duration::from_secs(9), ..PeerOptions::default() };
                    let list = (0..3).map(|i| peer(8000 + i, options.clone())).collect();
                    let group = Group::new("g", list, Box::new($balance), 7);
                    let group = group.shared_in(Some(zone.clone()));
                    let (mut now, mut open) = (Instant::now(), Vec::new());
                    let mut spoilt = spoilt.into_iter().cycle();
                    for end in ends {
                        if let Some((at, word)) = spoilt.next() {
                            zone.get().unwrap().spoil(66 + at, word);
                        }
                        now += Duration::from_millis(500);
                        open.extend(group.pick(&mut key("k"), now));
                        let some = PeerTimes { connect: Some(Duration::from_millis(3)), ..PeerTimes::default() };
                        match end {
                            0 => {}
                            1 => _ = open.pop().map(|p| group.ended(&p, Ended::Failed, now)),
                            2 => _ = open.pop().map(|p| group.ended(&p, Ended::Well(some), now)),
                            _ => _ = open.pop().map(|p| group.ended(&p, Ended::Next, now)),
                        }
                    }
                }
            }

            /// A peer that failed is left alone until its time has passed.
            #[test]
            fn spares_the_failed() {
                let group = Group::new("g", peers(&[1, 1]), Box::new($balance), 7);
                let now = Instant::now();
                let first = group.pick(&mut key("k"), now).unwrap();
                assert!(group.ended(&first, Ended::Failed, now));
                for _ in 0..20 {
                    let other = group.pick(&mut key("k"), now).unwrap();
                    assert_ne!(other.peer.name, first.peer.name);
                    group.ended(&other, well(), now);
                }
                let later = now + Duration::from_secs(11);
                let mut choice = key("k");
                let both = [group.pick(&mut choice, later), group.pick(&mut choice, later)];
                assert!(both.iter().flatten().any(|p| p.peer.name == first.peer.name));
            }
        }
    )*};
}

laws! {
    round_robin => RoundRobin;
    least_conn => LeastConn;
    least_time => LeastTime { measure: Measure::First, inflight: false };
    least_inflight => LeastTime { measure: Measure::First, inflight: true };
    least_connecting => LeastTime { measure: Measure::Connect, inflight: true };
    ip_hash => IpHash;
    hash => Hash;
    consistent => Consistent::default();
    random => Random { two: None };
    random_two => Random { two: Some(Two::LeastConn) };
}

#[test]
fn round_robin_is_smooth() {
    let group = Group::new("g", peers(&[5, 1, 1]), Box::new(RoundRobin), 1);
    let now = Instant::now();
    let ports: String = (0..7)
        .map(|_| {
            let picked = group.pick(&mut Choice::default(), now).unwrap();
            group.ended(&picked, well(), now);
            picked.peer.name.chars().last().unwrap()
        })
        .collect();
    assert_eq!(ports, "0010200");
}

#[test]
fn least_conn_fills_the_empty_first() {
    let group = Group::new("g", peers(&[1, 1, 1]), Box::new(LeastConn), 1);
    let now = Instant::now();
    let picked: Vec<_> = (0..3).map(|_| group.pick(&mut Choice::default(), now).unwrap()).collect();
    group.ended(&picked[1], well(), now);
    let next = group.pick(&mut Choice::default(), now).unwrap();
    assert_eq!(next.peer.name, picked[1].peer.name);
}

#[test]
fn a_failed_peer_has_its_time_and_no_more() {
    let group = Group::new("g", peers(&[1, 1]), Box::new(RoundRobin), 1);
    let now = Instant::now();
    let failed = group.pick(&mut Choice::default(), now).unwrap();
    group.ended(&failed, Ended::Failed, now);
    // A request that has tried the other peer.
    let is_tried = |at| {
        let mut choice = Choice::default();
        let picked = [group.pick(&mut choice, at), group.pick(&mut choice, at)];
        let picked: Vec<_> = picked.into_iter().flatten().collect();
        picked.iter().for_each(|one| _ = group.ended(one, well(), at));
        picked.iter().any(|one| one.peer.name == failed.peer.name)
    };
    let time = PeerOptions::default().fail_timeout;
    assert!(!is_tried(now + time - Duration::from_millis(1)));
    assert!(is_tried(now + time + Duration::from_millis(1)));
}

#[test]
fn backups_wait_for_the_last_to_fail() {
    let mut list = peers(&[1, 1]);
    list.push(peer(9000, PeerOptions { backup: true, ..PeerOptions::default() }));
    let group = Group::new("g", list, Box::new(RoundRobin), 1);
    assert_eq!(group.tries(), 3);
    let now = Instant::now();
    let mut choice = Choice::default();
    for _ in 0..2 {
        let picked = group.pick(&mut choice, now).unwrap();
        assert!(!picked.peer.options.backup);
        group.ended(&picked, Ended::Failed, now);
    }
    assert!(group.pick(&mut choice, now).unwrap().peer.options.backup);
    assert!(group.pick(&mut choice, now).is_none());
}

#[test]
fn a_sole_peer_is_never_given_up() {
    let group = Group::new("g", peers(&[1]), Box::new(RoundRobin), 1);
    let now = Instant::now();
    for _ in 0..5 {
        let picked = group.pick(&mut Choice::default(), now).unwrap();
        assert!(!group.ended(&picked, Ended::Failed, now));
    }
}

/// A peer that recovers with a 403 or 404 is live again, although the request goes on to another.
#[test]
fn an_answer_of_which_another_peer_may_have_more_ends_the_trial() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let is_live_after = |failure| {
        let group = Group::new("g", peers(&[1, 1]), Box::new(RoundRobin), 1);
        let tested = group.pick(&mut Choice::default(), start).unwrap();
        group.ended(&tested, Ended::Failed, start);
        let again = |at| {
            let mut choice = Choice::default();
            let both = [group.pick(&mut choice, at), group.pick(&mut choice, at)];
            both.into_iter().flatten().find(|picked| picked.peer.name == tested.peer.name)
        };
        group.ended(&again(after(11)).unwrap(), Ended::by(failure), after(11));
        again(after(12)).is_some()
    };
    assert!(is_live_after(Failure::Status(404)));
    assert!(is_live_after(Failure::Status(403)));
    assert!(!is_live_after(Failure::Status(500)));
    assert!(!is_live_after(Failure::Unreachable));
}

#[test]
fn a_new_list_keeps_servers_that_stay() {
    let list = peers(&[1, 1]);
    let group = Group::new("g", list.clone(), Box::new(RoundRobin), 1);
    let now = Instant::now();
    let picked = group.pick(&mut Choice::default(), now).unwrap();
    group.ended(&picked, Ended::Failed, now);
    let mut longer = vec![peer(9001, PeerOptions::default())];
    longer.extend(list);
    group.replace(longer);
    for _ in 0..6 {
        let other = group.pick(&mut Choice::default(), now).unwrap();
        assert_ne!(other.peer.name, picked.peer.name);
        group.ended(&other, well(), now);
    }
}

proptest! {
    /// Keys keep their peer when another one leaves.
    #[test]
    fn consistent_moves_only_the_share_of_a_removed_server(keys in prop::collection::vec("[a-z]{1,8}", 1..40)) {
        let all = peers(&[1, 1, 1, 1]);
        let now = Instant::now();
        let choose = |list: &[Arc<Peer>], text: &str| {
            let group = Group::new("g", list.to_vec(), Box::new(Consistent::default()), 1);
            group.pick(&mut key(text), now).map(|p| p.peer.name.clone())
        };
        for text in keys {
            let before = choose(&all, &text);
            let after = choose(&all[..3], &text);
            if before.as_deref() != Some(all[3].name.as_str()) {
                prop_assert_eq!(before, after);
            }
        }
    }
}

#[test]
fn hash_spreads_keys_and_keeps_them() {
    let choose = |text: String| {
        let group = Group::new("g", peers(&[1, 1, 1]), Box::new(Hash), 1);
        group.pick(&mut key(&text), Instant::now()).map(|p| p.peer.name.clone())
    };
    let mut shares = std::collections::HashMap::new();
    for n in 0..300 {
        let first = choose(format!("key{n}"));
        assert_eq!(first, choose(format!("key{n}")));
        *shares.entry(first).or_insert(0) += 1;
    }
    assert!(shares.len() == 3 && shares.values().all(|n| *n > 50), "{shares:?}");
}

/// Of two idle peers the first that was drawn is taken, so that shares are those of the weights.
#[test]
fn two_are_drawn_by_weight() {
    let two = Random { two: Some(Two::LeastConn) };
    let group = Group::new("g", peers(&[8, 1, 1]), Box::new(two), 7);
    let now = Instant::now();
    let first = (0..1000).filter(|_| {
        let picked = group.pick(&mut Choice::default(), now).unwrap();
        group.ended(&picked, well(), now);
        picked.peer.options.weight == 8
    });
    let first = first.count();
    assert!((700..900).contains(&first), "{first}");
}

/// A request whose hash is not followed any more.
fn already_refused() -> Choice {
    let mut choice = key("some");
    choice.refused = u32::MAX;
    choice
}

/// Twenty peers that are not free end the search. Those that were free do not count.
#[test]
fn a_hash_chooses_as_long_as_it_leads_to_free_peers() {
    // On the ring each search begins where the last one has ended, at a peer that is not free any more.
    type Make = fn() -> Box<dyn Balance>;
    let methods: [(Make, usize); 3] = [
        (|| Box::new(Hash), 30),
        (|| Box::new(IpHash), 30),
        (|| Box::new(Consistent::default()), 15),
    ];
    for (balance, picks) in methods {
        let chosen = |turns: usize| {
            let group = Group::new("g", peers(&[1; 200]), balance(), 1);
            let (now, mut choice) = (Instant::now(), key("some"));
            // Turns by which the round robin behind the hash differs.
            for _ in 0..turns {
                group.pick(&mut already_refused(), now).unwrap();
            }
            let pick = || group.pick(&mut choice, now).map(|picked| picked.peer.name.clone());
            std::iter::repeat_with(pick).take(picks).collect::<Vec<_>>()
        };
        assert_eq!(chosen(0), chosen(7), "{:?}", balance());
    }
}

#[test]
fn retries_follow_the_configuration() {
    let sent = Sent {
        started: true,
        non_idempotent: false,
        streamed: false,
        left: 1,
        elapsed: Duration::ZERO,
    };
    let retry = Retry::default();
    assert!(retry.again(Failure::Error, sent));
    assert!(retry.again(Failure::Timeout, sent));
    assert!(!retry.again(Failure::InvalidHeader, sent));
    assert!(!retry.again(Failure::Status(503), sent));
    assert!(!retry.again(Failure::Error, Sent { left: 0, ..sent }));
    let post = Sent { non_idempotent: true, ..sent };
    assert!(!retry.again(Failure::Error, post));
    assert!(retry.again(Failure::Error, Sent { started: false, ..post }));
    assert!(!retry.again(Failure::Error, Sent { streamed: true, ..sent }));
    // What was not looked at may be repeated, if it still can be.
    assert!(retry.again(Failure::Refused, post));
    assert!(!retry.again(Failure::Refused, Sent { streamed: true, ..post }));
    assert!(!Failure::Refused.counts() && Failure::Error.counts());
    // A connection that ended says nothing of each request on it.
    let (counted, lost) = (Failure::Lost { counts: true }, Failure::Lost { counts: false });
    assert!(retry.again(lost, sent) && !retry.again(lost, post));
    assert!(counted.counts() && !lost.counts() && lost.response() == 502);
    let hasty = Retry { timeout: Duration::from_secs(1), ..Retry::default() };
    assert!(!hasty.again(Failure::Error, Sent { elapsed: Duration::from_secs(1), ..sent }));
    let all = Failures::word(b"http_503").unwrap().and(Failures::NON_IDEMPOTENT);
    assert!(Retry { on: all, ..Retry::default() }.again(Failure::Status(503), post));
    assert_eq!(Retry { tries: 2, ..Retry::default() }.attempts(5), 2);
}

/// Each measure counts its own time, and no other.
#[test]
fn the_soonest_are_those_of_the_measure() {
    let ms = |n| Some(Duration::from_millis(n));
    let slow = [
        (Measure::Connect, PeerTimes { connect: ms(300), first: ms(1), last: ms(1) }),
        (Measure::First, PeerTimes { connect: ms(1), first: ms(300), last: ms(1) }),
        (Measure::Last, PeerTimes { connect: ms(1), first: ms(1), last: ms(300) }),
    ];
    for (measure, times) in slow {
        for (of, _) in slow {
            let balance = Box::new(LeastTime { measure: of, inflight: false });
            let group = Group::new("g", peers(&[1, 1]), balance, 1);
            let now = Instant::now();
            let mut shares = [0, 0];
            for _ in 0..8 {
                let picked = group.pick(&mut Choice::default(), now).unwrap();
                let at = usize::from(picked.peer.name.ends_with('1'));
                shares[at] += 1;
                let fast = PeerTimes { connect: ms(1), first: ms(1), last: ms(1) };
                group.ended(&picked, Ended::Well(if at == 1 { times } else { fast }), now);
            }
            let expected = if of == measure { [7, 1] } else { [4, 4] };
            assert_eq!(shares, expected, "{of:?} where {measure:?} is slow");
        }
    }
}

/// A server with requests that wait counts as slow, until the moment that the method measures.
#[test]
fn a_server_with_waiting_requests_is_slow_until_its_measured_time() {
    let both = [Measure::Connect, Measure::First];
    for (i, measure) in both.into_iter().enumerate() {
        // The first peer has weight for two connections.
        let balance = Box::new(LeastTime { measure, inflight: true });
        let group = Group::new("g", peers(&[10, 1]), balance, 1);
        let now = Instant::now();
        let mut waiting = group.pick(&mut Choice::default(), now).unwrap();
        assert!(waiting.peer.name.ends_with('0'));
        let later = now + Duration::from_secs(4);
        let next = || {
            let picked = group.pick(&mut Choice::default(), later).unwrap();
            group.ended(&picked, Ended::Next, later);
            picked.peer.name.ends_with('0')
        };
        assert!(!next(), "{measure:?}");
        let took = Duration::from_millis(1);
        group.reached(&mut waiting, both[1 - i], took, later);
        assert!(!next(), "{measure:?}");
        group.reached(&mut waiting, measure, took, later);
        assert!(next(), "{measure:?}");
    }
}

/// Counts the peers of each list that it is told of.
#[derive(Debug)]
struct Told(Arc<Mutex<Vec<usize>>>);

impl Balance for Told {
    fn prepare(&mut self, peers: &PeerSet) {
        self.0.lock().unwrap().push(peers.list().len());
    }

    fn pick(&mut self, _: &mut PeerSet, _: &mut Choice, _: Instant) -> Option<usize> {
        None
    }
}

#[test]
fn a_method_is_prepared_for_a_list_before_requests_come() {
    let lists = Arc::new(Mutex::new(Vec::new()));
    let group = Group::new("g", peers(&[1, 1]), Box::new(Told(lists.clone())), 1);
    assert_eq!(*lists.lock().unwrap(), [2]);
    group.replace(peers(&[1, 1, 1]));
    assert_eq!(*lists.lock().unwrap(), [2, 3]);
}
