//! Findings in shared memory. One process writes them, all processes read them.

use std::borrow::Cow;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, fence};

use crate::{Finding, Level};

/// The most findings on the board. They are ordered, the worst first.
const MOST: usize = 16;
/// The most bytes of a finding's texts.
const RULE: usize = 40;
const SUBJECT: usize = 120;
const TEXT: usize = 320;

/// The words before the findings: the number of writes times two, odd during a write; the time of the last write, in
/// milliseconds since 1970; the length of the findings in bytes.
const WRITES: usize = 0;
const AT: usize = 1;
const LENGTH: usize = 2;
const BYTES: usize = 3;

/// The value of the word `AT` while the judge sleeps.
const ASLEEP: u64 = u64::MAX;

/// How often a reader tries: the writer may have died during a write.
const TRIES: usize = 1000;

/// Writes the findings of a look at this time, in milliseconds since 1970.
pub fn post(board: &[AtomicU64], at: u64, findings: &[Finding]) {
    let mut bytes = Vec::new();
    for finding in findings.iter().take(MOST) {
        bytes.push(finding.level as u8);
        bytes.extend(finding.since.to_le_bytes());
        for (text, most) in
            [(&*finding.rule, RULE), (&*finding.subject, SUBJECT), (&*finding.text, TEXT)]
        {
            let text = cut(text, most).as_bytes();
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text);
        }
    }
    let set =
        |at: usize, value: u64| board.get(at).into_iter().for_each(|w| w.store(value, SeqCst));
    // The previous writer may have died during a write.
    let begun = get(board, WRITES) | 1;
    set(WRITES, begun);
    fence(SeqCst);
    set(AT, at);
    set(LENGTH, bytes.len() as u64);
    for (i, piece) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
        set(BYTES + i, u64::from_le_bytes(word));
    }
    fence(SeqCst);
    set(WRITES, begun.wrapping_add(1));
}

/// Marks the judge as asleep. A loop wakes it by [`wake_up`].
pub fn fall_asleep(board: &[AtomicU64]) {
    board.get(AT).into_iter().for_each(|word| word.store(ASLEEP, SeqCst));
    // A loop begins its turn before it reads this word. The judge reads the turns after it has written it.
    fence(SeqCst);
}

/// Ends the judge's sleep at this time, in milliseconds since 1970. Returns whether it slept.
pub fn wake_up(board: &[AtomicU64], at: u64) -> bool {
    fence(SeqCst);
    let word = board.get(AT).filter(|word| word.load(SeqCst) == ASLEEP);
    word.is_some_and(|word| word.compare_exchange(ASLEEP, at, SeqCst, SeqCst).is_ok())
}

/// The time of the last write and its findings. None if nothing was written yet. While the judge sleeps the time is
/// [`u64::MAX`].
pub fn posted(board: &[AtomicU64]) -> Option<(u64, Vec<Finding>)> {
    for _ in 0..TRIES {
        let before = get(board, WRITES);
        if before == 0 {
            return None;
        }
        if before.is_multiple_of(2) {
            let (at, length) = (get(board, AT), get(board, LENGTH) as usize);
            let words = board.get(BYTES..).unwrap_or_default();
            let words = words.get(..length.div_ceil(8).min(words.len())).unwrap_or_default();
            let bytes: Vec<u8> =
                words.iter().flat_map(|word| word.load(SeqCst).to_le_bytes()).collect();
            fence(SeqCst);
            if get(board, WRITES) == before {
                return Some((at, read(bytes.get(..length).unwrap_or_default())));
            }
        }
        std::hint::spin_loop();
    }
    None
}

/// The number of writes.
pub(crate) fn looks(board: &[AtomicU64]) -> u64 {
    get(board, WRITES) / 2
}

fn get(board: &[AtomicU64], at: usize) -> u64 {
    board.get(at).map_or(0, |word| word.load(SeqCst))
}

/// The longest beginning of a text with at most `most` bytes and no split character.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

fn read(mut bytes: &[u8]) -> Vec<Finding> {
    let mut found = Vec::new();
    while let Some(finding) = one(&mut bytes) {
        found.push(finding);
    }
    found
}

fn one(bytes: &mut &[u8]) -> Option<Finding> {
    let level = Level::of(*bytes.split_off_first()?);
    let since = u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?);
    let mut text = || {
        let length = u16::from_le_bytes(bytes.split_off(..2)?.try_into().ok()?);
        Some(String::from_utf8_lossy(bytes.split_off(..usize::from(length))?).into_owned())
    };
    let (rule, subject, text) = (Cow::Owned(text()?), text()?, text()?);
    Some(Finding { rule, level, subject, text, since })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_read_as_they_were_written_and_bounded() {
        let words: Vec<AtomicU64> = (0..weir_metrics::BOARD).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(posted(&words), None);
        let of = |n: usize| Finding {
            rule: Cow::Owned("server_failing".to_owned()),
            level: Level::Yellow,
            subject: format!("group {n}"),
            text: "é".repeat(1000),
            since: n as u64,
        };
        let all: Vec<Finding> = (0..100).map(of).collect();
        post(&words, 7, &all);
        let (at, found) = posted(&words).unwrap();
        assert_eq!((at, found.len()), (7, MOST));
        let whole = Finding { text: "é".repeat(TEXT / 2), ..of(3) };
        assert_eq!(found[3], whole);
        // The longest findings fit.
        let long = |n| Finding { rule: "r".repeat(99).into(), subject: "s".repeat(999), ..of(n) };
        post(&words, 8, &(0..MOST).map(long).collect::<Vec<_>>());
        assert_eq!(posted(&words).unwrap().1.len(), MOST);
        post(&words, 9, &[]);
        assert_eq!(posted(&words), Some((9, Vec::new())));
        assert!(!wake_up(&words, 10), "it does not sleep");
        fall_asleep(&words);
        assert_eq!(posted(&words), Some((ASLEEP, Vec::new())));
        assert!(wake_up(&words, 10));
        assert!(!wake_up(&words, 11), "another one was first");
        assert_eq!(posted(&words), Some((10, Vec::new())));
        words[WRITES].store(3, SeqCst);
        assert_eq!(posted(&words), None, "its writer died while it wrote");
        post(&words, 10, &all[..1]);
        assert_eq!(posted(&words).unwrap().0, 10);
    }
}
