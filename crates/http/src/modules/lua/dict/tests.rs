use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use weir_zone::{End, Use, Zone};

use super::*;

fn zone(size: u64) -> Zone {
    Zone::new("trial", size, Use::of(TAG, WORDS)).unwrap()
}

/// A value of a dictionary.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(f64),
    Text(Vec<u8>),
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

fn new(value: &Value) -> NewValue<'_> {
    match value {
        Value::Number(number) => NewValue::Number(*number),
        Value::Text(text) => NewValue::Text(text),
    }
}

fn value(kind: Kind, text: Vec<u8>) -> Value {
    match kind {
        Kind::Text => Value::Text(text),
        Kind::Number(number) => Value::Number(number),
        kind => panic!("{kind:?}"),
    }
}

fn valid(dict: &mut Dict<'_>, key: &[u8]) -> Option<Value> {
    let mut out = Vec::new();
    let found = dict.read(key, &mut out)?;
    Some(value(found.kind, out))
}

fn pop(dict: &mut Dict<'_>, key: &[u8], end: End) -> Result<Option<Value>, DictError> {
    let mut out = Vec::new();
    Ok(dict.pop(key, end, &mut out)?.map(|kind| value(kind, out)))
}

fn set(dict: &mut Dict<'_>, key: &[u8], value: &Value, ttl: u64) -> Result<bool, DictError> {
    dict.store(key, (new(value), 0), ttl, (StoreMode::Set, true))
}

#[test]
fn values_expire() {
    let zone = zone(65536);
    let at = |now| Dict::new(zone.lock(), now);
    set(&mut at(1000), b"k", &text("v"), 50).unwrap();
    assert_eq!(valid(&mut at(1049), b"k"), Some(text("v")));
    assert_eq!(at(1049).left(b"k"), Some(1));
    assert_eq!(valid(&mut at(1050), b"k"), None);
    assert_eq!((at(1050).left(b"k"), at(1250).left(b"k")), (Some(-1), Some(-200)));
    assert!(at(1050).read_stale(b"k", &mut Vec::new()).is_some_and(|(_, stale)| stale));
    assert!(at(1050).expire(b"k", 10));
    assert_eq!(valid(&mut at(1059), b"k"), Some(text("v")));
    assert!(at(1050).expire(b"k", 0) && at(1000).expire(b"k", 50));
    assert!(!at(1050).expire(b"other", 50));
    assert_eq!(at(1050).keys(0), Vec::<Vec<u8>>::new());
    assert_eq!(
        at(1050).store(b"k", (new(&text("w")), 7), 0, (StoreMode::Replace, true)),
        Err("not found")
    );
    assert_eq!(at(1050).store(b"k", (new(&text("w")), 7), 0, (StoreMode::Add, true)), Ok(false));
    assert_eq!(at(9999).read(b"k", &mut Vec::new()).map(|found| found.flags), Some(7));
    assert_eq!(
        at(9999).store(b"k", (new(&text("x")), 0), 0, (StoreMode::Add, true)),
        Err("exists")
    );
    assert!(at(9999).expire(b"k", 10));
    assert_eq!(at(10_009).clear_stale(0), 1);
}

#[test]
fn the_least_recently_used_make_room() {
    let zone = zone(8192);
    let mut dict = Dict::new(zone.lock(), 1);
    let value = Value::Text(vec![b'x'; 300]);
    let mut n = 0u32;
    while !set(&mut dict, &n.to_le_bytes(), &value, 0).unwrap() {
        // The first key is used again and again.
        assert!(valid(&mut dict, &0u32.to_le_bytes()).is_some());
        n += 1;
    }
    assert!(valid(&mut dict, &0u32.to_le_bytes()).is_some());
    assert!(valid(&mut dict, &1u32.to_le_bytes()).is_none());
    assert_eq!(dict.store(b"safe", (new(&value), 0), 0, (StoreMode::Set, false)), Err("no memory"));
    let before = dict.keys(0).len();
    assert_eq!(set(&mut dict, b"huge", &Value::Text(vec![0; 9000]), 0), Err("no memory"));
    assert_eq!(dict.keys(0).len(), before, "what can never fit must not cost others their place");
}

#[test]
fn keys_come_in_the_order_in_which_they_would_make_room() {
    let zone = zone(65536);
    let mut dict = Dict::new(zone.lock(), 1);
    for key in [b"a", b"b", b"c"] {
        set(&mut dict, key, &text("v"), 0).unwrap();
    }
    assert!(valid(&mut dict, b"a").is_some());
    assert_eq!(dict.keys(0), [b"b", b"c", b"a"]);
    assert_eq!(dict.keys(2), [b"b", b"c"]);
}

#[test]
fn numbers_are_added_to() {
    let zone = zone(65536);
    let mut dict = Dict::new(zone.lock(), 1000);
    assert_eq!(dict.increase(b"n", 1.0, None), Err("not found"));
    assert_eq!(dict.increase(b"n", 1.0, Some((5.0, 100))), Ok((6.0, false)));
    assert_eq!(dict.increase(b"n", -2.5, Some((0.0, 0))), Ok((3.5, false)));
    assert_eq!(dict.left(b"n"), Some(100));
    set(&mut dict, b"t", &text("1"), 0).unwrap();
    assert_eq!(dict.increase(b"t", 1.0, None), Err("not a number"));
}

