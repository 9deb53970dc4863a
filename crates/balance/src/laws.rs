//! Laws that each accept policy is tested against in the model of the kernel. If a policy does not
//! keep a law, its row of [`PROMISES`](crate::model::PROMISES) says so.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::AcceptPolicy;
use crate::model::{Bound, Machine, ModelClient, Promise, Witness, World};

const MS: Duration = Duration::from_millis(1);
const WORK: Duration = Duration::from_millis(2);
/// The time of a wake-up, an accept, and a turn in the model.
const PROMPT: Duration = Duration::from_micros(200);

/// Six clients, one after another. Each sends its request `gap` after connecting; 0 sends it at
/// once.
fn six_one_after_another(kind: AcceptPolicy, gap: Duration) -> Vec<u64> {
    let mut world = World::new(kind, 3, Instant::now());
    for i in 1..=6 {
        world.client(MS * 20 * i, ModelClient { gap, ..ModelClient::once(Duration::ZERO) });
    }
    world.run(MS * 1000).accepted.clone()
}

/// An event of a schedule.
#[derive(Clone, Debug)]
enum ScheduledEvent {
    Client(ModelClient),
    Stop { i: usize, length: Duration },
    Kill { i: usize, respawn: Duration },
}

fn micros(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_micros)
}

fn client() -> impl Strategy<Value = ScheduledEvent> {
    let work = prop_oneof![9 => micros(0..4000), 1 => micros(10_000..40_000)];
    let times = (work, micros(0..3000), micros(0..500));
    (1..12u64, any::<[bool; 2]>(), times).prop_map(
        |(requests, [keep, computes], (work, think, gap))| {
            ScheduledEvent::Client(ModelClient { requests, keep, work, computes, think, gap })
        },
    )
}

fn trouble(loops: usize) -> impl Strategy<Value = ScheduledEvent> {
    prop_oneof![
        (0..loops, micros(1..300_000)).prop_map(|(i, length)| ScheduledEvent::Stop { i, length }),
        (0..loops, micros(1..50_000)).prop_map(|(i, respawn)| ScheduledEvent::Kill { i, respawn }),
    ]
}

type Schedule = Vec<(Duration, ScheduledEvent)>;

fn calm() -> impl Strategy<Value = (usize, Schedule)> {
    (1..6usize, prop::collection::vec((micros(0..100_000), client()), 1..60))
}

fn troubled() -> impl Strategy<Value = (usize, Schedule)> {
    (1..6usize).prop_flat_map(|loops| {
        let happening = prop_oneof![9 => client(), 1 => trouble(loops)];
        (Just(loops), prop::collection::vec((micros(0..100_000), happening), 1..60))
    })
}

fn play(kind: AcceptPolicy, loops: usize, schedule: &Schedule) -> World {
    play_in(World::new(kind, loops, Instant::now()), schedule)
}

fn play_in(mut world: World, schedule: &Schedule) -> World {
    for (at, happening) in schedule.iter().cloned() {
        match happening {
            ScheduledEvent::Client(client) => world.client(at, client),
            ScheduledEvent::Stop { i, length } => {
                world.stop(at, i);
                world.cont(at + length, i);
            }
            ScheduledEvent::Kill { i, respawn } => world.kill(at, i, respawn),
        }
    }
    world.run(Duration::from_secs(20));
    world
}

fn requests(schedule: &Schedule) -> u64 {
    let each = schedule
        .iter()
        .map(|(_, h)| if let ScheduledEvent::Client(c) = h { c.requests } else { 0 });
    each.sum()
}

fn within(bound: Bound, seen: Duration) -> Result<(), TestCaseError> {
    if let Some(limit) = bound.limit(PROMPT) {
        prop_assert!(seen <= limit, "{seen:?} beyond {limit:?}");
    }
    Ok(())
}

