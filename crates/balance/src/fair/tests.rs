use std::sync::atomic::AtomicU64;

use proptest::prelude::*;

use super::*;
use crate::Wait;

fn setup(me: usize, sockets: usize) -> LoopSetup {
    LoopSetup { me, sockets, connections: 1000, mutex_delay: Duration::from_millis(500) }
}

fn with_loads<T>(loads: &[Load], look: impl FnOnce(Instant, &LoadTable<'_>) -> T) -> T {
    let words: Vec<_> = (0..LoadTable::words(loads.len())).map(|_| AtomicU64::new(0)).collect();
    let now = Instant::now();
    let table = LoadTable::over(&words, now);
    for (i, load) in loads.iter().enumerate() {
        table.row(i).set_state(LoopActivity::Armed, 1);
        assert!(table.row(i).sleep());
        table.row(i).set_load(*load);
    }
    look(now, &table)
}

fn excess(now: Instant, table: &LoadTable<'_>, i: usize, slack: u64) -> u64 {
    let mut means = Means::of_connections(now, table, i, 0, slack);
    means.weigh_requests(now, table, i);
    means.excess(table.row(i).load())
}

fn load() -> impl Strategy<Value = Load> {
    (0..300u64, 0..300u64).prop_map(|(a, b)| Load { inflight: a.min(b), open: b })
}

proptest! {
    /// For any loads, some loop stays in the list.
    #[test]
    fn not_all_are_above_the_mean(
        loads in prop::collection::vec(load(), 1..40),
        slack in 0..4u64,
    ) {
        let listed = with_loads(&loads, |now, table| {
            (0..loads.len()).any(|i| excess(now, table, i, slack) == 0)
        });
        prop_assert!(listed);
    }

    /// A loop with clearly more load than any other never stays in the list.
    #[test]
    fn the_most_loaded_loop_is_above_the_mean(
        mut loads in prop::collection::vec(load(), 1..40),
    ) {
        let most = loads.iter().map(|load| load.open).max().unwrap_or(0);
        let heaviest = loads.len();
        loads.push(Load { inflight: 0, open: most + most / 4 + 2 });
        let more = with_loads(&loads, |now, table| excess(now, table, heaviest, 0));
        prop_assert!(more > 0);
    }
}

/// Requests come and go in each turn. To read all rows in each turn would cost more than the requests.
#[test]
fn a_loop_with_as_many_connections_compares_once_a_millisecond() {
    let loads = [Load { inflight: 1, open: 3 }; 4];
    with_loads(&loads, |now, table| {
        let mut fair = Fair::new(setup(0, 1));
        let mut stance = |after, load| {
            table.row(0).set_load(load);
            fair.before_wait(now + after, table).stance
        };
        assert_eq!(stance(Duration::ZERO, loads[0]), Stance::Armed);
        (1..4).for_each(|i| table.row(i).set_load(Load::default()));
        let idle = Load { inflight: 0, open: 3 };
        assert_eq!(stance(FRESH / 2, idle), Stance::Armed);
        assert_eq!(stance(FRESH, idle), Stance::Disarmed);
    });
}

/// The same for a loop out of the list. It checks in each turn that another loop is in the list.
#[test]
fn a_loop_out_of_the_list_compares_once_a_millisecond() {
    let loads = [5, 2, 2].map(|open| Load { inflight: 0, open });
    with_loads(&loads, |now, table| {
        let mut fair = Fair::new(setup(0, 1));
        let mut stance = |after| fair.before_wait(now + after, table).stance;
        assert_eq!(stance(Duration::ZERO), Stance::Disarmed);
        assert!(table.is_above_mean(0));
        (1..3).for_each(|i| table.row(i).set_load(loads[0]));
        assert_eq!(stance(FRESH / 2), Stance::Disarmed);
        table.row(1).set_state(LoopActivity::Awake, table.stamp(now));
        assert_eq!(stance(FRESH / 2), Stance::Disarmed, "another one is listed");
        table.row(2).set_state(LoopActivity::Awake, table.stamp(now));
        assert_eq!(stance(FRESH / 2), Stance::Armed, "no other one is listed");
        assert!(!table.is_above_mean(0), "it carries no more than the others");
    });
}

/// Leaving and coming back costs a system call for each socket, so a loop with many sockets leaves
/// later.
#[test]
fn with_many_sockets_a_loop_leaves_later() {
    let loads = [5, 2, 2, 2].map(|open| Load { inflight: 0, open });
    let stance = |sockets| {
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, sockets));
            fair.place = LoopPlace::Listed;
            fair.woken = false;
            fair.before_wait(now, table).stance
        })
    };
    assert_eq!(stance(1), Stance::Disarmed);
    assert_eq!(stance(64), Stance::Armed);
}

