use weir_zone::{Declarations, Use, Zones};

use super::*;

fn index(size: u64) -> (Index, Zones) {
    let all = Declarations::default();
    let purpose = Use::of("cache", VALUES);
    let zone = all.declare("one", size, purpose).unwrap();
    let zones = all.open(&Zones::default()).unwrap();
    (Index::new(zone), zones)
}

fn key(n: u64) -> CacheKey {
    CacheKey::of(&n.to_le_bytes())
}

const AGE: Duration = Duration::from_secs(5);

#[test]
fn a_key_is_stored_found_and_lost() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    assert_eq!(index.look_up(&key(1), 100, 0, 2, &mut gone), Lookup::Scarce);
    assert_eq!(index.look_up(&key(1), 101, 0, 2, &mut gone), Lookup::Absent);
    let first = index.stored(&key(1), 700, 102, &mut gone);
    assert_eq!(index.look_up(&key(1), 103, 0, 9, &mut gone), Lookup::Stored(first));
    let second = index.stored(&key(1), 300, 104, &mut gone);
    assert_ne!(first, second);
    assert_eq!(index.size(), 300);
    index.known(&key(1), 900, 105);
    index.known(&key(2), 50, 105);
    assert_eq!(index.size(), 350);
    index.lost(&key(1));
    index.lost(&key(1));
    assert_eq!(index.size(), 50);
    assert!(index.forget(&key(2)) && !index.forget(&key(2)));
    assert_eq!((index.size(), gone.len()), (0, 0));
}

#[test]
fn no_file_has_the_number_of_another_one() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    let mut numbers = std::collections::HashSet::new();
    for n in 0..1000 {
        assert!(numbers.insert(index.stored(&key(1), 1, n, &mut gone)));
        assert!(numbers.insert(index.changed(&key(1)).unwrap()));
        match n % 3 {
            0 => index.lost(&key(1)),
            1 => assert!(index.forget(&key(1))),
            _ => continue,
        }
        assert_eq!(index.changed(&key(1)), None);
        index.known(&key(1), 1, n);
        let Lookup::Stored(number) = index.look_up(&key(1), n, 0, 1, &mut gone) else { panic!() };
        assert!(numbers.insert(number));
    }
    assert!(!numbers.contains(&0));
}

#[test]
fn an_entry_s_state_is_several_numbers() {
    let state =
        EntryState(0).with(UPDATING).with_error(504).with_uses(70_000).with_generation(u32::MAX);
    let state = state.with(EXISTS).without(UPDATING);
    assert_eq!((state.error(), state.uses(), state.generation()), (504, MOST_USES, u32::MAX));
    assert_eq!(state.with_uses(3).with_error(0).with_generation(7).0, EXISTS | 3 << 16 | 7 << 32);
}

#[test]
fn one_updates_and_the_others_wait() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    index.look_up(&key(1), 0, 0, 1, &mut gone);
    let ticket = index.take(&key(1), 1000, AGE).unwrap();
    assert!(index.take(&key(1), 1001, AGE).is_none());
    assert!(index.is_updating(&key(1), 5999));
    // A holder that keeps it for too long loses it. When it gives the right back, it takes it from
    // no other.
    assert!(!index.is_updating(&key(1), 6000));
    let later = index.take(&key(1), 6000, AGE).unwrap();
    index.release(ticket);
    assert!(index.is_updating(&key(1), 6001));
    index.release(later);
    index.set_error(&key(1), 502, 77);
    assert!(!index.is_updating(&key(1), 6001));
    assert_eq!(index.look_up(&key(1), 6002, 77, 1, &mut gone), Lookup::Error(502));
    assert_eq!(index.look_up(&key(1), 6003, 78, 1, &mut gone), Lookup::Absent);
}

#[test]
fn what_was_taken_out_does_not_come_back_with_the_right_to_update_it() {
    let (index, _zones) = index(65536);
    index.stored(&key(1), 10, 0, &mut Vec::new());
    let ticket = index.take(&key(1), 0, AGE).unwrap();
    assert!(index.forget(&key(1)));
    index.release(ticket);
    assert!(index.lock().unwrap().find(&key(1).0).is_none());
}

#[test]
fn the_dead_update_nothing() {
    let (index, _zones) = index(65536);
    index.look_up(&key(1), 0, 0, 1, &mut Vec::new());
    index.take(&key(1), 1000, AGE).unwrap();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = u64::from(child.id());
    child.wait().unwrap();
    index.change(&key(1).0, |values| values[LOCK] = 9000 << PID_BITS | pid);
    assert!(!index.is_updating(&key(1), 1001));
    assert!(index.take(&key(1), 1001, AGE).is_some());
}

