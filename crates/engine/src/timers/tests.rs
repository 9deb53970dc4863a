//! The timer wheel compared with a sorted list, and corner cases.

use super::*;
use proptest::prelude::*;

fn drain(wheel: &mut Wheel<u32>, now: u64) -> Vec<u32> {
    let mut fired = Vec::new();
    wheel.advance(now, &mut fired);
    fired
}

#[test]
fn a_timer_fires_at_its_tick_and_once() {
    let mut wheel = Wheel::new();
    wheel.insert(100, 1);
    assert_eq!(drain(&mut wheel, 99), []);
    assert_eq!(drain(&mut wheel, 100), [1]);
    assert_eq!(drain(&mut wheel, 1000), []);
    assert_eq!(wheel.next(), None);
}

#[test]
fn timers_of_one_tick_fire_in_the_order_in_which_they_were_set() {
    let mut wheel = Wheel::new();
    // The first of these move down a level before they fire.
    for payload in 0..3 {
        wheel.insert(100, payload);
    }
    assert!(drain(&mut wheel, 70).is_empty());
    for payload in 3..6 {
        wheel.insert(100, payload);
    }
    assert_eq!(drain(&mut wheel, 100), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_timer_of_the_past_fires_with_the_next_advance() {
    let mut wheel = Wheel::new();
    drain(&mut wheel, 5000);
    wheel.insert(3, 7);
    assert_eq!(drain(&mut wheel, 5000), [7]);
}

#[test]
fn beyond_the_top_level_waits_and_comes() {
    let mut wheel = Wheel::new();
    let far = (1u64 << 36) * 3 + 17;
    wheel.insert(far, 9);
    assert_eq!(drain(&mut wheel, far - 1), []);
    assert_eq!(drain(&mut wheel, far), [9]);
}

#[test]
fn a_cancelled_id_cannot_cancel_the_slot_s_next_owner() {
    let mut wheel = Wheel::new();
    let first = wheel.insert(10, 1);
    assert_eq!(wheel.cancel(first), Some(1));
    assert_eq!(wheel.cancel(first), None);
    let second = wheel.insert(10, 2);
    assert_eq!(second.index, first.index);
    assert_eq!(wheel.cancel(first), None);
    assert_eq!(drain(&mut wheel, 10), [2]);
    assert_eq!(wheel.cancel(second), None);
}

#[test]
fn a_wheel_that_has_shrunk_keeps_its_timers_and_forgets_cancelled_ones() {
    let mut wheel = Wheel::new();
    let ids: Vec<TimerId> = (0..100).map(|n| wheel.insert(10 + n, n as u32)).collect();
    for id in ids.iter().skip(3).chain(ids.get(1)) {
        wheel.cancel(*id);
    }
    wheel.shrink();
    assert!(wheel.entries.capacity() < 10);
    for n in 1000..1200 {
        wheel.insert(5000, n);
    }
    assert!(ids.iter().skip(3).all(|id| wheel.cancel(*id).is_none()));
    assert_eq!(drain(&mut wheel, 200), [0, 2]);
    assert_eq!(drain(&mut wheel, 5000).len(), 200);
}

#[test]
fn a_timer_entry_stays_small() {
    assert!(size_of::<Entry<u64>>() <= 40);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    Cancel(usize),
    Advance(u64),
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let delay = prop_oneof![0u64..70, 0u64..5_000, 0u64..400_000, 0u64..(1 << 38)];
    prop_oneof![
        4 => delay.clone().prop_map(Step::Insert),
        2 => any::<usize>().prop_map(Step::Cancel),
        3 => delay.prop_map(Step::Advance),
        1 => Just(Step::Shrink),
    ]
}

proptest! {
    #[test]
    fn the_wheel_agrees_with_a_sorted_list(steps in prop::collection::vec(step(), 1..200)) {
        let mut wheel = Wheel::new();
        let mut model: Vec<(u64, u32, TimerId)> = Vec::new();
        let (mut now, mut name) = (0u64, 0u32);
        for step in steps {
            match step {
                Step::Insert(delay) => {
                    let id = wheel.insert(now + delay, name);
                    model.push((now + delay, name, id));
                    name += 1;
                }
                Step::Cancel(which) if !model.is_empty() => {
                    let (_, name, id) = model.remove(which % model.len());
                    prop_assert_eq!(wheel.cancel(id), Some(name));
                }
                Step::Cancel(_) => {}
                Step::Shrink => wheel.shrink(),
                Step::Advance(by) => {
                    now += by;
                    let mut fired = drain(&mut wheel, now);
                    let mut due: Vec<u32> =
                        model.iter().filter(|t| t.0 <= now).map(|t| t.1).collect();
                    let ticks: Vec<u64> = fired
                        .iter()
                        .filter_map(|n| model.iter().find(|t| t.1 == *n).map(|t| t.0))
                        .collect();
                    prop_assert!(ticks.is_sorted(), "fired out of order: {:?}", ticks);
                    model.retain(|t| t.0 > now);
                    fired.sort_unstable();
                    due.sort_unstable();
                    prop_assert_eq!(fired, due);
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            let first = model.iter().map(|t| t.0).min();
            match (wheel.next(), first) {
                (Some(at), Some(first)) => prop_assert!(at <= first.max(now)),
                (at, first) => prop_assert!(at.is_none() && first.is_none()),
            }
        }
    }
}
