//! The table has a row for each socket, written by the loop that accepts from it. The program
//! starts at the row that the connection's hash gives and compares the next few. It considers loops
//! that accept and have acknowledged their last wake-up, and chooses the least loaded one. If there
//! is none, the kernel uses its own hash.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::bpf::{HASH, Instruction, KTIME_GET_NS, PASS, SELECT, array, call, load, op, value};
use super::{SocketArray, monotonic};
use crate::shared::SharedWords;

/// Stands for a jump to the end of a part of the program.
const END: i16 = i16::MIN;

/// The number of rows that are compared.
const COMPARED: u32 = 8;

/// The meaning of the table's words. `base` and `rows` are indexes in the table, the others (after
/// `row`) in a row.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The nanoseconds of CLOCK_MONOTONIC from which times in rows count. [`table`] writes it.
    pub base: usize,
    /// The beginning of the rows.
    pub rows: usize,
    /// The length of a row, a power of two.
    pub row: usize,
    /// A state and, above its bits, the time in microseconds since which it holds.
    pub state: usize,
    /// The number of bits of a state.
    pub state_bits: u32,
    /// The state of a sleeping loop that takes connections.
    pub asleep: u64,
    /// The state of a loop in a turn, and the longest turn in which it takes connections.
    pub awake: (u64, Duration),
    /// The time of a wake-up that the loop has not acknowledged, or 0, and how long it takes
    /// connections after that.
    pub woken: (usize, Duration),
    /// Open connections, which are compared first.
    pub open: usize,
    /// Requests in process, which are compared next.
    pub inflight: usize,
    /// Connections that the loop was assigned; the program counts them. Among equal loops, the one
    /// with the fewest gets the next.
    pub handed: usize,
    /// Connections that the loop has taken of those that it was assigned.
    pub taken: usize,
}

/// A table of this many words that programs see as well. All are zero except for the base, which is
/// `age` ago.
pub fn table(words: usize, layout: &Layout, age: Duration) -> io::Result<(SharedWords, OwnedFd)> {
    let array = array(words * size_of::<u64>())?;
    let words = SharedWords::of(array.as_fd(), words)?;
    let base = u64::try_from(monotonic().saturating_sub(age).as_nanos()).unwrap_or(0);
    let at = words.get(layout.base).ok_or(io::ErrorKind::InvalidInput)?;
    at.store(base, std::sync::atomic::Ordering::SeqCst);
    Ok((words, array))
}

/// The program for a table and a list of sockets. Rows and sockets have the same order.
pub struct Choice(OwnedFd);

impl Choice {
    /// A program for this many rows.
    pub fn new(
        table: BorrowedFd<'_>,
        layout: &Layout,
        rows: u32,
        list: &SocketArray,
    ) -> io::Result<Choice> {
        let program = choose(table, layout, rows, list).ok_or(io::ErrorKind::InvalidInput)?;
        load(*b"weir_rows\0\0\0\0\0\0\0", &program).map(Choice)
    }

    /// Attaches the program to a member's group, in place of any other program.
    pub fn attach(&self, member: BorrowedFd<'_>) -> io::Result<()> {
        crate::sockopt::set_program(member, self.0.as_fd())
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Choice")
    }
}

/// The variables on the stack: the number of the best row, and that of the first one.
const BEST: i16 = -4;
const FIRST: i16 = -8;

