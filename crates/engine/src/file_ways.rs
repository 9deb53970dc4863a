//! Measures which way of sending files costs a loop less: see [`crate::FileWay::Cheapest`].
//!
//! A copy costs by the byte, `sendfile` by the page. What else a send costs depends on the client.
//! On loopback, the kernel delivers within the call and may wake the client. A network card reads
//! the pages itself. So both ways are measured while they are used, and the cheaper one is chosen.

use std::cell::Cell;

/// Of this many sends, [`LOOK`] in a row go the more expensive way, to see whether it still is.
/// They go in a row, since the cost of a send depends on earlier ones, such as on whether clients
/// sleep.
const PERIOD: u32 = 128 * LOOK;
const LOOK: u32 = 64;
/// Shorter sends say little about the cost per byte.
const TELLING: u64 = 16 << 10;
/// Costs are per this many bytes.
const UNIT: u64 = 64 << 10;

/// How a piece of a file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Sendfile,
    Copy,
}

/// The measured costs of both ways.
#[derive(Debug, Default)]
pub(crate) struct FileWays {
    sendfile: Cost,
    copy: Cost,
    sends: Cell<u32>,
    /// Whether a copy was cheaper before the present series of trial sends.
    copies: Cell<bool>,
}

/// The mean nanoseconds per [`UNIT`]; 0 if nothing was measured.
#[derive(Debug, Default)]
struct Cost(Cell<u64>);

impl Cost {
    /// Averages a measurement in. A lower cost has more weight than a higher one, since other
    /// programs that use the processor during a send add to its time.
    fn learn(&self, cost: u64) {
        self.0.set(match self.0.get() {
            0 => cost,
            known if cost < known => u64::midpoint(known, cost),
            known => known + (cost.min(4 * known) - known) / 16,
        });
    }
}

impl FileWays {
    /// Chooses the way of the next send.
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

    /// Records that a send of so many bytes of a file took so long.
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

    /// How many of `sends` sends go by copy, if the ways have these costs.
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
        // The costs change so that a copy is cheaper. One series of trial sends finds that.
        copies(&ways, PERIOD, 30_000, 20_000);
        assert_eq!(copies(&ways, 4 * PERIOD, 30_000, 20_000), 4 * (PERIOD - LOOK));
    }

    #[test]
    fn a_send_that_was_interrupted_changes_little() {
        let ways = FileWays::default();
        copies(&ways, PERIOD, 10_000, 12_000);
        ways.learn(Way::Sendfile, 5_000_000, BYTES);
        assert!(copies(&ways, PERIOD, 10_000, 12_000) <= LOOK);
        // Nor does an expensive first measurement of a way.
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
