//! Implements the engine's interface to the world.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix};
use weir_engine::sim::{self, Job, Rest};
use weir_engine::{Arm, Call};
use weir_testkit::Dice;

use crate::threads::AfterTurn;
use crate::world::{Core, THREAD_INDEX, World};

/// The most system calls of a task in a turn, and the number of tasks without a peer.
const BUDGET: u64 = 150;
const FEW: u64 = 4;
/// How long a loop accepts nothing after a failed accept.
const SHORTAGE: u64 = 510_000_000;
/// The duration of a system call, in nanoseconds.
const CALL: u64 = 800;

/// The bytes of an endless answer that are sent at once.
const FLOOD: &[u8] = &[b'a'; 16_384];

thread_local! {
    /// How many random numbers this thread has drawn.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// The world as the engine holds it.
pub struct WorldHandle(pub Arc<World>);

impl sim::SimulatedWorld for WorldHandle {
    fn nanos(&self) -> u64 {
        self.0.now()
    }

    fn secs(&self) -> i64 {
        self.0.secs
    }

    fn born(&self, number: usize) {
        THREAD_INDEX.set(2 * number);
    }

    fn me(&self) -> usize {
        THREAD_INDEX.get() / 2
    }

    fn is_runnable(&self, number: usize) -> bool {
        self.0.core().loops.list[2 * number].is_runnable(self.0.now())
    }

    fn has_used(&self, number: usize) -> u64 {
        self.0.core().loops.list[2 * number].used(self.0.now())
    }

    fn after(&self, nanos: u64, job: Job) {
        let mut core = self.0.core();
        core.numbers += 1;
        let number = core.numbers;
        core.jobs.insert((self.0.now() + nanos, number), (THREAD_INDEX.get() / 2, job));
    }

    fn beside(&self) -> usize {
        let number = THREAD_INDEX.get() | 1;
        self.0.core().loops.list[number].expect();
        number
    }

    fn begin_beside(&self, number: usize) {
        THREAD_INDEX.set(number);
        self.begin();
    }

    fn call_beside(&self) {
        let Core { loops, .. } = &mut *self.0.core();
        loops.list[THREAD_INDEX.get() | 1].called = true;
        loops.may_have_events = true;
    }

    fn wait(&self, until: Option<u64>) {
        self.0.give_back(self.0.core(), THREAD_INDEX.get(), AfterTurn::Rest(until));
    }

    fn begin(&self) {
        let (world, me) = (&self.0, THREAD_INDEX.get());
        let mut core = world.core();
        core.loops.list[me].started = true;
        world.turn.notify_one();
        while core.running != Some(me) {
            core = world.turns[me].wait(core).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn rest(&self, Rest { until, looked, news }: Rest<'_>) {
        let (world, me) = (&self.0, THREAD_INDEX.get());
        world.step(world.core(), me);
        let mut core = world.core();
        let l = &mut core.loops.list[me];
        if l.wakeup_fd.is_none() {
            l.wakeup_fd = news.and_then(|fd| fd.try_clone_to_owned().ok());
        }
        l.new_turn |= !looked;
        world.give_back(core, me, AfterTurn::Rest(until));
    }

    fn holds(&self, tasks: usize, sockets: usize) {
        self.0.core().loops.list[THREAD_INDEX.get()].holds = (tasks, sockets);
    }

    fn block(&self, time: Duration, computes: bool) {
        let (world, me) = (&self.0, THREAD_INDEX.get());
        world.step(world.core(), me);
        let nanos = time.as_nanos() as u64;
        let then = if computes { AfterTurn::Compute(nanos) } else { AfterTurn::Sleep(nanos) };
        world.give_back(world.core(), me, then);
    }

    fn end(&self) {
        let (world, me) = (&self.0, THREAD_INDEX.get());
        let mut core = world.core();
        core.loops.list[me].gone = true;
        core.loops.list[me].wakeup_fd = None;
        core.accept_queues.forget(me);
        // The loop may wait for its helper thread.
        core.loops.list[me & !1].called |= me % 2 == 1;
        core.running = None;
        world.turn.notify_one();
    }

    fn call(&self, call: Call) -> Result<(), Errno> {
        let me = THREAD_INDEX.get();
        let mut core = self.0.core();
        self.0.step(core, me);
        core = self.0.core();
        let runs = core.running == Some(me);
        // Before the first turn and after the last one, threads run freely.
        if !core.acting && !runs {
            return Ok(());
        }
        // Other calls may be made under locks of the file pool or of connection pools, where no
        // other loop may run.
        let lets_go = matches!(call, Call::Accept | Call::Send | Call::Watch | Call::Connect);
        if runs && core.faults.others > 0 && lets_go {
            let Core { dice, faults, .. } = &mut *core;
            if dice.one_in(faults.others) {
                self.0.give_back(core, me, AfterTurn::Run);
                core = self.0.core();
            }
        }
        let peers = core.peers;
        let l = &mut core.loops.list[me];
        l.calls += 1;
        if l.calls > BUDGET * (peers + FEW) {
            let calls = l.calls;
            println!(
                "a turn of loop {me} beside {peers} peers made {calls} system calls, the last {call:?}"
            );
            std::process::exit(1);
        }
        self.0.nanos.fetch_add(CALL, Ordering::Relaxed);
        let Core { dice, faults, floods, loops, trace, .. } = &mut *core;
        if call == Call::Recv {
            let more = |fd: &mut OwnedFd| {
                let sent = rustix::net::send(fd, FLOOD, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                matches!(sent, Ok(_) | Err(Errno::AGAIN))
            };
            floods.retain_mut(more);
        }
        let Some(errno) = faults.of(call, dice) else { return Ok(()) };
        if matches!(call, Call::Accept | Call::Watch) {
            trace.add(self.0.now(), "fails", me as u64, u64::from(call == Call::Watch));
            let until = self.0.now() + SHORTAGE;
            match me % 2 {
                0 => loops.list[me].cannot_accept_until = until,
                // The helper thread has consumed the wake-up, and other helper threads are not
                // woken.
                _ => loops.list.iter_mut().for_each(|l| l.cannot_accept_until = until),
            }
        }
        Err(errno)
    }

    fn enlist(&self, socket: BorrowedFd<'_>, arm: Arm) -> Option<usize> {
        let accept_queue = accept_queue_of(socket)?;
        self.0.core().accept_queues.add(accept_queue, THREAD_INDEX.get(), arm == Arm::Exclusive);
        Some(accept_queue)
    }

    fn leave(&self, accept_queue: usize) {
        self.0.core().accept_queues.remove(accept_queue, THREAD_INDEX.get());
    }

    fn reports(&self, accept_queue: usize) -> bool {
        self.0.core().accept_queues.reports(accept_queue, THREAD_INDEX.get())
    }

    fn accepted(&self, socket: BorrowedFd<'_>) {
        if let Some(accept_queue) = accept_queue_of(socket) {
            let now = self.0.now();
            let mut core = self.0.core();
            core.trace.add(now, "accepts", accept_queue as u64, THREAD_INDEX.get() as u64);
            core.accept_queues.accept(accept_queue, THREAD_INDEX.get() / 2);
        }
    }

    fn later(&self, job: Job) {
        let mut core = self.0.core();
        let ordered = core.acting || core.running == Some(THREAD_INDEX.get());
        let slow = core.faults.slow_disk;
        let delay = if ordered { 20_000 + core.dice.below(slow as usize + 1) as u64 } else { 0 };
        core.numbers += 1;
        let number = core.numbers;
        core.jobs.insert((self.0.now() + delay, number), (THREAD_INDEX.get() / 2, job));
        drop(core);
        self.0.turn.notify_all();
    }

    /// The last index if events are reported in order, since the engine takes the last one.
    fn below(&self, n: usize) -> usize {
        let mut core = self.0.core();
        if core.faults.orderly { n - 1 } else { core.dice.below(n) }
    }

    fn any(&self) -> u64 {
        let asked = ASKED.replace(ASKED.get() + 1);
        Dice::salted(self.0.seed ^ (THREAD_INDEX.get() as u64) << 32 ^ asked << 48, "any").any()
    }

    fn send_buffer(&self) -> usize {
        let mut core = self.0.core();
        core.dice.pick(&[1, 5_001, 20_003, 212_992])
    }

    fn hold_back(&self) -> Option<u64> {
        let mut core = self.0.core();
        let Core { dice, faults, .. } = &mut *core;
        let holds = faults.holds > 0 && dice.one_in(faults.holds);
        holds.then(|| dice.below(2_000_000) as u64)
    }
}

/// The index of the server's listening socket, by its name. An epoll instance stands for the only
/// socket.
fn accept_queue_of(socket: BorrowedFd<'_>) -> Option<usize> {
    let name = match rustix::net::getsockname(socket) {
        Err(Errno::NOTSOCK) => return Some(0),
        name => SocketAddrUnix::try_from(name.ok()?).ok()?,
    };
    let path = std::str::from_utf8(name.path_bytes()?).ok()?;
    match path.rsplit_once('/')?.1.split_once('.') {
        None => Some(0),
        Some((_, number)) => number.parse().ok(),
    }
}