/// Each request is answered once, and no connection is left in a queue.
fn nothing_is_lost(
    promise: &Promise,
    loops: usize,
    schedule: &Schedule,
) -> Result<(), TestCaseError> {
    let mut world = play(promise.policy, loops, schedule);
    let w = world.run(Duration::from_secs(21));
    prop_assert_eq!(w.answered.iter().sum::<u64>(), requests(schedule));
    prop_assert_eq!(w.lost, 0);
    within(promise.calm_wait, w.waited_beside_sleeper)?;
    within(promise.unarmed, w.nobody_armed)?;
    prop_assert_eq!(world.waiting(), 0);
    for (n, (_, row)) in world.open().into_iter().zip(world.table().rows()) {
        prop_assert_eq!((row.load().open, row.load().inflight), (n as u64, 0));
    }
    Ok(())
}

/// Each request is answered once on two CPUs as well.
fn nothing_is_lost_on_two_cpus(
    kind: AcceptPolicy,
    loops: usize,
    schedule: &Schedule,
) -> Result<(), TestCaseError> {
    let mut world = World::new(kind, loops, Instant::now());
    let [wake, accept, connect, request] = [20, 15, 30, 10].map(Duration::from_micros);
    world.share(Machine { cpus: 2, wakes: vec![wake], accept, connect, request });
    let world = play_in(world, schedule);
    let w = world.witness();
    if w.lost == 0 {
        prop_assert_eq!(w.answered.iter().sum::<u64>(), requests(schedule));
    }
    prop_assert_eq!(world.waiting(), 0);
    Ok(())
}

/// Only the connections of a killed loop are lost. Other loops accept those that wait.
fn trouble_stays_local(
    promise: &Promise,
    loops: usize,
    schedule: &Schedule,
) -> Result<(), TestCaseError> {
    let mut world = play(promise.policy, loops, schedule);
    let w = world.run(Duration::from_secs(21));
    let clients = schedule.iter().filter(|(_, h)| matches!(h, ScheduledEvent::Client(_))).count();
    if w.lost == 0 {
        prop_assert_eq!(w.answered.iter().sum::<u64>(), requests(schedule));
    }
    prop_assert!(w.lost <= clients as u64);
    within(promise.wait, w.waited_beside_sleeper)?;
    prop_assert_eq!(world.waiting(), 0);
    Ok(())
}

macro_rules! laws {
    ($($name:ident: $policy:expr;)*) => {
        $(
            mod $name {
                use super::*;

                fn promise() -> Promise {
                    Promise::of($policy).expect("each policy has a row")
                }

                #[test]
                fn six_connections_to_three_idle_loops() {
                    let Promise { policy, six, .. } = promise();
                    for gap in [Duration::ZERO, MS] {
                        let mut spread = six_one_after_another(policy, gap);
                        spread.sort_unstable();
                        assert!(six.fits(&spread), "{policy}: {spread:?}");
                    }
                }

                proptest! {
                    #![proptest_config(ProptestConfig {
                        cases: ProptestConfig::default().cases / 4,
                        failure_persistence: None,
                        ..ProptestConfig::default()
                    })]

                    #[test]
                    fn in_calm((loops, schedule) in calm()) {
                        nothing_is_lost(&promise(), loops, &schedule)?;
                    }

                    #[test]
                    fn in_trouble((loops, schedule) in troubled()) {
                        trouble_stays_local(&promise(), loops, &schedule)?;
                    }

                    #[test]
                    fn on_two_cpus((loops, schedule) in troubled()) {
                        nothing_is_lost_on_two_cpus(promise().policy, loops, &schedule)?;
                    }
                }
            }
        )*

        #[test]
        fn each_row_of_the_promises_is_tested() {
            let tested = [$($policy),*];
            let mut rows = crate::model::PROMISES.iter();
            assert!(rows.all(|row| tested.contains(&row.policy)));
        }
    };
}

