//! State that stands in a zone, requests that are bound to a peer, and slow starts.

use weir_zone::{Declarations, Use, ZoneRef, Zones};

use super::*;
use crate::{Changes, CheckResult, Duty, Health, Thresholds};

pub fn zone() -> ZoneRef {
    let all = Declarations::default();
    let purpose = Use::of("upstream", 0);
    let zone = all.declare("one", 32 * 1024, purpose).unwrap();
    all.open(&Zones::default()).unwrap();
    zone
}

/// What a process that an attacker has taken over may write.
pub fn word() -> impl Strategy<Value = u64> {
    let ends = [0, 1, u64::MAX, i64::MAX as u64, i64::MIN as u64, u64::from(u32::MAX)];
    prop_oneof![prop::sample::select(ends.to_vec()), any::<u64>(), 0..100_000_000u64]
}

pub fn limited(most: u32) -> Vec<Arc<Peer>> {
    let options = PeerOptions { max_conns: most, ..PeerOptions::default() };
    (0..3).map(|i| peer(8000 + i, options.clone())).collect()
}

/// What two workers, or two configurations, make of the same peers.
fn two(peers: &[Arc<Peer>], zone: &ZoneRef) -> [Group; 2] {
    [1, 2].map(|seed| {
        let balance = Box::new(LeastConn);
        Group::new("g", peers.to_vec(), balance, seed).shared_in(Some(zone.clone()))
    })
}

proptest! {
    /// `max_conns` holds over all processes that share the zone, in any order of requests.
    #[test]
    fn one_limit_for_all(steps in prop::collection::vec((any::<bool>(), any::<bool>()), 1..80)) {
        let zone = zone();
        let groups = two(&limited(2), &zone);
        let now = Instant::now();
        let mut open: Vec<(usize, crate::Picked)> = Vec::new();
        for (which, opens) in steps {
            let which = usize::from(which);
            if opens {
                let picked = groups[which].pick(&mut Choice::default(), now);
                prop_assert_eq!(picked.is_some(), open.len() < 6);
                open.extend(picked.map(|p| (which, p)));
            } else if let Some((by, picked)) = open.pop() {
                groups[by].ended(&picked, well(), now);
            }
            for picked in &open {
                let same = open.iter().filter(|o| o.1.peer == picked.1.peer).count();
                prop_assert!(same <= 2);
            }
        }
    }
}

#[test]
fn the_fewest_connections_of_all_workers() {
    let zone = zone();
    let [a, b] = two(&peers(&[1, 1]), &zone);
    let now = Instant::now();
    let first = a.pick(&mut Choice::default(), now).unwrap();
    let second = b.pick(&mut Choice::default(), now).unwrap();
    assert_ne!(first.peer, second.peer);
    a.ended(&first, well(), now);
    assert_eq!(b.pick(&mut Choice::default(), now).unwrap().peer, first.peer);
}

#[test]
fn a_failure_is_known_to_all_and_to_the_next_configuration() {
    let zone = zone();
    let list = peers(&[1, 1]);
    let now = Instant::now();
    let failed = {
        let [a, _] = two(&list, &zone);
        let failed = a.pick(&mut Choice::default(), now).unwrap();
        assert!(a.ended(&failed, Ended::Failed, now));
        failed.peer
    };
    let [c, _] =
        two(&[list[1].clone(), list[0].clone(), peer(9000, PeerOptions::default())], &zone);
    let mut choice = Choice::default();
    let others = [c.pick(&mut choice, now), c.pick(&mut choice, now), c.pick(&mut choice, now)];
    assert!(others[2].is_none());
    assert!(others.iter().flatten().all(|p| p.peer != failed));
}

#[test]
fn a_peer_that_left_gives_its_connections_back() {
    let zone = zone();
    let [a, b] = two(&limited(1), &zone);
    let now = Instant::now();
    let picked = a.pick(&mut Choice::default(), now).unwrap();
    a.replace(peers(&[1]));
    a.ended(&picked, well(), now);
    let mut choice = Choice::default();
    assert_eq!((0..9).filter_map(|_| b.pick(&mut choice, now)).count(), 3);
}

#[test]
fn the_same_server_twice_is_two_peers() {
    let zone = zone();
    let same = peer(8000, PeerOptions { max_conns: 1, ..PeerOptions::default() });
    let [a, _] = two(&[same.clone(), same], &zone);
    let now = Instant::now();
    let picked: Vec<_> = (0..3).filter_map(|_| a.pick(&mut Choice::default(), now)).collect();
    assert_eq!(picked.len(), 2);
}

