//! Reused buffers: cleared for their next user, with a limit of the memory that they may hold until
//! then.

use std::collections::VecDeque;

/// A buffer that has grown larger than this gives its memory back instead of keeping it.
pub const MOST_KEPT: usize = 32 * 1024;

/// What is used again and again, and must be as new each time but for its memory, which stays within bounds.
pub trait Renew {
    /// Makes it as new, where it stands.
    fn renew(&mut self);
}

impl<T> Renew for Vec<T> {
    #[inline]
    fn renew(&mut self) {
        if self.capacity().saturating_mul(size_of::<T>()) > MOST_KEPT {
            *self = Vec::new();
        } else {
            self.clear();
        }
    }
}

impl<T> Renew for VecDeque<T> {
    #[inline]
    fn renew(&mut self) {
        if self.capacity().saturating_mul(size_of::<T>()) > MOST_KEPT {
            *self = VecDeque::new();
        } else if !self.is_empty() {
            self.clear();
        }
    }
}

/// Makes a struct as new, where it stands: fields that keep their memory before the semicolon, what has none behind
/// it. All of them must be named, so the compiler tells of one that was forgotten.
#[macro_export]
macro_rules! as_new {
    ($whole:expr, $type:ident { $($kept:ident),*; $($new:ident),* }) => {{
        let $type { $($kept,)* $($new,)* } = $whole;
        $($kept.renew();)*
        $(*$new = Default::default();)*
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_up_to_a_bound() {
        let mut buffer = Vec::with_capacity(1000);
        buffer.push(1u8);
        let at = buffer.as_ptr();
        buffer.renew();
        assert!(buffer.is_empty());
        assert_eq!(buffer.as_ptr(), at);
        for (len, kept) in [(MOST_KEPT / 8, MOST_KEPT / 8), (MOST_KEPT / 8 + 1, 0)] {
            let mut buffer = vec![0u64; len];
            buffer.renew();
            assert_eq!(buffer.capacity(), kept);
        }
    }
}