laws! {
    single: AcceptPolicy::Single;
    blocking: AcceptPolicy::Blocking;
    herd: AcceptPolicy::Herd;
    shared_epoll: AcceptPolicy::SharedEpoll;
    exclusive: AcceptPolicy::Exclusive;
    rotate: AcceptPolicy::Rotate(16);
    rotate_each: AcceptPolicy::Rotate(1);
    mutex: AcceptPolicy::Mutex;
    reuseport: AcceptPolicy::Reuseport;
    reuseport_load: AcceptPolicy::ReuseportLoad;
    dispatch: AcceptPolicy::Dispatch;
    fair: AcceptPolicy::Fair;
}

fn load(kind: AcceptPolicy, loops: usize, clients: usize, client: ModelClient) -> World {
    let mut world = World::new(kind, loops, Instant::now());
    for i in 0..clients {
        world.client(MS + Duration::from_micros(7) * i as u32, client);
    }
    world.run(Duration::from_secs(3));
    world
}

/// Four clients on twelve loops. A request follows some time after its connect. So a loop that
/// sleeps in between can accept a second connection.
fn light(kind: AcceptPolicy) -> World {
    let mut world = World::new(kind, 12, Instant::now());
    for i in 0..4 {
        let client =
            ModelClient { gap: Duration::from_micros(90 + 11 * i), ..ModelClient::closing(WORK) };
        world.client(MS, client);
    }
    world.run(Duration::from_secs(3));
    world
}

/// 36 keep-alive connections, which are accepted before their first requests arrive.
fn kept(kind: AcceptPolicy) -> World {
    let mut world = World::new(kind, 12, Instant::now());
    for i in 0..36 {
        let client = ModelClient { gap: MS * 4, ..ModelClient::keeping(WORK) };
        world.client(MS + Duration::from_micros(60) * i, client);
    }
    world.run(Duration::from_secs(3));
    world
}

fn seen(mut world: World) -> (f64, f64) {
    let w: &Witness = world.run(Duration::from_secs(3));
    (w.quantile(0.99).as_secs_f64() * 1e3, w.variation())
}

/// The figures of the table that compares the policies, in milliseconds and spread.
#[test]
fn fair_has_the_tail_of_one_queue_and_is_even() {
    let fair = AcceptPolicy::Fair;
    let (overload, spread) = seen(load(fair, 12, 200, ModelClient::closing(WORK)));
    let (other, _) = seen(load(AcceptPolicy::Blocking, 12, 200, ModelClient::closing(WORK)));
    assert!(overload <= other * 1.05 && spread <= 0.01, "{overload} {other} {spread}");
    let (light, spread) = seen(light(fair));
    assert!(light <= 2.5 && spread <= 0.01, "{light} {spread}");
    assert_eq!(kept(fair).open(), [3; 12]);
    assert_eq!(load(fair, 12, 36, ModelClient::keeping(WORK)).open(), [3; 12]);
}

#[test]
fn the_others_pay_as_measured() {
    let (hashed, _) = seen(load(AcceptPolicy::Reuseport, 12, 200, ModelClient::closing(WORK)));
    let (one_queue, _) = seen(load(AcceptPolicy::Fair, 12, 200, ModelClient::closing(WORK)));
    assert!(hashed > 2.0 * one_queue, "{hashed} {one_queue}");
    let (light, spread) = seen(light(AcceptPolicy::Exclusive));
    assert!(light > 4.0 && spread > 1.0, "{light} {spread}");
    let kept = kept(AcceptPolicy::Exclusive).open();
    assert_eq!(kept.iter().max(), Some(&36), "{kept:?}");
}

/// Two loops, the first of which has some idle connections.
fn uneven(idle: usize) -> World {
    let mut world = World::new(AcceptPolicy::Fair, 2, Instant::now());
    world.stop(Duration::ZERO, 1);
    for _ in 0..idle {
        let think = Duration::from_secs(60);
        world.client(MS, ModelClient { think, ..ModelClient::keeping(Duration::ZERO) });
    }
    world.cont(MS * 200, 1);
    world.run(MS * 300);
    assert_eq!(world.open(), [idle, 0]);
    world
}

