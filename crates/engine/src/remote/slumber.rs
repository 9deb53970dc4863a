//! Whether a sender has to ring: one word that both sides change.
//!
//! The first letter that finds the loop asleep rings; the loop falls asleep only from a word
//! without mail. One word has one order of changes, so that there is none in which a letter lies
//! and the loop sleeps unrung.

use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

const MAIL: u8 = 1;
const ASLEEP: u8 = 2;

/// A word shared by threads; a trait so that the model checker's words pass the same code.
pub(crate) trait Word {
    fn get(&self) -> u8;
    /// Sets `bits`; what was before.
    fn raise(&self, bits: u8) -> u8;
    /// Clears `bits`.
    fn lower(&self, bits: u8);
    /// From `from` to `to`; false if it was something else.
    fn change(&self, from: u8, to: u8) -> bool;
}

/// The same operations for the machine's word and for the model checker's.
macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            fn get(&self) -> u8 {
                self.load(Acquire)
            }

            fn raise(&self, bits: u8) -> u8 {
                self.fetch_or(bits, AcqRel)
            }

            fn lower(&self, bits: u8) {
                self.fetch_and(!bits, AcqRel);
            }

            fn change(&self, from: u8, to: u8) -> bool {
                self.compare_exchange(from, to, AcqRel, Acquire).is_ok()
            }
        }
    };
}

word!(AtomicU8);

#[derive(Default)]
pub(crate) struct Slumber<W> {
    word: W,
}

impl<W: Word> Slumber<W> {
    /// A letter was put down; true if the sender has to ring.
    pub(crate) fn posted(&self) -> bool {
        self.word.raise(MAIL) == ASLEEP
    }

    /// The loop is about to sleep; false when it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.word.change(0, ASLEEP)
    }

    /// The loop is awake: nobody has to ring.
    pub(crate) fn awake(&self) {
        self.word.lower(ASLEEP);
    }

    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.word.get() & MAIL != 0
    }

    /// The loop is about to take all letters.
    pub(crate) fn collecting(&self) {
        self.word.lower(MAIL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::{AtomicU8 as ModelWord, AtomicUsize};
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use std::sync::atomic::Ordering::Relaxed;

    word!(ModelWord);

    #[derive(Default)]
    struct Model {
        slumber: Slumber<ModelWord>,
        letters: Mutex<usize>,
        rings: AtomicUsize,
    }

    impl Model {
        fn post(&self) {
            *self.letters.lock().unwrap() += 1;
            if self.slumber.posted() {
                self.rings.fetch_add(1, Relaxed);
            }
        }

        fn collect(&self) -> usize {
            self.slumber.collecting();
            std::mem::take(&mut *self.letters.lock().unwrap())
        }
    }

    /// The orders, with up to three preemptions, of two senders and a loop that collects, tries to sleep, and sleeps.
    #[test]
    fn a_letter_never_lies_while_the_loop_sleeps_unrung() {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(3);
        checker.check(|| {
            let model = Arc::new(Model::default());
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let model = model.clone();
                    thread::spawn(move || model.post())
                })
                .collect();
            let mut read = if model.slumber.has_mail() { model.collect() } else { 0 };
            let slept = model.slumber.may_sleep();
            for sender in senders {
                sender.join().unwrap();
            }
            if slept {
                let rung = model.rings.load(Relaxed) > 0;
                assert!(rung || *model.letters.lock().unwrap() == 0, "asleep, unrung, with mail");
            }
            model.slumber.awake();
            assert!(model.slumber.has_mail() || *model.letters.lock().unwrap() == 0);
            read += model.collect();
            assert_eq!(read, 2);
        });
    }
}
