//! Which way of sending files costs a loop less: see [`crate::FileWay::Cheapest`].
//!
//! A copy costs by the byte, `sendfile` by the page. What else a send costs depends on where the client is: on loopback the
//! kernel delivers within the call, and may wake the client; a network card reads the pages itself. So both ways are measured
//! while they are used, and the cheaper one is taken.

use std::cell::Cell;

/// Of so many sends, some go the dearer way, to see whether it still is. They do in a row: what a send costs depends on those
/// before it, such as on whether the clients sleep.
const PERIOD: u32 = 128 * LOOK;
const LOOK: u32 = 64;
/// Shorter sends say little about the cost of a byte.
const TELLING: u64 = 16 << 10;
/// What costs are told for.
const UNIT: u64 = 64 << 10;

/// How a piece of a file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sendfile,
    Copy,
}

/// The costs of the two ways.
#[derive(Debug, Default)]
pub(crate) struct FileWays {
    sendfile: Cost,
    copy: Cost,
    sends: Cell<u32>,
    /// A copy was the cheaper way before the look.
    copies: Cell<bool>,
}

/// Nanoseconds for [`UNIT`]; 0 if nothing is known.
#[derive(Debug, Default)]
struct Cost(Cell<u64>);

impl Cost {
    /// Other programs that have the processor during a send add to its time, so a lower cost counts for more than a higher one.
    fn learn(&self, cost: u64) {
        self.0.set(match self.0.get() {
            0 => cost,
            known if cost < known => u64::midpoint(known, cost),
            known => known + (cost.min(4 * known) - known) / 16,
        });
    }
}

impl FileWays {
    /// The way of the next send.
    pub(crate) fn choose(&self) -> Way {
        let sends = self.sends.get().wrapping_add(1);
        self.sends.set(sends);
        let looks = sends % PERIOD >= PERIOD - LOOK;
        if !looks {
            let (copy, sendfile) = (self.copy.0.get(), self.sendfile.0.get());
            self.copies.set((1..sendfile).contains(&copy));
        }
        if self.copies.get() == looks { Way::Sendfile } else { Way::Copy }
    }

    /// A send of so many bytes of a file took so long.
    pub(crate) fn learn(&self, way: Way, nanos: u64, bytes: u64) {
        let cost = if way == Way::Copy { &self.copy } else { &self.sendfile };
        if bytes >= TELLING {
            cost.learn(nanos.saturating_mul(UNIT) / bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 100 << 10;

    /// How many of so many sends go by copy, where the ways cost this.
    fn copies(ways: &FileWays, sends: u32, sendfile: u64, copy: u64) -> u32 {
        let mut copies = 0;
        for _ in 0..sends {
            let way = ways.choose();
            ways.learn(way, if way == Way::Copy { copy } else { sendfile }, BYTES);
            copies += u32::from(way == Way::Copy);
        }
        copies
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_one_now_and_then() {
        let ways = FileWays::default();
        assert!(copies(&ways, 4 * PERIOD, 10_000, 20_000) <= 4 * LOOK);
        // The clients are now where a copy is cheaper: one look tells.
        copies(&ways, PERIOD, 30_000, 20_000);
        assert_eq!(copies(&ways, 4 * PERIOD, 30_000, 20_000), 4 * (PERIOD - LOOK));
    }

    #[test]
    fn a_send_that_was_interrupted_changes_little() {
        let ways = FileWays::default();
        copies(&ways, PERIOD, 10_000, 12_000);
        ways.learn(Way::Sendfile, 5_000_000, BYTES);
        assert!(copies(&ways, PERIOD, 10_000, 12_000) <= LOOK);
        // Nor does one that was the first of its way.
        let ways = FileWays::default();
        ways.learn(Way::Copy, 12_000, BYTES);
        ways.learn(Way::Sendfile, 5_000_000, BYTES);
        copies(&ways, PERIOD, 10_000, 12_000);
        assert!(copies(&ways, PERIOD, 10_000, 12_000) <= LOOK);
    }

    #[test]
    fn short_sends_and_a_clock_that_stands_still_choose_sendfile() {
        let ways = FileWays::default();
        ways.learn(Way::Sendfile, 50_000, TELLING - 1);
        assert!(copies(&ways, PERIOD, 0, 0) <= LOOK);
    }
}