/// The second of two uneven loops gets long work, and then a connection arrives. Returns how long
/// that connection takes.
fn beside_a_sleeper_with(idle: usize) -> Duration {
    let mut world = uneven(idle);
    world.client(MS * 301, ModelClient { gap: Duration::ZERO, ..ModelClient::once(MS * 100) });
    world.client(MS * 302, ModelClient::once(Duration::ZERO));
    let answers = &world.run(MS * 350).latencies;
    assert_eq!(answers.len(), idle + 1, "the long one is still at work");
    answers[idle]
}

/// The last listed sleeper that wakes up wakes a loop that has left the list. With an equal load
/// the loop comes back at once.
#[test]
fn fair_wakes_a_loop_that_left_when_the_list_empties() {
    assert!(beside_a_sleeper_with(1) < PROMPT);
}

/// A loop above the mean backs off only for a moment.
#[test]
fn fair_goes_on_standby_after_backing_off() {
    assert!(beside_a_sleeper_with(3) < MS * 2);
}

/// A burst arrives while the less loaded loop is busy. When that loop is free again, it accepts its
/// part of the burst.
#[test]
fn fair_leaves_others_their_part_of_a_burst() {
    let mut world = uneven(3);
    world.client(MS * 301, ModelClient { gap: Duration::ZERO, ..ModelClient::once(MS * 3) });
    for _ in 0..40 {
        world.client(MS * 302, ModelClient { gap: MS * 50, ..ModelClient::once(MS) });
    }
    world.run(MS * 320);
    let open = world.open();
    assert!(open.iter().all(|&n| n >= 15), "{open:?}");
}

/// One of four loops is stopped. The others continue, and no connection is lost.
#[test]
fn fair_forgets_a_stopped_loop() {
    let mut world = World::new(AcceptPolicy::Fair, 4, Instant::now());
    world.stop(Duration::ZERO, 1);
    for i in 0..20 {
        world.client(MS + Duration::from_micros(7) * i, ModelClient::closing(WORK));
    }
    let w = world.run(Duration::from_secs(4));
    let full_rate = 3.0 * 4.0 / WORK.as_secs_f64();
    let answered = w.answered.iter().sum::<u64>() as f64;
    assert!(answered > 0.95 * full_rate, "{answered} of {full_rate}");
    assert!(w.quantile(0.99) < MS * 20);
    assert_eq!(w.answered[1], 0);
}

/// Two loops have equally many connections, but those of one loop are in process. That loop accepts
/// none of the connections that arrive one after another. Neither an old decision nor an accept of
/// the other loop makes it.
#[test]
fn fair_spares_a_loop_with_handshakes() {
    const EACH: u64 = 6;
    let mut world = World::new(AcceptPolicy::Fair, 2, Instant::now());
    world.stop(Duration::ZERO, 0);
    for _ in 0..EACH {
        world.client(MS, ModelClient { gap: MS * 60_000, ..ModelClient::once(Duration::ZERO) });
    }
    world.cont(MS * 100, 0);
    for i in 0..EACH as u32 {
        let think = MS * 60_000;
        world.client(
            MS * (200 + 5 * i),
            ModelClient { think, ..ModelClient::keeping(Duration::ZERO) },
        );
    }
    for i in 0..40 {
        world.client(
            MS * (300 + 5 * i),
            ModelClient { gap: MS, ..ModelClient::once(Duration::ZERO) },
        );
    }
    assert_eq!(world.run(MS * 600).accepted, [EACH + 40, EACH]);
}

