//! What an operation that may take long is called, for messages about stalled loops.
//!
//! Work on a loop that may wait or compute for long runs under a name ([`operation`]). The
//! name of what took longest is asked for at the lap ([`longest_operation`]). Time is told by the kernel's coarse
//! clock, which costs a few nanoseconds and goes on once in 1 to 10 ms: enough for what is worth a warning.

use std::cell::Cell;
use std::time::Duration;

use crate::clock::coarse_nanos;
use crate::seam;

/// The coarse clock may go on as seldom as this (`CONFIG_HZ=100`), so that less cannot be told by it.
pub const COARSE_TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Longest {
    name: &'static str,
    /// In nanoseconds.
    took: u64,
}

const NONE: Longest = Longest { name: "", took: 0 };

thread_local! {
    /// What was begun last.
    static LAST: Cell<&'static str> = const { Cell::new("") };
    /// What has taken longest since the last question.
    static LONGEST: Cell<Longest> = const { Cell::new(NONE) };
}

/// Blocks the loop for so long, as a system call does, or computes.
pub fn block(time: Duration, computes: bool) {
    seam::block(time, computes);
}

/// Does `work` under a name, such as that of a system call.
#[inline]
pub fn operation<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    LAST.set(name);
    let since = coarse_nanos();
    let out = work();
    ended(name, coarse_nanos().saturating_sub(since));
    out
}

/// Of one within another, the inner one ends first, and is the better name.
#[inline]
fn ended(name: &'static str, took: u64) {
    if took > LONGEST.get().took {
        LONGEST.set(Longest { name, took });
    }
}

/// The operation that a handler which took `whole` spent its time on, and forgets all. For a time that the coarse
/// clock can tell, it is one that took half of it; for a shorter one, the last.
pub fn longest_operation(whole: Duration) -> Option<&'static str> {
    let (last, longest) = (LAST.replace(""), LONGEST.replace(NONE));
    let name = match Duration::from_nanos(longest.took) {
        took if !took.is_zero() && 2 * took >= whole => longest.name,
        _ if whole < 2 * COARSE_TICK => last,
        _ => "",
    };
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(60);
    const SHORT: Duration = Duration::from_millis(10);

    fn took(name: &'static str, time: Duration) {
        LAST.set(name);
        ended(name, time.as_nanos() as u64);
    }

    #[test]
    fn what_took_longest_is_named_if_it_took_half() {
        let all = || {
            took("short", SHORT);
            took("long", LONG);
            took("last", Duration::ZERO);
        };
        all();
        assert_eq!(longest_operation(LONG + SHORT), Some("long"));
        assert_eq!(longest_operation(LONG), None, "it was asked for already");
        all();
        assert_eq!(longest_operation(3 * LONG), None, "most was something else");
    }

    #[test]
    fn of_one_within_another_the_inner_one_is_named() {
        operation("outer", || took("inner", LONG));
        assert_eq!(longest_operation(LONG), Some("inner"));
    }

    #[test]
    fn of_times_too_short_for_the_clock_the_last_is_named() {
        operation("first", || {});
        operation("last", || {});
        assert_eq!(longest_operation(Duration::from_micros(50)), Some("last"));
        assert_eq!(longest_operation(Duration::from_micros(50)), None);
    }
}
