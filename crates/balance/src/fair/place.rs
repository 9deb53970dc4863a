//! The places of a loop under `fair`, and the table of its moves.

use std::time::Instant;

/// A loop's place with respect to the wait list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopPlace {
    /// In the wait list.
    Listed,
    /// Out of the list, since other loops sleep in it. The loop decides again at this instant. The
    /// number is how many connections all loops together had accepted when it left.
    Deferring(Instant, u64),
    /// Out of the list until this instant, so that loops that work can come back to it first.
    BackingOff(Instant),
    /// In the list although the loop is above the mean. The number is how many connections all
    /// loops together had accepted by then.
    Standby(u64),
}

/// A change of a loop's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Keeps its place.
    Stay,
    /// Becomes [`LoopPlace::Listed`].
    List,
    /// Becomes [`LoopPlace::Deferring`], for a new round.
    Defer,
    /// Becomes [`LoopPlace::BackingOff`], for a time that grows with the excess.
    BackOff,
    /// Becomes [`LoopPlace::Standby`].
    StandBy,
}

/// The facts that a decision depends on, besides the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The loop is above the mean.
    pub(super) above: bool,
    /// Another loop sleeps in the list.
    pub(super) asleep: bool,
    /// The place's instant has passed.
    pub(super) over: bool,
    /// Some loop has accepted a connection since this loop took its place.
    pub(super) any: bool,
    /// This loop has accepted a connection since it last decided.
    pub(super) own: bool,
}

impl LoopPlace {
    /// The table of moves.
    #[rustfmt::skip]
    pub(super) fn next(self, facts: Facts) -> Move {
        use Move::{BackOff, Defer, List, StandBy, Stay};
        use LoopPlace::{BackingOff, Deferring, Listed, Standby};
        let Facts { above, asleep, over, any, own } = facts;
        match (self, above, asleep, over, any, own) {
            // place           above  asleep over   any    own
            (_,                false, _,     _,     _,     _    ) => List,
            (Listed,           true,  true,  _,     _,     _    ) => Defer,
            (Listed,           true,  false, _,     _,     _    ) => BackOff,
            // The kernel wakes the sleepers first. If none had to accept in a whole round, the loop
            // stands behind them.
            (Deferring(..),    true,  true,  false, _,     _    ) => Stay,
            (Deferring(..),    true,  true,  true,  false, _    ) => StandBy,
            (Deferring(..),    true,  true,  true,  true,  _    ) => Defer,
            (Deferring(..),    true,  false, _,     _,     _    ) => BackOff,
            // The working loops have had their chance to come back.
            (BackingOff(_),    true,  true,  _,     _,     _    ) => Defer,
            (BackingOff(_),    true,  false, false, _,     _    ) => Stay,
            (BackingOff(_),    true,  false, true,  _,     _    ) => StandBy,
            // Wake-ups without an accept do not move the loop out of the list.
            (Standby(_),       true,  true,  _,     false, _    ) => Stay,
            (Standby(_),       true,  true,  _,     true,  _    ) => Defer,
            (Standby(_),       true,  false, _,     _,     false) => Stay,
            (Standby(_),       true,  false, _,     _,     true ) => BackOff,
        }
    }

    /// Whether the place's instant has passed. False for places without one.
    pub(super) fn is_over(self, now: Instant) -> bool {
        match self {
            LoopPlace::Deferring(until, _) | LoopPlace::BackingOff(until) => now >= until,
            LoopPlace::Listed | LoopPlace::Standby(_) => false,
        }
    }

    /// Whether some loop has accepted since the place was taken. `accepts` is what all loops
    /// together have accepted by now.
    pub(super) fn saw_accepts(self, accepts: u64) -> bool {
        match self {
            LoopPlace::Deferring(_, before) | LoopPlace::Standby(before) => before != accepts,
            LoopPlace::Listed | LoopPlace::BackingOff(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Option<bool> = None;
    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);

    /// Checks that each combination of facts that matches `row` gives this move. Returns the number
    /// of combinations.
    fn holds(place: LoopPlace, row: [Option<bool>; 5], expected: Move) -> u32 {
        let mut fitting = 0;
        for bits in 0..1u32 << 5 {
            let facts = [0, 1, 2, 3, 4].map(|bit| bits >> bit & 1 == 1);
            if row.iter().zip(facts).any(|(want, fact)| want.is_some_and(|want| want != fact)) {
                continue;
            }
            let [above, asleep, over, any, own] = facts;
            let facts = Facts { above, asleep, over, any, own };
            assert_eq!(place.next(facts), expected, "{place:?} {facts:?}");
            fitting += 1;
        }
        fitting
    }

    #[test]
    fn every_row_of_the_table_of_moves() {
        let now = Instant::now();
        let [listed, deferring, backing_off, standby] = [
            LoopPlace::Listed,
            LoopPlace::Deferring(now, 7),
            LoopPlace::BackingOff(now),
            LoopPlace::Standby(7),
        ];
        let rows = [
            (listed, [NO, ANY, ANY, ANY, ANY], Move::List),
            (deferring, [NO, ANY, ANY, ANY, ANY], Move::List),
            (backing_off, [NO, ANY, ANY, ANY, ANY], Move::List),
            (standby, [NO, ANY, ANY, ANY, ANY], Move::List),
            (listed, [YES, YES, ANY, ANY, ANY], Move::Defer),
            (listed, [YES, NO, ANY, ANY, ANY], Move::BackOff),
            (deferring, [YES, YES, NO, ANY, ANY], Move::Stay),
            (deferring, [YES, YES, YES, NO, ANY], Move::StandBy),
            (deferring, [YES, YES, YES, YES, ANY], Move::Defer),
            (deferring, [YES, NO, ANY, ANY, ANY], Move::BackOff),
            (backing_off, [YES, YES, ANY, ANY, ANY], Move::Defer),
            (backing_off, [YES, NO, NO, ANY, ANY], Move::Stay),
            (backing_off, [YES, NO, YES, ANY, ANY], Move::StandBy),
            (standby, [YES, YES, ANY, NO, ANY], Move::Stay),
            (standby, [YES, YES, ANY, YES, ANY], Move::Defer),
            (standby, [YES, NO, ANY, ANY, NO], Move::Stay),
            (standby, [YES, NO, ANY, ANY, YES], Move::BackOff),
        ];
        let tried: u32 = rows.into_iter().map(|(place, row, next)| holds(place, row, next)).sum();
        assert_eq!(tried, 4 << 5, "each combination belongs to one row");
    }
}