fn bound_to(sid: &str) -> Choice {
    let mut choice = Choice::new(b"k".to_vec());
    choice.bound = sid.into();
    choice
}

macro_rules! bound {
    ($($name:ident => $balance:expr;)*) => {$(
        #[test]
        fn $name() {
            let mut list = peers(&[1, 3]);
            let options = PeerOptions { drain: true, route: "leaving".into(), ..PeerOptions::default() };
            list.push(peer(9000, options));
            let group = Group::new("g", list.clone(), Box::new($balance), 7).binding();
            let now = Instant::now();
            for wanted in &list {
                for _ in 0..5 {
                    let picked = group.pick(&mut bound_to(&wanted.sid()), now).unwrap();
                    assert_eq!(picked.peer, *wanted);
                    group.ended(&picked, well(), now);
                }
            }
            // A request without a bound peer does not come to a draining one, nor does one that has
            // tried it.
            let mut choice = bound_to("leaving");
            let picked: Vec<_> = (0..9).filter_map(|_| group.pick(&mut choice, now)).collect();
            assert_eq!(picked.len(), 3);
            assert_eq!(picked[0].peer, list[2]);
            let mut choice = bound_to("nobody");
            assert!((0..9).filter_map(|_| group.pick(&mut choice, now)).count() == 2);
        }
    )*};
}

bound! {
    bound_by_round_robin => RoundRobin;
    bound_by_least_conn => LeastConn;
    bound_by_hash => Hash;
    bound_by_ring => Consistent::default();
    bound_by_chance => Random { two: None };
}

#[test]
fn a_sid_is_the_md5_of_the_address() {
    assert_eq!(peer(8080, PeerOptions::default()).sid(), "5958c386bf5e9109ac10d2a628645aea");
}

#[test]
fn a_slow_start_is_slow() {
    let slow = PeerOptions { slow_start: Duration::from_secs(100), ..PeerOptions::default() };
    let list = vec![peer(8000, slow), peer(8001, PeerOptions::default())];
    let group = Group::new("g", list.clone(), Box::new(RoundRobin), 1);
    let start = Instant::now();
    let serve = |now, n| {
        let one = |_| {
            let picked = group.pick(&mut Choice::default(), now).unwrap();
            group.ended(&picked, well(), now);
            usize::from(picked.peer == list[0])
        };
        (0..n).map(one).sum::<usize>()
    };
    let mut choice = Choice::default();
    let first = group.pick(&mut choice, start).unwrap();
    assert!(first.peer == list[0] && group.ended(&first, Ended::Failed, start));
    let back = start + Duration::from_secs(11);
    // One request finds out that it is back.
    assert!(serve(back, 4) >= 1);
    assert!(serve(back + Duration::from_secs(10), 110) <= 12);
    let half = serve(back + Duration::from_secs(50), 300);
    assert!((95..=105).contains(&half), "{half}");
    assert_eq!(serve(back + Duration::from_secs(100), 100), 50);
}

#[test]
fn checks_decide_which_servers_are_asked() {
    let zone = zone();
    let list = peers(&[1, 1]);
    let now = Instant::now();
    let by = Thresholds { fails: 2, passes: 1 };
    let make = || {
        let group = Group::new("g", list.clone(), Box::new(RoundRobin), 1);
        group.require_check();
        group.shared_in(Some(zone.clone()))
    };
    let (a, b) = (make(), make());
    let check = |group: &Group, at: usize, passed| {
        group.checked(&list[at], CheckResult { passed, asked: now }, by, now)
    };
    assert!(a.pick(&mut Choice::default(), now).is_none());
    assert_eq!(check(&b, 0, true), Some(Health::Healthy));
    assert_eq!(check(&b, 1, false), Some(Health::Unhealthy));
    assert_eq!(a.pick(&mut Choice::default(), now).unwrap().peer, list[0]);
    assert_eq!(check(&b, 0, false), None);
    assert_eq!(check(&b, 0, false), Some(Health::Unhealthy));
    assert!(a.pick(&mut Choice::default(), now).is_none());
    let all: Vec<_> = make().peers(now).into_iter().map(|(_, health)| health).collect();
    assert_eq!(all, [Health::Unhealthy, Health::Unhealthy]);
    a.check_anew(now);
    let all: Vec<_> = b.peers(now).into_iter().map(|(_, health)| health).collect();
    assert_eq!(all, [Health::Checking, Health::Checking]);
}

