//! A list of the last translation, of which the next one takes what it finds again.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::vec::IntoIter;

/// What is left of a list in order.
pub(super) struct Ordered<T>(Peekable<IntoIter<T>>);

impl<T> Ordered<T> {
    pub(super) fn new(list: Vec<T>) -> Ordered<T> {
        Ordered(list.into_iter().peekable())
    }

    /// Takes out what compares as equal. All that is less is dropped: the next call asks for something that is greater.
    pub(super) fn take(&mut self, order: impl Fn(&T) -> Ordering) -> Option<T> {
        while self.0.next_if(|one| order(one).is_lt()).is_some() {}
        self.0.next_if(|one| order(one).is_eq())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_again_is_taken_and_the_rest_is_dropped() {
        let mut list = Ordered::new(vec![1, 2, 4, 4, 6]);
        let found: Vec<_> = [0, 2, 3, 4, 4, 4, 6].map(|n| list.take(|one| one.cmp(&n))).into();
        assert_eq!(found, [None, Some(2), None, Some(4), Some(4), None, Some(6)]);
    }
}
