//! Carries out what a policy answers, turn by turn. The server and the model run these same lines; what they do it with
//! is their [`Entrance`].

use std::time::{Duration, Instant};

use crate::{After, Load, LoadTable, Probe, Seat, Stance};

/// For how long a loop takes nothing after it lacked a descriptor, or a place in its backend; nginx: accept_mutex_delay.
const SHORTAGE: Duration = Duration::from_millis(500);

/// A loop's listening sockets and connections, as a [`Porter`] sees them.
pub trait Entrance {
    /// A listening socket.
    type Door: Copy;

    /// The turn's time.
    fn now(&self) -> Instant;
    /// The time at this moment.
    fn this_moment(&self) -> Instant {
        self.now()
    }
    /// What the loop carries.
    fn load(&self) -> Load;
    /// Another connection may come.
    fn has_room(&self) -> bool;
    /// No connection may come, and none is idle that would make room.
    fn is_full(&mut self) -> bool {
        !self.has_room()
    }
    /// Ends idle connections, so that others may come.
    fn make_room(&mut self) {}
    /// The sockets that other loops accept from as well.
    fn shared(&self) -> Vec<Self::Door>;
    /// Whether other loops accept from it as well.
    fn is_shared(&self, door: Self::Door) -> bool;
    /// Takes the connection that waits longest.
    fn accept(&mut self, door: Self::Door) -> Taken;
    /// An event was about a socket in which nobody waits any more.
    fn found_nobody(&mut self) {}
    /// Takes what an acceptor handed over.
    fn take_handed(&mut self) -> Taken;
    /// Registers the shared sockets as the policy says, and those of the loop's own if it is `able` to take anything.
    /// False if the kernel refuses: then some door is deaf.
    fn arm(&mut self, stance: Stance, able: bool) -> bool;
    /// To the end of the kernel's list.
    fn readd(&mut self, door: Self::Door);
    /// Wakes loop `i`.
    fn ring(&mut self, i: usize);
    /// The sockets of loop `i`'s own, as far as this one has them.
    fn of(&self, _i: usize) -> Vec<Self::Door> {
        Vec::new()
    }
}

/// What came of an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A connection, which has begun.
    One,
    /// Nobody waited.
    Nobody,
    /// Descriptors or memory have run out; who waits stays.
    Shortage,
}

/// One loop's seat, and what its turns do for it: [`before_wait`](Porter::before_wait), the wait,
/// [`after_wait`](Porter::after_wait), [`accept`](Porter::accept) for each socket that was reported, and
/// [`after_accepts`](Porter::after_accepts).
pub struct Porter {
    seat: Seat,
    multi_accept: bool,
    /// Something ran out: nothing is accepted before that time.
    paused: Option<Instant>,
    /// The loop holds the baton: it tries every shared socket in each turn until none has a connection.
    holds_baton: bool,
    /// This turn's look has tried every shared socket.
    has_looked: bool,
}

impl Porter {
    /// For the loop of this seat; `multi_accept`: as many connections at once as there are.
    #[must_use]
    pub fn new(seat: Seat, multi_accept: bool) -> Porter {
        Porter { seat, multi_accept, paused: None, holds_baton: false, has_looked: false }
    }

    /// The row's number.
    #[must_use]
    pub fn me(&self) -> usize {
        self.seat.me()
    }

    /// About to sleep: arms and disarms. Whether it is armed, and the longest sleep.
    pub fn before_wait(
        &mut self,
        e: &mut impl Entrance,
        loops: &LoadTable<'_>,
    ) -> (Stance, Option<Duration>) {
        // A policy compares how long loops sleep, so the turn's time will not do.
        let now = e.this_moment();
        self.paused = self.paused.filter(|until| now < *until);
        let able = !e.is_full() && self.paused.is_none();
        let wait = self.seat.before_wait(now, loops, e.load(), able);
        let mut at_most = wait.at_most;
        if !e.arm(wait.stance, able) {
            self.seat.deaf(now, loops);
            self.pass_baton(e, loops, now);
            at_most = Some(at_most.map_or(SHORTAGE, |time| time.min(SHORTAGE)));
        } else if self.holds_baton && able {
            at_most = Some(Duration::ZERO);
        } else if self.holds_baton {
            self.pass_baton(e, loops, now);
        }
        if let Some(i) = wait.wake {
            e.ring(i);
        }
        let resumes = self.paused.map(|until| until.saturating_duration_since(now));
        (wait.stance, at_most.into_iter().chain(resumes).min())
    }