/// Two processes check the same servers at a reload. A verdict on an older question never replaces one on a newer, nor
/// does it count where peers are checked anew.
#[test]
fn an_older_question_never_overrides_a_newer_one() {
    let (zone, list) = (zone(), peers(&[1, 1]));
    let by = Thresholds { fails: 1, passes: 1 };
    let make =
        || Group::new("g", list.clone(), Box::new(RoundRobin), 1).shared_in(Some(zone.clone()));
    let (old, new) = (make(), make());
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let verdict = |group: &Group, passed, asked, ended| {
        group.checked(&list[0], CheckResult { passed, asked: at(asked) }, by, at(ended))
    };
    assert_eq!(verdict(&new, false, 1, 2), Some(Health::Unhealthy));
    assert_eq!(verdict(&new, true, 3, 4), Some(Health::Healthy));
    assert_eq!(verdict(&old, false, 2, 60), None);
    assert_eq!(old.states(at(60))[0].availability(at(60)), "up");
    new.check_anew(at(61));
    assert_eq!(verdict(&old, true, 60, 62), None);
    assert_eq!(new.states(at(62))[0].availability(at(62)), "checking");
    assert_eq!(verdict(&new, true, 61, 63), Some(Health::Healthy));
}

/// What requests find and what checks find are two things: neither forgives the other.
#[test]
fn a_check_that_passed_does_not_forgive_a_failed_request() {
    let (zone, list, now) = (zone(), peers(&[1, 1]), Instant::now());
    let group = Group::new("g", list.clone(), Box::new(RoundRobin), 1).shared_in(Some(zone));
    let picked = group.pick(&mut Choice::default(), now).unwrap();
    assert!(group.ended(&picked, Ended::Failed, now));
    let verdict = CheckResult { passed: true, asked: now };
    group.checked(&picked.peer, verdict, Thresholds { fails: 1, passes: 1 }, now);
    let states = group.states(now);
    let state = states.iter().find(|state| state.peer == picked.peer).unwrap();
    assert_eq!((state.fails, state.availability(now)), (1, "unavail"));
}

/// A server that is listed twice has two states, and one check.
#[test]
fn both_states_of_a_server_are_checked() {
    let (zone, now) = (zone(), Instant::now());
    let list = vec![peer(8000, PeerOptions::default()), peer(8000, PeerOptions::default())];
    let group = Group::new("g", list.clone(), Box::new(RoundRobin), 1).shared_in(Some(zone));
    let verdict = CheckResult { passed: false, asked: now };
    group.checked(&list[0], verdict, Thresholds { fails: 1, passes: 1 }, now);
    assert!(group.peers(now).iter().all(|(_, health)| *health == Health::Unhealthy));
}

/// What an operator changes through one worker, the others and the next configuration know at their next choice, methods
/// that have computed something from weights among them.
#[test]
fn changes_are_known_to_all() {
    let zone = zone();
    let list = peers(&[1, 1]);
    let now = Instant::now();
    let group = |seed| {
        let ring = Box::new(Consistent::default());
        Group::new("g", list.clone(), ring, seed).shared_in(Some(zone.clone()))
    };
    let [a, b] = [1, 2].map(group);
    let of_first = |group: &Group| {
        let keys = (0..400).map(|n| format!("key {n}"));
        let picked = keys.filter(|text| {
            let picked = group.pick(&mut key(text), now).unwrap();
            group.ended(&picked, well(), now);
            picked.peer == list[0]
        });
        picked.count()
    };
    let even = of_first(&b);
    assert!((100..300).contains(&even), "{even}");
    let change = |duty, weight| {
        a.change(
            |state| state.peer == list[0],
            &|changes| *changes = Changes { duty, weight },
            now,
        );
    };
    change(None, Some(9));
    assert!(of_first(&b) > 300 && of_first(&group(3)) > 300);
    change(Some(Duty::Drain), None);
    assert_eq!((of_first(&b), b.tries()), (0, 1));
    assert_eq!(b.states(now)[0].availability(now), "draining");
    change(Some(Duty::Down), None);
    assert_eq!((of_first(&b), b.peers(now).len()), (0, 1));
    change(None, None);
    assert_eq!((of_first(&b), of_first(&a)), (even, even));
}

/// A sole server is not asked either if it is shut out.
#[test]
fn a_sole_peer_may_be_shut_out() {
    let group = Group::new("g", peers(&[1]), Box::new(RoundRobin), 1);
    let now = Instant::now();
    for duty in [Duty::Drain, Duty::Down] {
        group.change(|_| true, &|changes| changes.duty = Some(duty), now);
        assert!(group.pick(&mut Choice::default(), now).is_none());
    }
    group.change(|_| true, &|changes| changes.duty = None, now);
    assert!(group.pick(&mut Choice::default(), now).is_some());
}