#[test]
fn an_answer_arrives_until_its_file_is_there() {
    let (index, _zones) = index(65536);
    let late = 1000 + AGE.as_millis() as u64;
    assert!(!index.is_arriving(&key(1), 1000));
    index.arrives(&key(1), 1000, AGE);
    assert!(index.is_arriving(&key(1), 1001));
    assert!(!index.is_arriving(&key(1), late), "it takes too long");
    index.stored(&key(1), 10, 1002, &mut Vec::new());
    index.arrived(&key(1));
    assert!(!index.is_arriving(&key(1), 1003));
    assert!(index.forget(&key(1)), "its file stays known");

    // The right to update the key stays as it is, and a removal ends both.
    let ticket = index.take(&key(2), 1000, AGE * 2).unwrap();
    index.arrives(&key(2), 1001, AGE);
    assert!(index.is_arriving(&key(2), late) && index.is_updating(&key(2), late));
    index.remove(&key(2));
    assert!(!index.is_arriving(&key(2), 1002));
    index.release(ticket);

    // A process that died writes nothing.
    index.arrives(&key(3), 1000, AGE);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = u64::from(child.id());
    child.wait().unwrap();
    index.change(&key(3).0, |values| values[LOCK] = 9000 << PID_BITS | pid);
    assert!(!index.is_arriving(&key(3), 1001));
}

#[test]
fn the_oldest_go_first() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    for n in 0..3 {
        index.stored(&key(n), 10, n * 1000, &mut gone);
    }
    index.look_up(&key(0), 5000, 0, 1, &mut gone);
    assert_eq!(index.next_expiry(5000, AGE), Some(Duration::from_secs(1)));
    assert_eq!(index.expire(5999, Some(AGE)), None);
    assert_eq!(index.expire(6000, Some(AGE)), Some((key(1), true)));
    let ticket = index.take(&key(2), 6000, AGE).unwrap();
    assert_eq!(index.expire(6000, None), Some((key(0), true)));
    assert_eq!(index.expire(6000, None), None);
    index.release(ticket);
    assert_eq!(index.expire(6000, None), Some((key(2), true)));
    assert_eq!((index.expire(6000, None), index.size()), (None, 0));
}

#[test]
fn a_full_index_makes_room() {
    let (index, _zones) = index(16384);
    let mut gone = Vec::new();
    for n in 0..1000 {
        index.stored(&key(n), 1, n, &mut gone);
        assert_eq!(index.look_up(&key(n), n, 0, 1, &mut gone), Lookup::Stored(n as u32 + 1));
    }
    assert_eq!(index.size() as usize + gone.len(), 1000);
    assert_eq!(gone.first(), Some(&key(0)));
    assert!(gone.len() > 800);
}

#[test]
fn an_error_has_a_status_whatever_a_word_says() {
    let (index, _zones) = index(65536);
    for n in 0..0x1000 {
        index.change(&key(1).0, |values| (values[STATE], values[VALID]) = (n << 4, u64::MAX >> 1));
        match index.look_up(&key(1), 100, 0, 1, &mut Vec::new()) {
            Lookup::Error(status) => assert!((300..=999).contains(&status)),
            found => assert_eq!(found, Lookup::Absent),
        }
    }
}

#[test]
fn a_size_that_was_spoilt_is_right_again() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    for n in 1..4 {
        index.stored(&key(n), 100, n, &mut gone);
    }
    for spoilt in [0, 50, u64::MAX] {
        index.change(WHOLE, |values| values[SIZE] = spoilt);
        index.stored(&key(2), 100, 5, &mut gone);
        index.lost(&key(2));
        index.stored(&key(2), 100, 6, &mut gone);
        assert_eq!(index.size(), 300, "{spoilt}");
    }
    index.change(WHOLE, |values| values[SIZE] = 1 << 40);
    while index.expire(9, None).is_some() {}
    assert_eq!((index.size(), gone.len()), (0, 0));
}

#[test]
fn a_removal_is_remembered_whatever_is_stored_later() {
    let (index, _zones) = index(65536);
    let mut gone = Vec::new();
    index.remove(&key(1));
    assert!(!index.is_removed(&key(1), 0), "nobody has asked for it");
    index.look_up(&key(1), 0, 0, 1, &mut gone);
    let before = index.last();
    let ticket = index.take(&key(1), 0, AGE).unwrap();
    index.remove(&key(1));
    // The next one may update it at once.
    let next = index.take(&key(1), 1, AGE).unwrap();
    index.release(ticket);
    assert!(index.is_updating(&key(1), 1));
    index.release(next);
    let after = index.last();
    let judge = |index: &Index| {
        assert!(index.is_removed(&key(1), before) && !index.is_removed(&key(1), after));
        assert!(!index.is_removed(&key(2), before));
    };
    judge(&index);
    index.stored(&key(1), 10, 0, &mut gone);
    judge(&index);
    index.set_error(&key(1), 502, i64::MAX);
    assert_eq!(index.look_up(&key(1), 0, 1 << 31, 1, &mut gone), Lookup::Error(502));
    judge(&index);
    index.lost(&key(1));
    judge(&index);
    index.stored(&key(1), 10, 0, &mut gone);
    index.remove(&key(1));
    assert_eq!((index.look_up(&key(1), 0, 0, 1, &mut gone), index.size()), (Lookup::Absent, 0));
}