    /// Back from the wait.
    pub fn after_wait(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        self.has_looked = false;
        self.holds_baton |= self.seat.after_wait(e.now(), loops) == Probe::Try;
        if self.holds_baton && self.seat.is_retired() {
            self.pass_baton(e, loops, e.now());
        } else if self.holds_baton {
            self.look(e, loops);
        }
    }

    /// Tries every shared socket. A look that finds a connection keeps the baton, since another may wait behind it: under
    /// overload a baton that was passed on would never end. A loop that cannot accept passes it on.
    fn look(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        let mut found = false;
        for door in e.shared() {
            found |= self.accept_from(e, loops, door) > 0;
        }
        self.holds_baton &= found;
        self.has_looked = true;
    }

    /// Accepts what one socket that was reported has, at most one connection unless `multi_accept` is on.
    pub fn accept<E: Entrance>(&mut self, e: &mut E, loops: &LoadTable<'_>, door: E::Door) {
        // The look was this socket's turn. The kernel reports the socket again while a connection waits.
        if self.has_looked && e.is_shared(door) {
            return;
        }
        if self.accept_from(e, loops, door) == 0 {
            e.found_nobody();
        }
    }

    /// How many connections were accepted from one socket.
    fn accept_from<E: Entrance>(&mut self, e: &mut E, loops: &LoadTable<'_>, door: E::Door) -> u32 {
        let mut accepted = 0;
        if !e.has_room() {
            e.make_room();
        }
        while self.takes(e) && self.take_from(e, door) == Taken::One {
            accepted += 1;
            if !self.multi_accept {
                break;
            }
        }
        // Only this loop was woken for the connection that may still wait there: another loop looks.
        if e.is_shared(door) && !self.takes(e) {
            self.pass_baton(e, loops, e.now());
        }
        if accepted > 0 && self.seat.accepted(e.now(), loops, e.load(), accepted) == After::Readd {
            e.readd(door);
        }
        accepted
    }

    /// Takes all that waits in a socket that nobody else will see; false if something ran out before.
    pub fn drain<E: Entrance>(&mut self, e: &mut E, door: E::Door) -> bool {
        loop {
            match self.take_from(e, door) {
                Taken::One => {}
                ended => return ended == Taken::Nobody,
            }
        }
    }

    /// Somebody may wait of whom this loop alone was told, and it could not take them: when it may be able to.
    pub fn owes_until(&self, e: &impl Entrance) -> Option<Instant> {
        let full = (!e.has_room()).then(|| e.now() + SHORTAGE);
        self.paused.or(full)
    }

    /// Takes what an acceptor handed over to this loop.
    pub fn take_handed(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        if !e.has_room() {
            e.make_room();
        }
        while self.takes(e) {
            let counted = self.seat.counted(loops);
            match e.take_handed() {
                Taken::One => self.seat.taken(loops, e.load()),
                Taken::Nobody => return self.seat.nothing_came(loops, counted),
                Taken::Shortage => self.pause(e),
            }
        }
    }

    /// A thread that accepts for this loop alone has taken one. Its place in the list is that thread's, which leaves it by
    /// itself.
    pub fn was_given(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        let _ = self.seat.accepted(e.now(), loops, e.load(), 1);
    }

    /// The turn's accepts are done, its other work is to come: wakes who has to look again.
    pub fn after_accepts(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        while let Some(i) = self.seat.next_to_wake(e.now(), loops) {
            e.ring(i);
        }
        while let Some(i) = self.seat.next_to_relieve() {
            self.relieve(e, loops, i);
        }
    }