/// The instructions. None if a number does not fit into an instruction.
fn choose(
    table: BorrowedFd<'_>,
    layout: &Layout,
    rows: u32,
    list: &SocketArray,
) -> Option<Vec<Instruction>> {
    let n = i32::try_from(rows).ok().filter(|n| *n > 0)?;
    let bytes = |word: usize| i16::try_from(word * size_of::<u64>()).ok();
    let handed = bytes(layout.rows + layout.handed)?;
    let shift = (layout.row.is_power_of_two()).then_some(layout.row.ilog2() as i32 + 3)?;
    let (table, sockets) = (value(7, table), list.address(2));
    let mut program = vec![
        op(0xbf, 6, 1, 0, 0), // r6 = the context
        call(KTIME_GET_NS),
        table[0], // r7 = the table
        table[1],
        op(0x79, 8, 7, bytes(layout.base)?, 0),
        op(0x1f, 0, 8, 0, 0),
        op(0x37, 0, 0, 0, 1000),
        op(0xbf, 8, 0, 0, 0), // r8 = the stamp of now
        op(0x61, 1, 6, HASH, 0),
        op(0x97, 1, 0, 0, n),
        op(0x63, 10, 1, FIRST, 0),
        op(0x62, 10, 0, BEST, 0),
        op(0xb7, 9, 0, 0, -1), // r9 = the best row's weight
    ];
    for further in 0..rows.min(COMPARED) {
        program.extend(compare(layout, shift, n, further as i32)?);
    }
    let last = [
        op(0x15, 9, 0, END, -1), // no row
        op(0xbf, 1, 6, 0, 0),
        sockets[0],
        sockets[1],
        op(0xbf, 3, 10, 0, 0),
        op(0x07, 3, 0, 0, i32::from(BEST)),
        op(0xb7, 4, 0, 0, 0),
        call(SELECT),
        op(0x55, 0, 0, END, 0), // it was refused
        op(0x61, 2, 10, BEST, 0),
        op(0x35, 2, 0, END, n),
        op(0x67, 2, 0, 0, shift),
        op(0x0f, 2, 7, 0, 0),
        op(0xb7, 1, 0, 0, 1),
        op(0xdb, 2, 1, handed, 0),
    ];
    program.extend(to_end(&last));
    program.extend([op(0xb7, 0, 0, 0, PASS), op(0x95, 0, 0, 0, 0)]);
    Some(program)
}

/// Compares the row that is `further` after the first with the best one so far.
fn compare(layout: &Layout, shift: i32, n: i32, further: i32) -> Option<Vec<Instruction>> {
    let at = |word: usize| i16::try_from((layout.rows + word) * size_of::<u64>()).ok();
    let micros = |time: Duration| i32::try_from(time.as_micros()).ok();
    let state = |state: u64| i32::try_from(state).ok();
    let (awake, silent) = (layout.awake, layout.woken);
    let row = [
        op(0x61, 2, 10, FIRST, 0), // r2 = its number
        op(0x07, 2, 0, 0, further),
        op(0xa5, 2, 0, 1, n),
        op(0x17, 2, 0, 0, n),
    ];
    let rest = [
        op(0x35, 2, 0, END, n),
        op(0xbf, 3, 2, 0, 0), // r3 = the row
        op(0x67, 3, 0, 0, shift),
        op(0x0f, 3, 7, 0, 0),
        op(0x79, 4, 3, at(layout.state)?, 0),
        op(0xbf, 5, 4, 0, 0),
        op(0x57, 5, 0, 0, (1 << layout.state_bits) - 1),
        op(0x15, 5, 0, 5, state(layout.asleep)?),
        op(0x55, 5, 0, END, state(awake.0)?),
        op(0x77, 4, 0, 0, layout.state_bits as i32),
        op(0xbf, 5, 8, 0, 0),
        op(0x1f, 5, 4, 0, 0),
        op(0x75, 5, 0, END, micros(awake.1)?),
        op(0x79, 4, 3, at(silent.0)?, 0),
        op(0x15, 4, 0, 3, 0),
        op(0xbf, 5, 8, 0, 0),
        op(0x1f, 5, 4, 0, 0),
        op(0x75, 5, 0, END, micros(silent.1)?),
        op(0x79, 4, 3, at(layout.handed)?, 0), // r4 = its weight
        op(0x79, 5, 3, at(layout.taken)?, 0),
        op(0x1f, 4, 5, 0, 0),
        op(0x75, 4, 0, 1, 0),
        op(0xb7, 4, 0, 0, 0),
        op(0x79, 5, 3, at(layout.open)?, 0),
        op(0x0f, 4, 5, 0, 0),
        op(0x67, 4, 0, 0, 12),
        op(0x79, 5, 3, at(layout.inflight)?, 0),
        op(0x0f, 4, 5, 0, 0),
        op(0x67, 4, 0, 0, 32),
        op(0x61, 5, 3, low(at(layout.handed)?), 0),
        op(0x0f, 4, 5, 0, 0),
        op(0x3d, 4, 9, END, 0),
        op(0xbf, 9, 4, 0, 0),
        op(0x63, 10, 2, BEST, 0),
    ];
    Some(row.into_iter().chain(to_end(&rest)).collect())
}

