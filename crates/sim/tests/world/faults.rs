//! The faults of a course.

use rustix::io::Errno;
use weir_engine::Call;
use weir_testkit::Dice;

/// How often faults occur: once in this many times. 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub accept: usize,
    pub connect: usize,
    pub watch: usize,
    pub offload: usize,
    /// A read finds nothing in the page cache.
    pub cold: usize,
    /// An event of a socket is reported late.
    pub holds: usize,
    /// The longest delay of a file operation, in nanoseconds.
    pub slow_disk: u64,
    /// Other loops run before a system call.
    pub others: usize,
    /// Other loops run before a word of shared memory is read or changed.
    pub words: usize,
    /// Whether events are reported in order.
    pub orderly: bool,
}

impl Faults {
    pub fn of(&self, call: Call, dice: &mut Dice) -> Option<Errno> {
        let (rate, errors): (usize, &[Errno]) = match call {
            Call::Accept => {
                (self.accept, &[Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM])
            }
            Call::Connect => (self.connect, &[Errno::MFILE, Errno::NFILE, Errno::NOMEM]),
            Call::Watch => (self.watch, &[Errno::NOSPC, Errno::NOMEM]),
            Call::Offload => (self.offload, &[Errno::BUSY]),
            Call::FromMemory => (self.cold, &[Errno::AGAIN]),
            Call::Recv | Call::Send => (0, &[]),
        };
        (rate > 0 && dice.one_in(rate)).then(|| dice.pick(errors))
    }

    /// Whether the disk is slow enough for the cache to abandon a store in progress.
    pub fn gives_up_stores(&self) -> bool {
        self.slow_disk > 100_000_000
    }

    /// Whether these faults may fail requests.
    pub fn excuse(&self) -> bool {
        self.accept + self.connect + self.watch + self.offload > 0
    }
}
