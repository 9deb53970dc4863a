//! Zones with contradictory words: an attacker in a worker may write any value to any word.
//!
//! The process that finds such a zone empties it, once. Its users go on with an empty zone.

use std::sync::OnceLock;

/// Called with the name of a zone that was emptied.
type EmptiedListener = Box<dyn Fn(&str) + Send + Sync>;

static LISTENER: OnceLock<EmptiedListener> = OnceLock::new();

/// Registers the callback for zones that this process had to empty. Only the first call has an
/// effect.
pub fn on_spoilt(listener: impl Fn(&str) + Send + Sync + 'static) {
    // The first one stays.
    let _ = LISTENER.set(Box::new(listener));
}

/// Reports a zone that was emptied.
pub(crate) fn report(zone: &str) {
    if let Some(listener) = LISTENER.get() {
        listener(zone);
    }
}

#[cfg(test)]
mod tests {
    //! Each case writes values of any kind to words of a zone while it is used. No use panics or goes on for ever, and
    //! once the writing ends, the zone serves as a new one does.
    //!
    //! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc::channel;

    use weir_testkit::{Dice, PATIENCE, number, seed};

    use crate::{Claimed, End, Use, Zone};

    const VALUES: usize = 2;

    fn zone(words: u64) -> Zone {
        let purpose = Use::of("trial", VALUES);
        Zone::new("trial", words * 8, purpose).unwrap()
    }

    /// Writes to one word: often one or two small numbers, which may be links, or the value of
    /// another word.
    fn spoil(zone: &Zone, dice: &mut Dice) {
        let words = &*zone.words;
        let small = |dice: &mut Dice| dice.below(40) as u64;
        let value = match dice.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => dice.any(),
            3 => small(dice),
            4 => small(dice) << 32 | small(dice),
            _ => words[dice.below(words.len())].load(Relaxed),
        };
        // Heads and buckets are at the front. The lock has its own test.
        let most = if dice.one_in(2) { words.len().min(90) } else { words.len() };
        words[1 + dice.below(most - 1)].store(value, Relaxed);
    }

    fn key(dice: &mut Dice) -> Vec<u8> {
        let name = dice.below(8);
        [b'a' + name as u8].repeat([3, 90, 300][name % 3])
    }

    /// Uses a table as a module would: with every operation, and with loops that end when the table
    /// has no more entries.
    fn use_table(zone: &Zone, dice: &mut Dice, may_spoil: bool) {
        let mut table = zone.lock();
        for _ in 0..dice.below(6) {
            if may_spoil && dice.one_in(3) {
                spoil(zone, dice);
            }
            let key = key(dice);
            match dice.below(8) {
                0 => {
                    while let Some(oldest) = table.oldest() {
                        table.remove(oldest);
                    }
                }
                1 => {
                    for entry in table.entries() {
                        let mut all = table.contents(entry);
                        table.key(entry, &mut all);
                    }
                }
                2 => {
                    let _ = table.find_record(&[7; 32]).map(|record| table.contents(record));
                    let _ = (table.len(), table.free());
                }
                3 => {
                    if let Some(entry) = table.find(&key) {
                        table.remove(entry);
                    }
                }
                _ => {
                    let entry = loop {
                        match table.find(&key).or_else(|| table.add(&key)) {
                            Some(entry) => break entry,
                            None => match table.oldest() {
                                Some(oldest) => table.remove(oldest),
                                None => return,
                            },
                        }
                    };
                    table.touch(entry);
                    table.set_values(entry, [dice.any()]);
                    let end = if dice.one_in(2) { End::First } else { End::Last };
                    match dice.one_in(3) {
                        true => table.remove_item(entry, end),
                        false => drop(table.push_item(entry, &key, end)),
                    }
                    table.item(entry, end, &mut Vec::new());
                }
            }
        }
    }

    fn table_case(seed: u64) {
        let (zone, mut dice) = (zone(300), Dice::salted(seed, "tables"));
        for _ in 0..40 {
            use_table(&zone, &mut dice, true);
        }
        // Contradictions may be found only now. After a number of uses, the words must be
        // consistent.
        for _ in 0..200 {
            use_table(&zone, &mut dice, false);
        }
        let made = (0..100).find_map(|_| {
            let mut table = zone.lock();
            let entry = table.find(b"new").or_else(|| table.add(b"new"));
            match entry {
                Some(entry) => table.set_values(entry, [5, 6]),
                None => table.oldest().into_iter().for_each(|oldest| table.remove(oldest)),
            }
            entry
        });
        let table = zone.lock();
        let found = table.find(b"new");
        assert!(made.is_some() && found == made, "no room for a new entry");
        assert_eq!(found.map(|entry| [table.value(entry, 0), table.value(entry, 1)]), Some([5, 6]));
    }

    fn rows_case(seed: u64) {
        let (zone, mut dice) = (zone(400), Dice::salted(seed, "rows"));
        for step in 0..80 {
            let mut rows = zone.rows(VALUES);
            if step < 60 {
                spoil(&zone, &mut dice);
            }
            let claimed = rows.claim(dice.below(6) as u128, dice.any());
            if let Some(Claimed::Known(row) | Claimed::New(row)) = claimed {
                rows.hold(row);
                rows.set_value(row, 1, dice.any());
                let _ = (rows.held(row), rows.value(row, 0));
                rows.release(row);
            }
        }
    }

    fn draw(case: fn(u64)) {
        let first = seed();
        for seed in first..first + number("WEIR_CASES").unwrap_or(300) {
            let (tell, ended) = channel();
            std::thread::spawn(move || {
                case(seed);
                let _ = tell.send(());
            });
            assert!(ended.recv_timeout(PATIENCE).is_ok(), "WEIR_SEED={seed}: a panic, or no end");
        }
    }

    #[test]
    fn tables_bear_any_word() {
        draw(table_case);
    }

    #[test]
    fn rows_bear_any_word() {
        draw(rows_case);
    }

    /// The lock word names a living process that does not hold the lock.
    #[test]
    fn a_forged_lock_is_taken_after_a_while() {
        let zone = zone(300);
        zone.words[0].store(crate::owner::this(), Relaxed);
        assert!(zone.lock().add(b"a").is_some());
    }
}
