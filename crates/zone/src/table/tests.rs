//! The table compared with a simple, slow model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::journal::fault;
use crate::{Use, Zone};

/// Keys with their values, the least recently used first.
type Model = Vec<(Vec<u8>, [u64; 2])>;

#[derive(Debug, Clone)]
enum TableStep {
    /// Finds or adds a key, makes it the newest and sets its values. If there is no free space,
    /// removes the oldest entries first.
    Use(Vec<u8>, u64),
    Remove(Vec<u8>),
    RemoveOldest,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    // Few keys, so that steps use the same ones. Their lengths are around the sizes of cells.
    let short = (0u8..12).prop_map(|n| vec![n; n as usize]);
    let long = (0u8..8, prop_oneof![Just(24), Just(25), Just(80), Just(81), Just(700)]);
    prop_oneof![short, long.prop_map(|(n, len): (u8, usize)| vec![n; len])]
}

fn step() -> impl Strategy<Value = TableStep> {
    prop_oneof![
        4 => (key(), any::<u64>()).prop_map(|(k, v)| TableStep::Use(k, v)),
        1 => key().prop_map(TableStep::Remove),
        1 => Just(TableStep::RemoveOldest),
    ]
}

fn purpose() -> Use {
    Use::of("trial", 2)
}

fn small(cells: usize) -> Zone {
    let words = BUCKETS + cells / 2 * (2 * CELL + 1);
    Zone::new("trial", words as u64 * 8, purpose()).unwrap()
}

/// The table's content in the order of use. Checks the table's counts, too.
fn content(zone: &Zone) -> Model {
    let t = zone.lock();
    let mut all = Vec::new();
    let (mut cell, mut newer, mut cells) = (high(t.words.get(ENDS)), 0, 0);
    while cell != 0 {
        let mut key = Vec::new();
        t.key(LockedEntry(cell), &mut key);
        assert_eq!(t.find(&key), Some(LockedEntry(cell)), "an entry that is not found by its key");
        assert_eq!(high(t.word(cell, 2)), newer);
        cells += t.shape.cells_of(key.len());
        all.push((key, [t.value(LockedEntry(cell), 0), t.value(LockedEntry(cell), 1)]));
        (newer, cell) = (cell, low(t.word(cell, 2)));
        assert!(all.len() <= t.shape.cells as usize, "the order of use is a ring");
    }
    assert_eq!(low(t.words.get(ENDS)), newer);
    assert_eq!(t.len(), all.len() as u64);
    let (count, mut free) = both(t.words.get(FREE));
    for _ in 0..count {
        assert_ne!(free, 0);
        free = low(t.word(free, 0));
    }
    assert_eq!(free, 0, "the free list is longer than its count");
    assert_eq!(cells + count as usize, t.words.get(USED) as usize, "cells were lost");
    all.reverse();
    all
}

/// Does the step as a module would. Each call of the table is a separate change.
fn run(zone: &Zone, step: &TableStep) {
    let mut t = zone.lock();
    match step {
        TableStep::Use(key, value) => {
            let found = t.find(key);
            let entry = match found {
                Some(entry) => entry,
                None => loop {
                    if let Some(entry) = t.add(key) {
                        break entry;
                    }
                    let Some(oldest) = t.oldest() else { return };
                    t.remove(oldest);
                },
            };
            t.touch(entry);
            t.set_values(entry, [*value, !*value]);
        }
        TableStep::Remove(key) => {
            if let Some(entry) = t.find(key) {
                t.remove(entry);
            }
        }
        TableStep::RemoveOldest => {
            if let Some(entry) = t.oldest() {
                t.remove(entry);
            }
        }
    }
}

