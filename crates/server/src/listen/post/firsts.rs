//! Records which loop has a connection that has just begun.
//!
//! A client's first packets carry a connection id of its own choice. There may be several: a long
//! hello, early data, retransmissions. They arrive at a socket that all loops receive from. The
//! loop that receives the first packet records that it has the connection, and the other packets
//! are passed to it. The table is memory that all workers share. It never waits, and entries expire
//! after ten seconds.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use weir_sys::shared::SharedWords;

/// The number of connections in the table. Each has a word with a tag, a time and a row.
const WORDS: usize = 16_384;
/// A connection has one of this many adjacent words.
const BUCKET: usize = 8;
/// Time is counted in units of this many milliseconds. An entry expires after [`FORGOTTEN`] units.
const UNIT: u64 = 125;
const FORGOTTEN: u16 = 80;

/// The table.
#[derive(Debug)]
pub(super) struct Firsts(SharedWords);

/// The content of a word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct First {
    tag: u32,
    time: u16,
    row: u16,
}

impl First {
    fn word(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.time) << 16 | u64::from(self.row)
    }

    fn of(word: u64) -> First {
        First { tag: (word >> 32) as u32, time: (word >> 16) as u16, row: word as u16 }
    }

    fn is_forgotten(self, now: u16) -> bool {
        self == First::of(0) || now.wrapping_sub(self.time) > FORGOTTEN
    }
}

impl Firsts {
    pub(super) fn new() -> io::Result<Firsts> {
        SharedWords::new(WORDS).map(Firsts)
    }

    /// The row of the loop that has the connection with this 40-bit number. It becomes `me` if no
    /// loop has the connection. If there is no free word, the number itself selects one of `loops`
    /// loops, always the same.
    pub(super) fn owner(&self, number: u64, me: u16, loops: usize) -> u16 {
        let passed = weir_engine::coarse_nanos() / 1_000_000 / UNIT;
        self.owner_at(passed as u16, number, me, loops)
    }

    fn owner_at(&self, now: u16, number: u64, me: u16, loops: usize) -> u16 {
        let (mine, at) = (First { tag: (number >> 8) as u32, time: now, row: me }, number as usize);
        let at = at.wrapping_mul(BUCKET) % WORDS;
        let bucket: &[AtomicU64] = self.0.get(at..at + BUCKET).unwrap_or_default();
        let is_it = |first: &First| first.tag == mine.tag && !first.is_forgotten(now);
        if let Some(first) = bucket.iter().map(|word| First::of(word.load(SeqCst))).find(is_it) {
            return first.row;
        }
        for word in bucket {
            let before = word.load(SeqCst);
            let outcome = match First::of(before).is_forgotten(now) {
                true => word.compare_exchange(before, mine.word(), SeqCst, SeqCst),
                false => Err(before),
            };
            match outcome.map_err(First::of) {
                Ok(_) => return me,
                Err(first) if is_it(&first) => return first.row,
                Err(_) => {}
            }
        }
        (number % loops.max(1) as u64) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loop_that_asks_has_the_connection() {
        let firsts = Firsts::new().unwrap();
        let (one, other) = (0x12_3456_789a, 0x12_3456_799a);
        assert_eq!(firsts.owner_at(100, one, 3, 8), 3);
        assert_eq!(firsts.owner_at(101, one, 5, 8), 3);
        assert_eq!(firsts.owner_at(101, other, 5, 8), 5, "another tag in the same bucket");
        assert_eq!(firsts.owner_at(101 + FORGOTTEN, one, 6, 8), 6, "forgotten");
    }

    #[test]
    fn a_full_bucket_says_the_same_to_all() {
        let firsts = Firsts::new().unwrap();
        let number = |tag: u64| tag << 8 | 7;
        for tag in 1..=BUCKET as u64 {
            assert_eq!(firsts.owner_at(9, number(tag), 2, 8), 2);
        }
        let more = number(99);
        assert_eq!(firsts.owner_at(9, more, 2, 8), firsts.owner_at(9, more, 4, 8));
        assert_eq!(firsts.owner_at(9, number(BUCKET as u64), 4, 8), 2);
    }

    #[test]
    fn loops_that_ask_at_once_get_one_answer() {
        let firsts = Firsts::new().unwrap();
        for number in 0..500u64 {
            let number = (number << 8) | (number % 3);
            let ask = |me| std::thread::scope(|_| firsts.owner_at(50, number, me, 4));
            let answers: Vec<u16> = std::thread::scope(|scope| {
                let asked: Vec<_> = (0..4).map(|me| scope.spawn(move || ask(me))).collect();
                asked.into_iter().map(|asked| asked.join().unwrap()).collect()
            });
            assert!(answers.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
        }
    }
}
