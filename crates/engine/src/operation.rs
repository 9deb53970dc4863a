//! Names operations that may take long, for messages about stalled loops.
//!
//! Work on a loop that may block or compute for long runs under a name ([`operation`]). After a
//! handler, the name of its longest operation can be read ([`longest_operation`]). Times are
//! measured by the kernel's coarse clock. It costs a few nanoseconds and advances once in 1 to 10
//! ms, which is enough for what is worth a warning.

use std::cell::Cell;
use std::time::Duration;

use crate::clock::coarse_nanos;
use crate::seam;

/// The longest interval at which the coarse clock advances (`CONFIG_HZ=100`). Shorter times cannot
/// be measured with it.
pub const COARSE_TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Longest {
    name: &'static str,
    /// The time it took, in nanoseconds.
    took: u64,
}

const NONE: Longest = Longest { name: "", took: 0 };

thread_local! {
    /// The operation that began last.
    static LAST: Cell<&'static str> = const { Cell::new("") };
    /// The longest operation since the last call of [`longest_operation`].
    static LONGEST: Cell<Longest> = const { Cell::new(NONE) };
}

/// Blocks the loop for `time`, as a system call does, or computes all the while.
pub fn block(time: Duration, computes: bool) {
    seam::block(time, computes);
}

/// Runs `work` under a name, such as that of a system call.
#[inline]
pub fn operation<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    LAST.set(name);
    let since = coarse_nanos();
    let out = work();
    ended(name, coarse_nanos().saturating_sub(since));
    out
}

/// Of two nested operations, the inner one ends first and has the more precise name. An outer one
/// replaces it only if it took longer.
#[inline]
fn ended(name: &'static str, took: u64) {
    if took > LONGEST.get().took {
        LONGEST.set(Longest { name, took });
    }
}

/// The operation that explains why a handler took `whole`; forgets all operations. If the coarse
/// clock can measure `whole`, this is the longest operation, provided that it took at least half of
/// that time. Otherwise it is the last operation.
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
