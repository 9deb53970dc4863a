//! Lines of items compared with a simple model.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::*;
use crate::journal::fault;
use crate::{Use, Zone};

type Model = Option<VecDeque<Vec<u8>>>;

#[derive(Debug, Clone)]
enum ItemStep {
    Push(Vec<u8>, End),
    Remove(End),
    RemoveEntry,
}

fn step() -> impl Strategy<Value = ItemStep> {
    let end = || prop_oneof![Just(End::First), Just(End::Last)];
    // Lengths around the sizes of cells.
    let length = prop_oneof![0usize..3, 47usize..50, 103usize..106, Just(300)];
    let bytes = (any::<u8>(), length).prop_map(|(byte, length)| vec![byte; length]);
    prop_oneof![
        8 => (bytes, end()).prop_map(|(bytes, end)| ItemStep::Push(bytes, end)),
        4 => end().prop_map(ItemStep::Remove),
        1 => Just(ItemStep::RemoveEntry),
    ]
}

fn zone() -> Zone {
    Zone::new("trial", 4096, Use::of("trial", 2)).unwrap()
}

const KEY: &[u8] = &[7; 70];

/// Does a step. False if it was a push without room.
fn run(zone: &Zone, step: &ItemStep) -> bool {
    let mut t = zone.lock();
    let entry = t.find(KEY).or_else(|| t.add(KEY)).unwrap();
    match step {
        ItemStep::Push(bytes, end) => return t.push_item(entry, bytes, *end),
        ItemStep::Remove(end) => t.remove_item(entry, *end),
        ItemStep::RemoveEntry => t.remove(entry),
    }
    true
}

fn run_model(model: &mut Model, step: &ItemStep) {
    let items = model.get_or_insert_default();
    match step {
        ItemStep::Push(bytes, End::First) => items.push_front(bytes.clone()),
        ItemStep::Push(bytes, End::Last) => items.push_back(bytes.clone()),
        ItemStep::Remove(End::First) => drop(items.pop_front()),
        ItemStep::Remove(End::Last) => drop(items.pop_back()),
        ItemStep::RemoveEntry => *model = None,
    }
}

/// The items, read from the first on. Checks that no cell is lost.
fn content(zone: &Zone) -> Model {
    let t = zone.lock();
    let entry = t.find(KEY);
    let cells = entry.map_or(0, |entry| t.cells_of(entry));
    assert_eq!(t.free() / 64 + cells as u64, u64::from(t.shape.cells), "cells were lost");
    entry.map(|entry| t.all_items(entry).into())
}

/// What a reader of the ends finds.
fn ends(zone: &Zone) -> [Option<Vec<u8>>; 2] {
    let t = zone.lock();
    [End::First, End::Last].map(|end| {
        let mut bytes = Vec::new();
        t.find(KEY).is_some_and(|entry| t.item(entry, end, &mut bytes)).then_some(bytes)
    })
}

proptest! {
    #[test]
    fn items_are_a_line_with_two_ends(steps in prop::collection::vec(step(), 0..80)) {
        let (zone, mut model) = (zone(), Model::default());
        for step in &steps {
            let before = content(&zone);
            match run(&zone, step) {
                true => run_model(&mut model, step),
                false => prop_assert_eq!(before.unwrap_or_default(), content(&zone).unwrap()),
            }
            prop_assert_eq!(content(&zone).unwrap_or_default(), model.clone().unwrap_or_default());
            let items = model.clone().unwrap_or_default();
            prop_assert_eq!(ends(&zone), [items.front().cloned(), items.back().cloned()]);
        }
    }

    #[test]
    fn a_killed_holder_leaves_all_or_nothing_of_an_item(
        steps in prop::collection::vec(step(), 0..30),
        last in step(),
        kill_at in 0u32..60,
    ) {
        let (zone, mut model) = (zone(), Model::default());
        for step in &steps {
            if run(&zone, step) {
                run_model(&mut model, step);
            }
        }
        if content(&zone).is_none() {
            zone.lock().add(KEY);
        }
        let before = content(&zone);
        fault::after(kill_at);
        let _ = catch_unwind(AssertUnwindSafe(|| run(&zone, &last)));
        let killed = !fault::off();
        run_model(&mut model, &last);
        let after = content(&zone);
        prop_assert!(after == before && (killed || matches!(last, ItemStep::Push(..))) || after == model);
    }
}

#[test]
fn a_record_with_items_is_not_rewritten() {
    let zone = zone();
    let mut t = zone.lock();
    let record = t.add_record(&[1; 32], b"contents").unwrap();
    assert!(t.push_item(record, b"item", End::Last));
    assert!(!t.rewrite(record, b"CONTENTS", [1, 2]));
    assert_eq!((t.contents(record), t.items(record)), (b"contents".to_vec(), 1));
}

#[test]
fn a_zone_whose_items_lead_in_a_ring_is_emptied() {
    let zone = zone();
    let mut t = zone.lock();
    let entry = t.add(b"a").unwrap();
    assert!(t.push_item(entry, b"item", End::Last) && t.push_item(entry, b"more", End::Last));
    let (_, first, last) = t.ends(entry.0).unwrap();
    t.set_next(last, first);
    t.words.commit();
    t.remove(entry);
    drop(t);
    assert!(zone.lock().is_empty());
    assert!(zone.lock().add(b"b").is_some());
}

#[test]
fn an_item_costs_as_many_writes_beside_a_thousand_others_as_alone() {
    /// Those of the longest change.
    const WRITES: u32 = 50;
    let zone = Zone::new("trial", 1 << 20, Use::of("trial", 2)).unwrap();
    let mut t = zone.lock();
    let entry = t.add(KEY).unwrap();
    for n in 0..1000 {
        let end = if n % 2 == 0 { End::First } else { End::Last };
        fault::after(WRITES);
        assert!(t.push_item(entry, &[n as u8; 100], end));
        assert!(fault::off());
    }
    for n in (0..1000).rev() {
        let end = if n % 2 == 0 { End::First } else { End::Last };
        let mut item = Vec::new();
        assert!(t.item(entry, end, &mut item));
        assert_eq!(item, [n as u8; 100]);
        fault::after(WRITES);
        t.remove_item(entry, end);
        assert!(fault::off());
    }
    assert_eq!(t.items(entry), 0);
}