/// A loop beside another one that works and has no connections.
#[test]
fn the_time_to_back_off_grows_with_the_excess() {
    let time = |own: u64| {
        let loads = [own, 0].map(|open| Load { inflight: 0, open });
        with_loads(&loads, |now, table| {
            table.row(1).set_state(LoopActivity::Awake, 1);
            let mut fair = Fair::new(setup(0, 1));
            let first = fair.before_wait(now, table);
            let time = first.at_most.unwrap();
            assert_eq!(first.stance, Stance::Disarmed);
            assert_eq!(fair.before_wait(now + time / 2, table).stance, Stance::Disarmed);
            // The loop is on standby now, and an accept makes it back off again.
            assert_eq!(fair.before_wait(now + time, table), Wait::ARMED);
            let _ = fair.on_accepted(now + time, table, 1);
            table.row(0).set_load(Load { inflight: 0, open: own + 2 });
            let again = fair.before_wait(now + time, table);
            assert_eq!(again.stance, Stance::Disarmed);
            assert!(again.at_most.unwrap() > time || time == LONGEST);
            time
        })
    };
    assert_eq!([2, 4, 20].map(time), [STEP, 2 * STEP, 10 * STEP]);
    assert_eq!([100, 10_000].map(time), [LONGEST; 2]);
}

/// One more connection is much compared with few, and nothing compared with hundreds.
#[test]
fn a_sixteenth_more_than_the_mean_is_not_above_it() {
    let is_more = |own: u64, other: u64| {
        let loads = [own, other].map(|open| Load { inflight: 0, open });
        with_loads(&loads, |now, table| excess(now, table, 0, 0) > 0)
    };
    assert!(is_more(4, 3) && is_more(15, 14) && is_more(180, 140));
    assert!(!is_more(3, 3) && !is_more(168, 160));
}

/// Another loop compared itself while this one had one connection more, and sleeps by that
/// decision.
#[test]
fn a_loop_that_accepted_compares_anew() {
    let loads = [(0, 1), (1, 1)].map(|(inflight, open)| Load { inflight, open });
    with_loads(&loads, |now, table| {
        let mut fair = Fair::new(setup(0, 1));
        assert_eq!(fair.before_wait(now, table).wake, Some(1));
        table.row(1).acknowledge_wake();
        assert_eq!(fair.before_wait(now, table).wake, None);
        let _ = fair.on_accepted(now, table, 1);
        assert_eq!(fair.before_wait(now, table).wake, Some(1));
    });
}

/// Requests on keep-alive connections come and go in each turn, without new connections.
#[test]
fn requests_alone_move_no_loop_out_of_the_list_and_wake_none() {
    let loads = [0, 0, 9].map(|inflight| Load { inflight, open: 9 });
    with_loads(&loads, |now, table| {
        let mut fair = Fair::new(setup(0, 1));
        assert_eq!(fair.before_wait(now, table).wake, Some(2), "it has just begun");
        table.row(2).acknowledge_wake();
        for turn in 1..100 {
            let load = Load { inflight: 9 * (turn % 2), open: 9 };
            table.row(0).set_load(load);
            let wait = fair.before_wait(now + FRESH * turn as u32, table);
            assert_eq!(wait, Wait::ARMED, "turn {turn}");
        }
        let later = now + FRESH * 100;
        let _ = fair.on_accepted(later, table, 1);
        assert_eq!(fair.before_wait(later, table).stance, Stance::Disarmed);
    });
}

/// Loop 0 leaves the list. Loop 1, the last one in it, wakes up after loop 0 has looked and before
/// loop 0 publishes that it is disarmed. It calls loop 0, which would otherwise sleep for a round
/// while no loop is listed. Loop 0 is awake, so it needs no notifier, but it must not sleep.
#[test]
fn a_loop_that_is_about_to_leave_is_woken_by_the_last_one_in_the_list() {
    let loads = [1, 0].map(|open| Load { inflight: 0, open });
    with_loads(&loads, |now, table| {
        let (mut leaves, mut last) = (Fair::new(setup(0, 1)), Fair::new(setup(1, 1)));
        table.row(0).set_state(LoopActivity::Awake, 1);
        table.row(0).awake();
        assert_eq!(leaves.before_wait(now, table).stance, Stance::Disarmed);
        table.row(1).set_state(LoopActivity::Awake, table.stamp(now));
        assert_eq!(last.loop_to_wake(now, table), None);
        assert!(!table.row(0).sleep() && table.row(0).acknowledge_wake());
    });
}

#[test]
fn a_loop_alone_is_always_armed() {
    let heavy = [Load { inflight: 9, open: 9 }];
    let wait = with_loads(&heavy, |now, t| Fair::new(setup(0, 1)).before_wait(now, t));
    assert_eq!(wait, Wait::ARMED);
}