/// The more loaded loop is idle, but its own work wakes it repeatedly. It still goes on standby.
#[test]
fn fair_goes_on_standby_with_a_little_to_do() {
    let mut world = World::new(AcceptPolicy::Fair, 2, Instant::now());
    world.stop(Duration::ZERO, 1);
    for think in [MS / 2, MS * 60_000, MS * 60_000] {
        world.client(MS, ModelClient { think, ..ModelClient::keeping(Duration::ZERO) });
    }
    world.cont(MS * 200, 1);
    // The less loaded loop is in a long handler when the next connection comes.
    world.client(MS * 301, ModelClient { gap: Duration::ZERO, ..ModelClient::once(MS * 40) });
    world.client(MS * 305, ModelClient::once(Duration::ZERO));
    assert_eq!(world.run(MS * 304).accepted, [3, 1]);
    assert_eq!(world.run(MS * 308).accepted, [4, 1]);
}

/// The kernel wakes a loop for a connection. The loop is stopped or killed before it accepts, while all others sleep.
#[test]
fn a_loop_that_is_woken_and_stopped_delays_no_connection() {
    for kind in [AcceptPolicy::Fair, AcceptPolicy::Exclusive, AcceptPolicy::Rotate(1)] {
        for killed in [false, true] {
            let mut world = World::new(kind, 3, Instant::now());
            let woken = world.waiters(0)[0].0;
            let at = MS + Duration::from_micros(5);
            world.client(
                MS,
                ModelClient { gap: Duration::ZERO, ..ModelClient::once(Duration::ZERO) },
            );
            match killed {
                true => world.kill(at, woken, MS * 10_000),
                false => world.stop(at, woken),
            }
            let w = world.run(MS * 100);
            assert_eq!(w.answered.iter().sum::<u64>(), 1, "{kind}, killed: {killed}");
            assert!(w.waited_beside_sleeper < PROMPT, "{kind}, killed: {killed}");
        }
    }
}

/// The kernel wakes a loop that has no room for the connection.
#[test]
fn a_loop_that_is_woken_and_full_passes_the_recheck_token_on() {
    for kind in [AcceptPolicy::Fair, AcceptPolicy::Exclusive, AcceptPolicy::Rotate(1)] {
        let mut world = World::new(kind, 3, Instant::now());
        let woken = world.waiters(0)[0].0;
        world.room(woken, 0);
        for i in 1..4 {
            world.client(
                MS * i,
                ModelClient { gap: Duration::ZERO, ..ModelClient::once(Duration::ZERO) },
            );
        }
        let w = world.run(MS * 100);
        assert_eq!((w.answered.iter().sum::<u64>(), w.answered[woken]), (3, 0), "{kind}");
        assert!(w.waited_beside_sleeper < PROMPT, "{kind}");
    }
}

/// When the less loaded loop is free again, it accepts and the loop on standby does not.
#[test]
fn fair_leaves_standby_when_a_less_loaded_loop_is_back() {
    let mut world = uneven(3);
    world.client(MS * 301, ModelClient { gap: Duration::ZERO, ..ModelClient::once(MS * 100) });
    world.run(MS * 420);
    for i in 0..4 {
        world.client(MS * (450 + 5 * i), ModelClient::once(Duration::ZERO));
    }
    assert_eq!(world.run(MS * 500).accepted, [3, 5]);
}

/// Idle loops with keep-alive connections sleep, even those above the mean.
#[test]
fn fair_wakes_no_loop_of_an_idle_server() {
    let mut world = World::new(AcceptPolicy::Fair, 8, Instant::now());
    for i in 0..11 {
        let think = Duration::from_secs(60);
        world.client(MS * i, ModelClient { think, ..ModelClient::keeping(Duration::ZERO) });
    }
    world.run(MS * 200);
    let slept = world.sleeps();
    world.run(MS * 20_000);
    assert_eq!((world.sleeps(), world.open().iter().sum()), (slept, 11));
    // And it looks again when something happens.
    world.client(MS * 20_001, ModelClient::once(Duration::ZERO));
    assert_eq!(world.run(MS * 20_002).answered.iter().sum::<u64>(), 12);
}