/// Does the same in the model, and records each state on the way.
fn run_model(model: &mut Model, step: &TableStep, shape: &Shape, seen: &mut Vec<Model>) {
    seen.push(model.clone());
    match step {
        TableStep::Use(key, value) => {
            let at = model.iter().position(|(k, _)| k == key);
            let mut entry = at.map(|at| model.remove(at));
            while entry.is_none() {
                let used: usize = model.iter().map(|(k, _)| shape.cells_of(k.len())).sum();
                if used + shape.cells_of(key.len()) <= shape.cells as usize {
                    entry = Some((key.clone(), [0, 0]));
                } else if model.is_empty() {
                    return;
                } else {
                    model.remove(0);
                    seen.push(model.clone());
                }
            }
            model.extend(entry);
            seen.push(model.clone());
            if let Some(last) = model.last_mut() {
                last.1 = [*value, !*value];
            }
        }
        TableStep::Remove(key) => model.retain(|(k, _)| k != key),
        TableStep::RemoveOldest => {
            if !model.is_empty() {
                model.remove(0);
            }
        }
    }
    seen.push(model.clone());
}

proptest! {
    #[test]
    fn is_a_map_in_the_order_of_use(steps in proptest::collection::vec(step(), 0..120)) {
        let zone = small(16);
        let (mut model, mut seen) = (Model::new(), Vec::new());
        for step in &steps {
            run(&zone, step);
            run_model(&mut model, step, &zone.shape, &mut seen);
            prop_assert_eq!(&content(&zone), &model);
        }
    }

    #[test]
    fn a_change_that_is_cut_short_never_was(
        before in proptest::collection::vec(step(), 0..40),
        last in step(),
        kill_at in 0u32..80,
    ) {
        let zone = small(16);
        let (mut model, mut seen) = (Model::new(), Vec::new());
        for step in &before {
            run(&zone, step);
            run_model(&mut model, step, &zone.shape, &mut seen);
        }
        seen.clear();
        run_model(&mut model, &last, &zone.shape, &mut seen);
        fault::after(kill_at);
        let killed = catch_unwind(AssertUnwindSafe(|| run(&zone, &last))).is_err();
        prop_assert_eq!(killed, !fault::off());
        let content = content(&zone);
        if killed {
            prop_assert!(seen.contains(&content), "{:?} was never to be seen", content);
        } else {
            prop_assert_eq!(&content, &model);
        }
    }
}

#[test]
fn keys_that_never_fit_are_refused() {
    let zone = small(4);
    let mut t = zone.lock();
    assert!(t.add(&[7; 4000]).is_none());
    assert!(t.add(b"short").is_some());
}

#[test]
fn records_are_found_by_name_whatever_they_hold() {
    let zone = small(64);
    let mut t = zone.lock();
    let lengths = [0, 1, 7, 8, 9, 60, 700];
    for (n, length) in (1u8..).zip(lengths) {
        let record = t.add_record(&[n; 32], &vec![n; length]).unwrap();
        t.set_values(record, [length as u64]);
    }
    for (n, length) in (1u8..).zip(lengths) {
        let record = t.find_record(&[n; 32]).unwrap();
        assert_eq!((t.contents(record), t.value(record, 0)), (vec![n; length], length as u64));
    }
    assert_eq!(t.find_record(&[99; 32]), None);
    let last = t.find_record(&[7; 32]).unwrap();
    t.remove(last);
    assert_eq!(t.find_record(&[7; 32]), None);
}

#[test]
fn a_record_is_rewritten_where_it_has_the_cells() {
    let zone = small(64);
    let mut t = zone.lock();
    let record = t.add_record(&[1; 32], b"old").unwrap();
    let other = t.add_record(&[2; 32], b"other").unwrap();
    let free = t.free();
    for (contents, fits) in [(vec![7; 9], true), (vec![8; 1], true), (vec![9; 80], false)] {
        assert_eq!(t.rewrite(record, &contents, [contents.len() as u64, 5]), fits);
        if fits {
            assert_eq!((t.find_record(&[1; 32]), t.free()), (Some(record), free));
            assert_eq!(t.contents(record), contents);
            assert_eq!((t.value(record, 0), t.value(record, 1)), (contents.len() as u64, 5));
            assert_eq!(t.oldest(), Some(other), "it was used last");
        }
    }
    assert_eq!(t.contents(record), [8], "what does not fit changes nothing");
    assert_eq!(t.contents(other), b"other");
    // More words than one change may have.
    let large = t.add_record(&[3; 32], &[3; 400]).unwrap();
    assert!(!t.rewrite(large, &[4; 400], [0; 2]));
    assert_eq!(t.contents(large), [3; 400]);
}