    /// Takes what waits for loop `i`, which does not come to it.
    fn relieve<E: Entrance>(&mut self, e: &mut E, loops: &LoadTable<'_>, i: usize) {
        let given = loops.row(i).handed();
        for door in e.of(i) {
            let mut accepted = 0;
            while self.takes(e) && self.take_from(e, door) == Taken::One {
                accepted += 1;
            }
            self.seat.relieved(loops, e.load(), accepted);
        }
        if self.takes(e) {
            loops.row(i).take_all(given);
        }
    }

    /// From now on this loop takes nothing new; one that relied on it is woken.
    pub fn retire(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>) {
        self.seat.retire(e.now(), loops).into_iter().for_each(|i| e.ring(i));
        if self.holds_baton {
            self.pass_baton(e, loops, e.now());
        }
    }

    /// Whether it can take one more, now.
    fn takes(&self, e: &impl Entrance) -> bool {
        e.has_room() && self.paused.is_none()
    }

    fn take_from<E: Entrance>(&mut self, e: &mut E, door: E::Door) -> Taken {
        let taken = e.accept(door);
        if taken == Taken::Shortage {
            self.pause(e);
        }
        taken
    }

    fn pause(&mut self, e: &impl Entrance) {
        self.paused = Some(e.now() + SHORTAGE);
    }

    /// Another loop looks. This one has no baton any more.
    fn pass_baton(&mut self, e: &mut impl Entrance, loops: &LoadTable<'_>, now: Instant) {
        self.holds_baton = false;
        self.seat.pass_baton(now, loops).for_each(|i| e.ring(i));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{Kind, Setup};

    /// A shared socket with a queue, before one loop or several, while descriptors last or not.
    struct Rush {
        now: Instant,
        queue: usize,
        room: bool,
        short: bool,
        rings: Vec<usize>,
    }

    impl Entrance for Rush {
        type Door = ();

        fn now(&self) -> Instant {
            self.now
        }

        fn load(&self) -> Load {
            Load { inflight: 1, open: 1 }
        }

        fn has_room(&self) -> bool {
            self.room
        }

        fn shared(&self) -> Vec<()> {
            vec![()]
        }

        fn is_shared(&self, (): ()) -> bool {
            true
        }

        fn accept(&mut self, (): ()) -> Taken {
            match (self.short, self.queue) {
                (true, _) => Taken::Shortage,
                (_, 0) => Taken::Nobody,
                _ => {
                    self.queue -= 1;
                    Taken::One
                }
            }
        }

        fn take_handed(&mut self) -> Taken {
            Taken::Nobody
        }

        fn arm(&mut self, _: Stance, _: bool) -> bool {
            true
        }

        fn readd(&mut self, (): ()) {}

        fn ring(&mut self, i: usize) {
            self.rings.push(i);
        }
    }

    impl Rush {
        fn new(now: Instant, queue: usize) -> Rush {
            Rush { now, queue, room: true, short: false, rings: Vec::new() }
        }
    }

    #[test]
    fn a_loop_that_could_not_accept_knows_when_it_can_again() {
        let (words, now) = (words(1), Instant::now());
        let table = LoadTable::over(&words, now);
        let mutex_delay = SHORTAGE;
        let setup = Setup { me: 0, sockets: 1, connections: 9, mutex_delay };
        let seat = Seat::take(Kind::Fair, setup, now, &table);
        let mut porter = Porter::new(seat, false);
        let mut rush = Rush::new(now, 1);
        assert_eq!(porter.owes_until(&rush), None);
        rush.room = false;
        assert_eq!(porter.owes_until(&rush), Some(now + SHORTAGE));
        (rush.room, rush.short) = (true, true);
        porter.accept(&mut rush, &table, ());
        assert_eq!(porter.owes_until(&rush), Some(now + SHORTAGE));
        rush.now += SHORTAGE;
        assert!(!porter.drain(&mut rush, ()));
        assert_eq!(porter.owes_until(&rush), Some(now + SHORTAGE + SHORTAGE));
        rush.short = false;
        assert!(porter.drain(&mut rush, ()) && rush.queue == 0);
    }

    /// Loops of one table and one queue.
    struct Loops<'a> {
        table: LoadTable<'a>,
        porters: Vec<Porter>,
        rush: Rush,
    }

