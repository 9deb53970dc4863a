//! Buffers that serve again: what their next user finds in them, and how much memory they may hold until then.

/// A buffer that has grown larger than this gives its memory back instead of keeping it.
pub const MOST_KEPT: usize = 32 * 1024;

/// A buffer as new, but for its memory.
pub fn emptied<T>(mut buffer: Vec<T>) -> Vec<T> {
    if buffer.capacity().saturating_mul(size_of::<T>()) > MOST_KEPT {
        return Vec::new();
    }
    buffer.clear();
    buffer
}

/// Makes a buffer as new, where it stands.
pub fn empty<T>(buffer: &mut Vec<T>) {
    *buffer = emptied(std::mem::take(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_up_to_a_bound() {
        let mut buffer = Vec::with_capacity(1000);
        buffer.push(1u8);
        let at = buffer.as_ptr();
        empty(&mut buffer);
        assert!(buffer.is_empty());
        assert_eq!(buffer.as_ptr(), at);
        assert_eq!(emptied(vec![0u64; MOST_KEPT / 8]).capacity(), MOST_KEPT / 8);
        assert_eq!(emptied(vec![0u64; MOST_KEPT / 8 + 1]).capacity(), 0);
    }
}