/// The record is either completely new or completely old.
#[test]
fn a_killed_holder_leaves_no_half_rewritten_record() {
    let (old, new) = ((vec![1; 90], [1, 2]), (vec![2; 85], [3, 4]));
    let mut seen = (0, 0);
    for writes in 0.. {
        let zone = small(64);
        let record = zone.lock().add_record(&[1; 32], &old.0).unwrap();
        zone.lock().add_record(&[2; 32], b"other").unwrap();
        zone.lock().set_values(record, old.1);
        fault::after(writes);
        let rewrite = || assert!(zone.lock().rewrite(record, &new.0, new.1));
        let killed = catch_unwind(AssertUnwindSafe(rewrite)).is_err();
        fault::off();
        let t = zone.lock();
        let found = (t.contents(record), [t.value(record, 0), t.value(record, 1)]);
        match killed {
            true if found == old => seen.0 += 1,
            true => {
                assert_eq!(found, new, "after {writes} writes");
                seen.1 += 1;
            }
            false => {
                assert_eq!(found, new);
                break;
            }
        }
    }
    assert!(seen.0 > 12, "{seen:?}");
}

#[test]
fn memory_is_what_was_asked_for() {
    // nginx: a megabyte holds about 16 thousand states of 64 bytes.
    let zone = Zone::new("one", 1 << 20, purpose()).unwrap();
    let mut t = zone.lock();
    let entries = (0u32..).take_while(|n| t.add(&n.to_be_bytes()).is_some()).count();
    assert!((15_000..16_384).contains(&entries), "{entries}");
}

#[test]
fn threads_share_it() {
    let zone = small(16);
    std::thread::scope(|s| {
        for n in 0..4u64 {
            let zone = &zone;
            s.spawn(move || {
                for _ in 0..500 {
                    let mut t = zone.lock();
                    let entry = t.find(b"sum").or_else(|| t.add(b"sum")).unwrap();
                    let sum = t.value(entry, 0);
                    t.set_values(entry, [sum + n]);
                }
            });
        }
    });
    assert_eq!(content(&zone), [(b"sum".to_vec(), [3000, 0])]);
}

#[test]
fn a_killed_holder_is_undone_by_the_next() {
    let zone = small(16);
    for key in [b"a", b"b", b"c"] {
        zone.lock().add(key).unwrap();
    }
    let before = content(&zone);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    // The state that a worker leaves if it is killed during a change: locked, some words changed,
    // no commit.
    let t = zone.lock();
    t.unlink(low(t.words.get(ENDS)));
    t.words.set(LEN, 77);
    t.lock.store(u64::from(child.id()) << 32 | 1, std::sync::atomic::Ordering::Relaxed);
    std::mem::forget(t);
    assert_eq!(content(&zone), before);
}

#[test]
fn entries_are_walked_in_the_order_of_their_use() {
    let zone = Zone::new("trial", 65536, purpose()).unwrap();
    let mut t = zone.lock();
    let free = t.free();
    assert!(t.could_hold(1000) && !t.could_hold(65536));
    let added: Vec<LockedEntry> =
        (0u8..5).filter_map(|n| t.add_record(&[n; 32], &[n; 100])).collect();
    t.touch(added[1]);
    let walk: Vec<LockedEntry> = t.entries().collect();
    assert_eq!(walk, [added[0], added[2], added[3], added[4], added[1]]);
    // 132 bytes: 24 in the first cell, 56 in each further one.
    assert_eq!(free - t.free(), 5 * 3 * 64);
    added.into_iter().for_each(|entry| t.remove(entry));
    assert_eq!(t.free(), free);
}

#[test]
fn a_zone_whose_entries_lead_in_a_ring_is_emptied() {
    let zone = small(16);
    let mut t = zone.lock();
    t.add(b"a").unwrap();
    for bucket in BUCKETS..BUCKETS + t.shape.buckets {
        t.words.fill(bucket, pair(0, 1));
    }
    t.fill(1, 1, pair(1, 1));
    drop(t);
    assert_eq!(zone.lock().find(b"b"), None);
    assert!(zone.lock().is_empty());
    assert!(zone.lock().add(b"b").is_some());
}
