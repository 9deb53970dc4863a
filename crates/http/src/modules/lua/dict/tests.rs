use std::collections::HashMap;

use proptest::prelude::*;
use weir_zone::{Use, Zone};

use super::*;

fn zone(size: u64) -> Zone {
    Zone::new("trial", size, Use::of(TAG, WORDS)).unwrap()
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

fn new(value: &Value) -> NewValue<'_> {
    match value {
        Value::Boolean(value) => NewValue::Boolean(*value),
        Value::Number(number) => NewValue::Number(*number),
        Value::Text(text) => NewValue::Text(text),
        Value::List(list) => NewValue::List(list),
    }
}

fn set(dict: &mut Dict<'_>, key: &[u8], value: &Value, ttl: u64) -> Result<bool, DictError> {
    dict.store(key, (new(value), 0), ttl, (How::Set, true))
}

#[test]
fn values_expire() {
    let zone = zone(65536);
    let at = |now| Dict::new(zone.lock(), now);
    set(&mut at(1000), b"k", &text("v"), 50).unwrap();
    assert_eq!(at(1049).valid(b"k").map(|found| found.value), Some(text("v")));
    assert_eq!(at(1049).left(b"k"), Some(1));
    assert_eq!(at(1050).valid(b"k"), None);
    assert_eq!((at(1050).left(b"k"), at(1250).left(b"k")), (Some(-1), Some(-200)));
    assert!(at(1050).get(b"k").is_some_and(|found| found.stale));
    assert!(!at(1050).expire(b"k", 10));
    assert_eq!(at(1050).keys(0), Vec::<Vec<u8>>::new());
    assert_eq!(
        at(1050).store(b"k", (new(&text("w")), 7), 0, (How::Replace, true)),
        Err("not found")
    );
    assert_eq!(at(1050).store(b"k", (new(&text("w")), 7), 0, (How::Add, true)), Ok(false));
    assert_eq!(at(9999).valid(b"k").map(|found| found.flags), Some(7));
    assert_eq!(at(9999).store(b"k", (new(&text("x")), 0), 0, (How::Add, true)), Err("exists"));
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
        // The first is used again and again.
        assert!(dict.valid(&0u32.to_le_bytes()).is_some());
        n += 1;
    }
    assert!(dict.valid(&0u32.to_le_bytes()).is_some() && dict.valid(&1u32.to_le_bytes()).is_none());
    assert_eq!(dict.store(b"safe", (new(&value), 0), 0, (How::Set, false)), Err("no memory"));
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
    assert!(dict.valid(b"a").is_some());
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
    let push = |dict: &mut Dict<'_>, value: Value| {
        dict.with_list(b"l", true, |list| {
            list.push(value);
            list.len()
        })
    };
    assert_eq!(push(&mut dict, text("a")), Ok(Some(1)));
    assert_eq!(push(&mut dict, Value::Number(2.0)), Ok(Some(2)));
    assert_eq!(dict.with_list(b"l", false, |list| list.remove(0)), Ok(Some(text("a"))));
    assert_eq!(dict.with_list(b"l", false, |list| list.len()), Ok(Some(1)));
    assert_eq!(dict.with_list(b"l", false, |list| list.pop()), Ok(Some(Some(Value::Number(2.0)))));
    assert_eq!(dict.with_list(b"l", false, |list| list.len()), Ok(None));
    set(&mut dict, b"s", &text("a"), 0).unwrap();
    assert_eq!(dict.with_list(b"s", true, |list| list.len()), Err("value not a list"));
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
                prop_assert_eq!(dict.valid(key).map(|found| found.value), Some(text(value)));
            }
            let mut keys = dict.keys(0);
            let mut expected: Vec<_> = model.keys().cloned().collect();
            keys.sort();
            expected.sort();
            prop_assert_eq!(keys, expected);
        }
    }
}