/// The lower half of a double word.
const fn low(offset: i16) -> i16 {
    if cfg!(target_endian = "little") { offset } else { offset + 4 }
}

/// Resolves jumps to [`END`] as jumps behind the last of these instructions.
fn to_end(part: &[Instruction]) -> impl Iterator<Item = Instruction> {
    let left = (0..part.len() as i16).rev();
    part.iter().zip(left).map(|(one, left)| one.jumps(END, left))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::super::tests::{group, spread};
    use super::*;

    const STUCK: Duration = Duration::from_millis(50);
    const SILENT: Duration = Duration::from_millis(10);
    const LAYOUT: Layout = Layout {
        base: 1,
        rows: 8,
        row: 8,
        state: 0,
        state_bits: 3,
        asleep: 2,
        awake: (1, STUCK),
        woken: (1, SILENT),
        open: 2,
        inflight: 3,
        handed: 4,
        taken: 5,
    };
    /// A time that is long ago in any respect.
    const LONG_AGO: u64 = 1;

    #[test]
    fn connections_go_to_the_least_loaded_loop_that_takes_them() {
        let group = group(4);
        let borrowed: Vec<_> = group.iter().map(AsFd::as_fd).collect();
        let list = match SocketArray::new(&borrowed) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return eprintln!("not run: bpf(2) needs a privilege: {e}");
            }
            made => made.unwrap(),
        };
        let (words, array) = table(8 + 4 * 8, &LAYOUT, Duration::from_secs(100)).unwrap();
        let choice = Choice::new(array.as_fd(), &LAYOUT, 4, &list).unwrap();
        choice.attach(borrowed[0]).unwrap();
        let now = || 100_000_000u64;
        let set = |row: usize, word: usize, value: u64| {
            words[LAYOUT.rows + row * LAYOUT.row + word].store(value, SeqCst);
        };
        let handed = |row: usize| words[LAYOUT.rows + row * LAYOUT.row + 4].load(SeqCst);
        let asleep = |row| set(row, 0, LONG_AGO << 3 | 2);

        // No loop takes connections, so the kernel's hash decides.
        assert!(spread(&group).iter().all(|n| *n < 40));
        (0..4).for_each(asleep);
        // Each connection adds to the load that the next one sees.
        assert_eq!(spread(&group), [10; 4]);
        assert_eq!([0, 1, 2, 3].map(handed), [10; 4]);
        // Connections that were taken count as open ones.
        (0..4).for_each(|row| set(row, 5, 10));
        [(0, 20), (1, 0), (2, 10), (3, 10)].iter().for_each(|(row, open)| set(*row, 2, *open));
        assert_eq!(spread(&group), [0, 20, 10, 10]);

        // A loop that has not acknowledged a wake-up, one in a long turn, and a full one.
        (0..4).for_each(|row| [2, 4, 5].iter().for_each(|word| set(row, *word, 0)));
        set(0, 1, LONG_AGO);
        set(1, 0, LONG_AGO << 3 | 1);
        set(2, 0, LONG_AGO << 3 | 4);
        assert_eq!(spread(&group), [0, 0, 0, 40]);
        set(0, 1, now() + 5_000_000);
        set(1, 0, (now() + 5_000_000) << 3 | 1);
        let two = spread(&group);
        assert_eq!((two[0], two[1], two[2], two[3]), (20, 20, 0, 0), "by their numbers: {two:?}");
        drop((choice, list, array));
        crate::sockopt::unsteer(borrowed[0]).unwrap();
    }
}