    impl Loops<'_> {
        fn over(words: &[AtomicU64], loops: usize, queue: usize) -> Loops<'_> {
            let base = Instant::now();
            let (table, now) = (LoadTable::over(words, base), base + Duration::from_secs(1));
            let setup = |me| Setup { me, sockets: 1, connections: 9, mutex_delay: SHORTAGE };
            let seat = |me| Seat::take(Kind::Fair, setup(me), now, &table);
            let porters = (0..loops).map(|me| Porter::new(seat(me), false)).collect();
            Loops { table, porters, rush: Rush::new(now, queue) }
        }

        /// A turn of loop `i`, in which the kernel reports the socket; the longest sleep before it.
        fn turn(&mut self, i: usize) -> Option<Duration> {
            let (porter, rush, table) = (&mut self.porters[i], &mut self.rush, &self.table);
            rush.now += Duration::from_micros(5);
            let (_, at_most) = porter.before_wait(rush, table);
            porter.after_wait(rush, table);
            porter.accept(rush, table, ());
            porter.after_accepts(rush, table);
            at_most
        }

        fn give_batons(&self) {
            assert_eq!(self.table.pass_baton_to_all(self.rush.now, 0..0).count(), self.table.len());
        }
    }

    fn words(loops: usize) -> Vec<AtomicU64> {
        (0..LoadTable::words(loops)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn batons_cost_nothing_under_overload_and_end_with_the_queue() {
        const TURNS: usize = 5;
        for n in [1, 4, 64] {
            let words = words(n);
            let mut loops = Loops::over(&words, n, TURNS * n + 1);
            loops.give_batons();
            for turn in 1..=TURNS {
                (0..n).for_each(|i| _ = loops.turn(i));
                assert_eq!(loops.rush.queue, (TURNS - turn) * n + 1, "one accept a turn");
            }
            assert_eq!(loops.rush.rings, [], "{n} loops");
            // The first loop finds the last connection, and the others find none; then the first finds none.
            (0..n).chain(0..n).for_each(|i| _ = loops.turn(i));
            assert!((0..n).all(|i| loops.turn(i) != Some(Duration::ZERO)), "{n} loops");
            assert_eq!(loops.rush.rings, []);
        }
    }

    #[test]
    fn a_loop_that_cannot_accept_any_more_passes_the_baton_on() {
        for retires in [false, true] {
            let words = words(2);
            let mut loops = Loops::over(&words, 2, 9);
            let table = loops.table;
            assert_eq!(table.pass_baton_to_all(loops.rush.now, 1..2).collect::<Vec<_>>(), [0]);
            loops.turn(0);
            assert_eq!((loops.rush.queue, loops.rush.rings.len()), (8, 0), "it keeps the baton");
            let (porter, rush) = (&mut loops.porters[0], &mut loops.rush);
            if retires {
                porter.retire(rush, &table);
            } else {
                rush.room = false;
                let _ = porter.before_wait(rush, &table);
            }
            assert_eq!(rush.rings, [1], "retires: {retires}");
            assert!(!table.row(0).has_baton() && table.row(1).has_baton());
        }
    }

    #[test]
    fn a_retired_loop_passes_on_a_baton_that_came_late() {
        let words = words(2);
        let mut loops = Loops::over(&words, 2, 9);
        let (table, rush) = (loops.table, &mut loops.rush);
        table.pass_baton_to_all(rush.now, 1..2).for_each(drop);
        loops.porters[0].retire(rush, &table);
        assert_eq!(loops.porters[0].before_wait(rush, &table).1, Some(Duration::ZERO));
        loops.porters[0].after_wait(rush, &table);
        assert_eq!((rush.queue, &rush.rings[..]), (9, &[1][..]));
    }

    #[test]
    fn a_baton_that_comes_within_a_turn_ends_the_sleep_before_it_begins() {
        let words = words(2);
        let mut loops = Loops::over(&words, 2, 0);
        let _ = loops.turn(0);
        loops.give_batons();
        assert_eq!(loops.turn(0), Some(Duration::ZERO));
        assert_ne!(loops.turn(0), Some(Duration::ZERO));
    }
}