#[test]
fn lists_have_two_ends() {
    let zone = zone(65536);
    let mut dict = Dict::new(zone.lock(), 1000);
    assert_eq!(dict.push(b"l", NewValue::Text(b"a"), End::Last), Ok(1));
    assert_eq!(dict.push(b"l", NewValue::Number(2.0), End::Last), Ok(2));
    assert_eq!(pop(&mut dict, b"l", End::First), Ok(Some(text("a"))));
    assert_eq!(dict.list_length(b"l"), Ok(1));
    assert_eq!(pop(&mut dict, b"l", End::Last), Ok(Some(Value::Number(2.0))));
    assert_eq!((pop(&mut dict, b"l", End::Last), dict.list_length(b"l")), (Ok(None), Ok(0)));
    assert!(dict.keys(0).is_empty());
    set(&mut dict, b"s", &text("a"), 0).unwrap();
    assert_eq!(dict.push(b"s", NewValue::Number(1.0), End::First), Err("value not a list"));
    assert_eq!(dict.push(b"m", NewValue::Boolean(true), End::First), Err("bad value type"));
}

#[test]
fn a_list_lives_as_long_as_its_key_and_keeps_what_it_has_without_room_for_more() {
    let zone = zone(8192);
    let at = |now| Dict::new(zone.lock(), now);
    at(1000).push(b"l", NewValue::Text(b"a"), End::First).unwrap();
    assert!(at(1000).expire(b"l", 50));
    assert_eq!(at(1010).push(b"l", NewValue::Text(b"b"), End::First), Ok(2));
    assert_eq!(at(1010).left(b"l"), Some(40));
    assert_eq!(at(1050).list_length(b"l"), Ok(0));
    // An expired value makes room for another.
    assert_eq!(at(1050).push(b"l", NewValue::Text(b"c"), End::First), Ok(1));
    assert_eq!(at(1050).push(b"l", NewValue::Text(&[b'x'; 9000]), End::First), Err("no memory"));
    assert_eq!(pop(&mut at(1050), b"l", End::Last), Ok(Some(text("c"))));
}

#[test]
fn a_list_gives_its_memory_back() {
    let zone = zone(65536);
    let mut dict = Dict::new(zone.lock(), 1000);
    let free = dict.free();
    let fill = |dict: &mut Dict<'_>| {
        let full =
            |n: &u32| dict.push(b"l", NewValue::Text(&[b'x'; 100]), End::Last) == Ok(*n as usize);
        assert!((1..).take_while(full).count() > 300);
    };
    fill(&mut dict);
    let full = dict.push(b"l", NewValue::Number(1.0), End::First).and(dict.push(
        b"m",
        NewValue::Text(&[0; 200]),
        End::First,
    ));
    assert_eq!(full, Err("no memory"));
    while pop(&mut dict, b"l", End::First).unwrap().is_some() {}
    assert_eq!(dict.free(), free);
    // So do a value in its place, an end and an eviction.
    fill(&mut dict);
    assert_eq!(set(&mut dict, b"l", &text("v"), 0), Ok(false));
    dict.remove(b"l");
    assert_eq!(dict.free(), free);
    fill(&mut dict);
    assert_eq!(set(&mut dict, b"k", &Value::Text(vec![b'x'; 1000]), 0), Ok(true));
    assert_eq!(dict.list_length(b"l"), Ok(0));
    dict.remove(b"k");
    assert_eq!(dict.free(), free);
}

proptest! {
    #[test]
    fn a_dictionary_is_a_map(
        steps in prop::collection::vec(
            (prop::collection::vec(0u8..3, 1..40), prop::option::of(".{0,60}")),
            1..60,
        ),
    ) {
        let zone = zone(1 << 20);
        let mut dict = Dict::new(zone.lock(), 1);
        let mut model: HashMap<Vec<u8>, String> = HashMap::new();
        for (key, value) in steps {
            match value {
                Some(value) => {
                    set(&mut dict, &key, &text(&value), 0).unwrap();
                    model.insert(key, value);
                }
                None => {
                    dict.remove(&key);
                    model.remove(&key);
                }
            }
            for (key, value) in &model {
                prop_assert_eq!(valid(&mut dict, key), Some(text(value)));
            }
            let mut keys = dict.keys(0);
            let mut expected: Vec<_> = model.keys().cloned().collect();
            keys.sort();
            expected.sort();
            prop_assert_eq!(keys, expected);
        }
    }

    #[test]
    fn a_list_is_a_line_with_two_ends(
        steps in prop::collection::vec(
            (any::<bool>(), prop::option::of(prop_oneof![
                any::<u32>().prop_map(|number| Value::Number(f64::from(number))),
                ".{0,60}".prop_map(|said| text(&said)),
            ])),
            1..80,
        ),
    ) {
        let zone = zone(1 << 20);
        let mut dict = Dict::new(zone.lock(), 1);
        let mut model = VecDeque::new();
        for (left, value) in steps {
            let end = if left { End::First } else { End::Last };
            match value {
                Some(value) => {
                    let length = dict.push(b"l", new(&value), end);
                    if left { model.push_front(value) } else { model.push_back(value) }
                    prop_assert_eq!(length, Ok(model.len()));
                }
                None => {
                    let expected = if left { model.pop_front() } else { model.pop_back() };
                    prop_assert_eq!(pop(&mut dict, b"l", end), Ok(expected));
                }
            }
            prop_assert_eq!(dict.list_length(b"l"), Ok(model.len()));
        }
    }
}
