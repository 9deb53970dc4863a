//! The ordered list of the last translation, from which the next one takes what it needs again.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::vec::IntoIter;

/// The remaining elements of an ordered list.
pub(super) struct Ordered<T>(Peekable<IntoIter<T>>);

impl<T> Ordered<T> {
    pub(super) fn new(list: Vec<T>) -> Ordered<T> {
        Ordered(list.into_iter().peekable())
    }

    /// Removes and returns an element that compares as equal. Lesser elements are dropped, so calls
    /// must ask in ascending order.
    pub(super) fn take_equal(&mut self, order: impl Fn(&T) -> Ordering) -> Option<T> {
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
        let found: Vec<_> =
            [0, 2, 3, 4, 4, 4, 6].map(|n| list.take_equal(|one| one.cmp(&n))).into();
        assert_eq!(found, [None, Some(2), None, Some(4), Some(4), None, Some(6)]);
    }
}
